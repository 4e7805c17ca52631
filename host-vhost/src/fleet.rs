//! The devices of one process: started together, ended together, otherwise strangers to each other.
//!
//! Each device has its own socket, control socket, control thread and pollers; they share the process's limits. A
//! client that fails, or a device that ends because its one client has gone, touches no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use thiserror::Error;

use crate::device::{DeviceConfig, ServeError, Server};
use crate::endpoint::Endpoint;
use crate::vhost_user_blk::{BlkConfig, BlkServeError, BlkServer};

/// A device to be served.
#[derive(Clone, Debug)]
pub enum Device {
    /// An NVMe controller over vfio-user.
    Nvme(DeviceConfig),
    /// A virtio disk over vhost-user.
    Virtio(BlkConfig),
}

/// Why a device can't be served.
#[derive(Debug, Error)]
pub enum StartError {
    /// An NVMe controller.
    #[error(transparent)]
    Nvme(#[from] ServeError),
    /// A virtio disk.
    #[error(transparent)]
    Virtio(#[from] BlkServeError),
}

impl Device {
    /// Starts it.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left behind.
    pub fn start(self) -> Result<Running, StartError> {
        // Of the level that is never left out: it goes before the device's log lines.
        let _device = tracing::error_span!("device", at = %self.endpoint()).entered();
        Ok(match self {
            Self::Nvme(config) => Running::Nvme(Server::start(config)?),
            Self::Virtio(config) => Running::Virtio(BlkServer::start(config)?),
        })
    }

    /// Where its clients come from.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        match self {
            Self::Nvme(config) => &config.endpoint,
            Self::Virtio(config) => &config.endpoint,
        }
    }
}

/// A device that is served. Dropping it stops it.
#[derive(Debug)]
pub enum Running {
    /// An NVMe controller.
    Nvme(Server),
    /// A virtio disk.
    Virtio(BlkServer),
}

impl Running {
    /// What a person is told: where it is served, and how to attach a VM.
    #[must_use]
    pub fn announcement(&self) -> String {
        match self {
            Self::Nvme(server) => server.announcement(),
            Self::Virtio(server) => server.announcement(),
        }
    }

    /// Whether it has ended by itself: the one client that was handed over has gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Nvme(server) => server.is_over(),
            Self::Virtio(server) => server.is_over(),
        }
    }
}

/// SIGTERM and SIGINT, noticed from the moment this is made.
#[derive(Debug)]
pub struct StopSignals(Arc<AtomicBool>);

impl StopSignals {
    /// From now on they don't end the process.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Self(stop))
    }

    /// Whether one has come.
    #[must_use]
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Devices that are served.
#[derive(Debug, Default)]
pub struct Fleet {
    running: Vec<Running>,
}

impl Fleet {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        // A client may lend hundreds of descriptors; none may take what another needs.
        let limit = getrlimit(Resource::Nofile);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
        Self::default()
    }

    /// Starts one more.
    ///
    /// # Errors
    /// See [`StartError`]; the others go on.
    pub fn start(&mut self, device: Device) -> Result<&Running, StartError> {
        let running = device.start()?;
        Ok(self.running.push_mut(running))
    }

    /// Serves until a signal comes, or until every device has ended by itself; then ends all.
    pub fn run_until(self, stop: &StopSignals) {
        while !stop.came() && !self.running.iter().all(Running::is_over) {
            // A signal ends the sleep.
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }
}

impl Drop for Fleet {
    /// All at once: one whose storage hangs keeps no other from its end.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for running in self.running.drain(..) {
                scope.spawn(move || drop(running));
            }
        });
    }
}
