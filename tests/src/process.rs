//! A child process that never outlives its test, with everything it said.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    said: Output,
}

impl Process {
    /// Starts `command` and collects its standard error. Standard output is collected too, unless the
    /// command already says where it goes, in which case [`Process::child`] gives the pipe.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{name} can't be started: {command:?}"))?;
        let said = Output::default();
        if let Some(stderr) = child.stderr.take() {
            said.collect(stderr);
        }
        Ok(Self { name: name.to_owned(), child, said })
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything said so far.
    #[must_use]
    pub fn said(&self) -> String {
        self.said.text()
    }

    /// The exit status if the child has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// An error, with what it said, if the child has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            // The collector may be a moment behind.
            thread::sleep(Duration::from_millis(20));
            bail!("{} ended with {status}; it said:\n{}", self.name, self.said());
        }
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for the child to end by itself.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!("{} has not ended within {limit:?}; it said:\n{}", self.name, self.said());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("---- {} said:\n{}----", self.name, self.said());
        }
    }
}

/// Text that a thread collects from a pipe.
#[derive(Clone, Debug, Default)]
pub struct Output {
    text: Arc<Mutex<String>>,
}

impl Output {
    /// Collects lines until the other side closes the pipe.
    pub fn collect(&self, pipe: impl Read + Send + 'static) {
        let output = self.clone();
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                output.push(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
    }

    /// Adds text.
    pub fn push(&self, text: &str) {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// A copy of the text so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Calls `condition` until it gives a value. The error says what was waited for.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut nap = Duration::from_micros(50);
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("{what}: nothing within {limit:?}");
        }
        thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(5));
    }
}
