//! Servers of a virtio disk over vhost-user: ours, and QEMU's for comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::doorbell::program;
use crate::layout;
use crate::process::{Process, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Backend {
    process: Process,
    socket: PathBuf,
    _folder: TempDir,
}

impl Backend {
    /// `doorbell serve --vhost-user SOCKET ARGUMENTS`.
    pub fn doorbell(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program()?);
        Self::start("doorbell serve", |socket| {
            command.arg("serve").arg("--vhost-user").arg(socket).args(arguments);
            Ok(command)
        })
    }

    /// `qemu-storage-daemon` with its vhost-user-blk export of a raw image, by io_uring.
    pub fn storage_daemon(image: &Path) -> Result<Self> {
        let mut command = Command::new(layout::part("qemu-storage-daemon")?);
        Self::start("qemu-storage-daemon", |socket| {
            let file = format!("driver=file,node-name=file,filename={},aio=io_uring", image.display());
            let export = format!(
                "type=vhost-user-blk,id=export,node-name=file,writable=on,addr.type=unix,addr.path={}",
                socket.display()
            );
            command.args(["--blockdev", &file, "--export", &export]);
            Ok(command)
        })
    }

    fn start(name: &str, command: impl FnOnce(&Path) -> Result<Command>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("doorbell.").tempdir()?;
        let socket = folder.path().join("blk.sock");
        let mut command = command(&socket)?;
        let mut process = Process::start(name, command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        wait_for("the server opens its socket", LIMIT, || {
            process.check_alive()?;
            Ok(socket.exists().then_some(()))
        })
        .with_context(|| format!("{name}; it said:\n{}", process.said()))?;
        Ok(Self { process, socket, _folder: folder })
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Processor time of all its threads so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            sum += Duration::from_nanos(text.split(' ').next().unwrap_or_default().parse()?);
        }
        Ok(sum)
    }

    /// Asks it to end; it must end with success.
    pub fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(LIMIT)?;
        ensure!(status.success(), "it ended with {status}; it said:\n{}", self.process.said());
        Ok(())
    }
}
