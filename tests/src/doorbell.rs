//! Starts `doorbell serve` and talks to it as an operator does.
//!
//! The program is built by cargo on first use, with debug assertions, so that a test never runs a stale
//! one. `DOORBELL_BIN` names another, for instance a release build.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::layout;
use crate::process::{Process, wait_for};
use crate::qemu::Device;

/// How long the server may take to open its socket, and to stop.
const LIMIT: Duration = Duration::from_secs(60);

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    /// The process, for signals and for what it said.
    pub process: Process,
    socket: PathBuf,
    _folder: TempDir,
}

impl Server {
    /// Starts `doorbell serve --socket ... ARGUMENTS` and waits for the socket. The arguments are separated
    /// by blanks, as on a command line.
    pub fn start(arguments: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("doorbell.").tempdir()?;
        let socket = folder.path().join("nvme.sock");
        let mut command = Command::new(program()?);
        command.arg("serve").arg("--socket").arg(&socket).args(arguments.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Process::start("doorbell serve", &mut command)?;
        wait_for("the server opens its socket", LIMIT, || {
            process.check_alive()?;
            Ok(socket.exists().then_some(()))
        })
        .with_context(|| format!("doorbell serve {arguments}; it said:\n{}", process.said()))?;
        Ok(Self { process, socket, _folder: folder })
    }

    /// A server with one namespace of 64 MiB in memory.
    pub fn start_ram() -> Result<Self> {
        Self::start("--ram 64M")
    }

    /// Its vfio-user socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The device for a machine.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::VfioUser(self.socket.clone())
    }

    /// What `doorbell stat --json SOCKET` prints.
    pub fn stat(&self) -> Result<Value> {
        let text = self.operate(&["stat", "--json"], &[])?;
        serde_json::from_str(&text).with_context(|| format!("doorbell stat --json printed:\n{text}"))
    }

    /// `doorbell namespace VERB SOCKET ARGUMENTS`: adds, removes or resizes a namespace.
    pub fn namespace(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        self.operate(&["namespace", verb], arguments)
    }

    /// Asks the server to end and waits until it has; it must end with success.
    pub fn stop(mut self) -> Result<String> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(LIMIT)?;
        ensure!(status.success(), "doorbell serve ended with {status}; it said:\n{}", self.process.said());
        Ok(self.process.said())
    }

    fn operate(&self, verb: &[&str], arguments: &[&str]) -> Result<String> {
        operate(&self.socket, verb, arguments)
    }
}

/// `doorbell VERB SOCKET ARGUMENTS` for the device at that socket; what it printed.
pub fn operate(socket: &Path, verb: &[&str], arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program()?);
    command.args(verb).arg(socket).args(arguments).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output()?;
    let said = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "doorbell {verb:?} {arguments:?} ended with {status}:\n{said}");
    Ok(String::from_utf8(stdout)?)
}

/// The sum of every number with this key, however deep: a total over queues and controllers.
#[must_use]
pub fn total(value: &Value, key: &str) -> u64 {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| if name == key { value.as_u64().unwrap_or(0) } else { total(value, key) })
            .sum(),
        Value::Array(values) => values.iter().map(|value| total(value, key)).sum(),
        _ => 0,
    }
}

/// The program under test.
pub fn program() -> Result<PathBuf> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| match std::env::var_os("DOORBELL_BIN") {
            Some(path) => Ok(PathBuf::from(path)),
            None => build().map_err(|error| format!("{error:#}")),
        })
        .clone()
        .map_err(anyhow::Error::msg)
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--package", "doorbell-vhost", "--bin", "doorbell", "--message-format=json"])
        .current_dir(layout::workspace())
        .stdin(Stdio::null())
        .output()
        .context("cargo can't be started")?;
    if !output.status.success() {
        bail!("doorbell does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    for line in output.stdout.lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let name = message.pointer("/target/name").and_then(Value::as_str);
        if let (Some("doorbell"), Some(path)) = (name, message.get("executable").and_then(Value::as_str)) {
            return Ok(PathBuf::from(path));
        }
    }
    bail!("cargo built no program named doorbell: doorbell-vhost needs a [[bin]] of that name")
}
