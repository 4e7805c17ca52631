//! The server as a process: what it prints, how it ends, and that it keeps nothing.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::frontend::{Frontend, code, new_eventfd};

/// A running `doorbell serve --vhost-user`; killed on drop.
#[derive(Debug)]
pub struct Process {
    pub child: Child,
    pub said: Vec<String>,
}

impl Process {
    pub fn start(socket: &Path, arguments: &[&str]) -> Self {
        Self::start_saying(socket, arguments, Stdio::inherit())
    }

    /// The same with another standard error.
    pub fn start_saying(socket: &Path, arguments: &[&str], said: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_doorbell"))
            .args(["serve", "--vhost-user"])
            .arg(socket)
            .args(arguments)
            .env("DOORBELL_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()
            .unwrap();
        // It listens before it says so.
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said: Vec<String> = lines.take(5).map(Result::unwrap).collect();
        assert_eq!(said.len(), 5, "{said:?}");
        Self { child, said }
    }

    /// Processor time so far, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
    }

    /// How many entries the folder of the process has; of its threads those that the kernel makes for io_uring don't
    /// count.
    pub fn count(&self, what: &str) -> usize {
        let entries = std::fs::read_dir(format!("/proc/{}/{what}", self.child.id())).unwrap();
        let name = |path: PathBuf| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        entries
            .filter(|entry| what != "task" || !name(entry.as_ref().unwrap().path()).starts_with("iou-"))
            .count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_how_to_attach_and_ends_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("blk");
    let mut process = Process::start(&socket, &["--ram", "1M", "--queues", "2"]);
    let path = socket.display();
    for (line, reconnect) in [(2, "reconnect-ms=1000"), (4, "reconnect=1")] {
        let said = &process.said[line];
        assert!(said.contains(&format!("-chardev socket,id=c,path={path},{reconnect} ")), "{said}");
        assert!(said.contains("-device vhost-user-blk-pci,chardev=c,num-queues=2"), "{said}");
    }
    // With a frontend that is attached, too.
    let mut frontend = Frontend::connect(&socket);
    frontend.negotiate(0);
    frontend.add_ring(64);
    frontend.start(0, 0);
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
    kill_process(Pid::from_child(&process.child), Signal::TERM).unwrap();
    assert!(process.child.wait().unwrap().success());
    assert!(!socket.exists());
    assert!(frontend.is_closed());
}

#[test]
fn it_serves_one_disk_only() {
    let refused = Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .args(["serve", "--vhost-user", "/nowhere/blk", "--ram", "1M", "--ram", "1M"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("one disk") && said.contains('2'), "{said}");
}

#[test]
fn frontends_that_come_and_go_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("blk");
    let process = Process::start(&socket, &["--ram", "1M", "--queues", "2"]);
    let mut before = None;
    for round in 0..300 {
        let mut frontend = Frontend::connect(&socket);
        frontend.negotiate(0);
        frontend.add_ring(64);
        frontend.start(0, 0);
        assert_eq!(frontend.request(4, 0, 0), (0, 1));
        let now = (process.count("fd"), process.count("task"));
        // The first rounds may still open things.
        if round == 10 {
            before = Some(now);
        } else if let Some(before) = before {
            assert_eq!(now, before, "round {round}");
        }
        if round % 2 == 0 {
            frontend.stop(0);
        }
    }
}

#[test]
fn descriptors_that_are_sent_again_and_again_are_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("blk");
    let process = Process::start(&socket, &["--ram", "1M", "--queues", "2"]);
    let mut frontend = Frontend::connect(&socket);
    frontend.negotiate(0);
    frontend.add_ring(64);
    frontend.start(0, 0);
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
    let before = process.count("fd");
    let eventfd = new_eventfd();
    for message in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
        for round in 0..3_500 {
            // Without waiting for an answer, but for one now and then.
            let number = 1_u64.to_le_bytes();
            if round % 100 == 0 {
                frontend.command(message, &number, &[eventfd.as_fd()]);
            } else {
                frontend.send(message, &number, &[eventfd.as_fd()]);
            }
        }
    }
    frontend.command(code::SET_VRING_CALL, &1_u64.to_le_bytes(), &[eventfd.as_fd()]);
    assert_eq!(process.count("fd"), before + 3, "one of each for queue 1");
    let own = frontend.queues[0].call.try_clone().unwrap();
    for _ in 0..1000 {
        frontend.command(code::SET_VRING_CALL, &0_u64.to_le_bytes(), &[own.as_fd()]);
    }
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
    assert_eq!(process.count("fd"), before + 3);
}

#[test]
fn idle_queues_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("blk");
    let process = Process::start(&socket, &["--ram", "1M", "--queues", "2", "--pollers", "2"]);
    let mut frontend = Frontend::connect(&socket);
    frontend.negotiate(0);
    for index in 0..2 {
        frontend.add_ring(64);
        frontend.start(index, 0);
    }
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
    std::thread::sleep(std::time::Duration::from_millis(100));
    let before = process.ticks();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(process.ticks() - before <= 1, "{} ticks in an idle second", process.ticks() - before);
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}
