//! The device under test: ours, behind a server of its own.
//!
//! With `DOORBELL_TEST_DEVICE=emulated` in the environment it is QEMU's own controller instead. That judges
//! the tests: what fails on both devices is likely to be a fault of the test.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::doorbell::Server;
use crate::nvme::Controller;
use crate::qemu::{Device, blank_image};

/// The size of the namespace that [`Subject::start`] makes.
pub const DISK_BYTES: u64 = 64 << 20;

/// A device under test and what it lives on.
#[derive(Debug)]
pub struct Subject {
    device: Device,
    server: Option<Server>,
    _folder: TempDir,
}

impl Subject {
    /// A device with one namespace of 64 MiB and blocks of 512 bytes.
    pub fn start() -> Result<Self> {
        Self::start_with("")
    }

    /// The same with more arguments for `doorbell serve`.
    pub fn start_with(arguments: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        if emulated() {
            let device = Device::emulated(&blank_image(folder.path(), DISK_BYTES)?);
            return Ok(Self { device, server: None, _folder: folder });
        }
        let server = Server::start(&format!("--ram 64M {arguments}"))?;
        Ok(Self { device: server.device(), server: Some(server), _folder: folder })
    }

    /// A device on this raw image.
    pub fn start_on(image: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        if emulated() {
            return Ok(Self { device: Device::emulated(image), server: None, _folder: folder });
        }
        let server = Server::start(&format!("--file {}", image.display()))?;
        Ok(Self { device: server.device(), server: Some(server), _folder: folder })
    }

    /// The device for a machine.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// A machine without a guest, its controller found and not yet enabled.
    pub fn controller(&self) -> Result<Controller> {
        Controller::start(&self.device)
    }

    /// The same, enabled, with admin queues of 32 entries.
    pub fn enabled(&self) -> Result<Controller> {
        Controller::start_enabled(&self.device)
    }

    /// The server; there is none behind QEMU's own device.
    pub fn server(&self) -> Result<&Server> {
        self.server.as_ref().context("this test needs our own server")
    }

    /// Ends the server, which must have nothing to complain about. Call it when the machine is gone.
    pub fn finish(self) -> Result<()> {
        self.server.map_or(Ok(()), |server| server.stop().map(drop))
    }
}

/// Whether QEMU's own controller stands in for ours. Few tests ask: those of things that it does
/// differently or not at all.
#[must_use]
pub fn emulated() -> bool {
    std::env::var("DOORBELL_TEST_DEVICE").is_ok_and(|device| device == "emulated")
}
