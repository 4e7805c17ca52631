//! The program as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::LONG;

/// A running program, killed on drop.
pub struct Program {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it and waits until it says that it serves.
    pub fn serve(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut program = Self { lines: BufReader::new(child.stdout.take().unwrap()), child };
        let line = program.line();
        assert!(line.starts_with("serving"), "{line}");
        program
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// SIGTERM; returns the exit code and how long the end took.
    pub fn terminate(&mut self) -> (Option<i32>, Duration) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let start = Instant::now();
        (self.wait(), start.elapsed())
    }

    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it doesn't end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Processor time of all threads so far.
    pub fn cpu_time(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let ran = |task: std::io::Result<std::fs::DirEntry>| {
            let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
        };
        tasks.map(ran).sum()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn doorbell(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.args(arguments).env("DOORBELL_LOG", "warn");
    command
}

/// Runs a command that ends by itself.
pub fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
