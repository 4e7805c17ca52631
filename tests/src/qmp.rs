//! QEMU's monitor (QMP): commands to a running machine, one JSON object a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::wait_for;

const LIMIT: Duration = Duration::from_secs(60);

/// A connection to a machine's monitor.
#[derive(Debug)]
pub struct Monitor {
    reader: BufReader<UnixStream>,
    events: Vec<Value>,
}

impl Monitor {
    /// Connects to the monitor's socket, which may come a moment later.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = wait_for("QEMU opens its monitor", LIMIT, || Ok(UnixStream::connect(socket).ok()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut monitor = Self { reader: BufReader::new(stream), events: Vec::new() };
        monitor.next()?;
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Executes a command; an error of QEMU's is one.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        // In one write: QEMU carries a command out at its last brace, and after `quit` nobody reads the rest.
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.reader.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut answer = self.next()?;
            if answer.get("event").is_some() {
                self.events.push(answer);
            } else if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {error}");
            } else {
                return Ok(answer["return"].take());
            }
        }
    }

    /// Waits for an event of that name whose data contains `what`; an empty text is in any.
    pub fn wait_event(&mut self, name: &str, what: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let wanted = |event: &Value| event["event"] == name && event["data"].to_string().contains(what);
            if let Some(place) = self.events.iter().position(wanted) {
                self.events.remove(place);
                return Ok(());
            }
            ensure!(start.elapsed() < LIMIT, "no event {name} within {LIMIT:?}: {:?}", self.events);
            let next = self.next().with_context(|| format!("waiting for {name}"))?;
            self.events.push(next);
        }
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.reader.read_line(&mut line)? > 0, "QEMU has closed its monitor");
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line}"))
    }
}
