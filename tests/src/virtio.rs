//! `doorbell serve --vhost-user`, which a test may kill and start again under a running guest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::doorbell::program;
use crate::process::{Process, wait_for};
use crate::qemu::{Device, blank_image};

const LIMIT: Duration = Duration::from_secs(60);

/// A running server of one disk in a file. Dropping it kills it.
#[derive(Debug)]
pub struct VirtioServer {
    process: Process,
    socket: PathBuf,
    disk: String,
    _folder: TempDir,
}

impl VirtioServer {
    /// With an image of `len_bytes` zero bytes.
    pub fn start(len_bytes: u64) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("doorbell.").tempdir()?;
        let image = blank_image(folder.path(), len_bytes)?;
        Self::start_in(folder, format!("file={}", image.display()))
    }

    /// Of an image that is there.
    pub fn start_on(image: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("doorbell.").tempdir()?;
        Self::start_in(folder, format!("file={}", image.display()))
    }

    /// Another one on the same image, which it gets when this one lets go of it.
    pub fn start_incoming(&self) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("doorbell.").tempdir()?;
        Self::start_in(folder, format!("{},incoming", self.disk))
    }

    fn start_in(folder: TempDir, disk: String) -> Result<Self> {
        let socket = folder.path().join("blk.sock");
        let process = serve(&socket, &disk)?;
        Ok(Self { process, socket, disk, _folder: folder })
    }

    /// The device for a machine.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::VhostUser(self.socket.clone())
    }

    /// SIGKILL, and another process on the same socket and image.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.process.child().kill()?;
        self.process.wait(LIMIT)?;
        // The socket that is left is nobody's; the new one takes its place.
        std::fs::remove_file(&self.socket)?;
        self.process = serve(&self.socket, &self.disk)?;
        Ok(())
    }

    /// Asks it to end; it must end with success.
    pub fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(LIMIT)?;
        ensure!(status.success(), "doorbell serve ended with {status}; it said:\n{}", self.process.said());
        Ok(())
    }
}

fn serve(socket: &Path, disk: &str) -> Result<Process> {
    let mut command = Command::new(program()?);
    command.arg("serve").arg("--vhost-user").arg(socket).arg("--namespace").arg(disk);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Process::start("doorbell serve", &mut command)?;
    wait_for("the server opens its socket", LIMIT, || {
        process.check_alive()?;
        Ok(socket.exists().then_some(()))
    })
    .with_context(|| format!("doorbell serve --vhost-user; it said:\n{}", process.said()))?;
    Ok(process)
}
