//! One NVMe device: what its threads share, and the control thread itself.
//!
//! A device has one control thread, which serves the vfio-user client and owns the core's controller, and one
//! queue group on each poller.

mod changes;
mod config;
mod control;
mod flush;
mod ioeventfd;
mod model;
mod namespaces;
mod report;
mod server;
mod shared;
mod state;
mod upgrade;

use crossbeam_channel::Sender;

pub use config::{DeviceConfig, DoorbellMode, MDTS_RULE, mdts, parse_mdts};
pub use flush::flush_all;
pub use namespaces::Opened;
pub use server::{ServeError, Server};
pub use shared::{DeviceShared, Storages};
pub use upgrade::Engines;

use crate::ctl::protocol::{Answer, Command};
pub use crate::endpoint::Endpoint;
use crate::poller::FromGroup;

/// I/O queue pairs of a device at most.
pub const MAX_QUEUES: usize = 64;
/// Commands in flight in one queue group at most.
pub const MAX_COMMANDS: usize = 1024;
/// Namespaces of a device at most (NN).
pub const MAX_NAMESPACES: usize = 32;
/// Queue groups, and so poller threads, of a device at most.
pub const MAX_GROUPS: usize = 16;

/// What a device's control thread is told.
#[derive(Debug)]
pub enum ControlMail {
    /// By one of its groups.
    Group {
        /// The group's index.
        group: u16,
        /// What it says.
        message: FromGroup,
    },
    /// A doorbell of the admin queue was written without a message.
    AdminDoorbell,
    /// By a person at the control socket.
    Command {
        /// What to do.
        command: Command,
        /// Where the answer goes.
        reply: Sender<Result<Answer, String>>,
    },
    /// By a person at the control socket: a namespace whose storage is open already.
    Add {
        /// The namespace.
        opened: Box<Opened>,
        /// Where the answer goes.
        reply: Sender<Result<Answer, String>>,
    },
    /// By a person at the control socket: engines to go on with.
    Upgrade {
        /// The engines.
        to: Box<Engines>,
        /// Where the answer goes.
        reply: Sender<Result<Answer, String>>,
    },
    /// By the thread that flushes the storages: whether all went well.
    Flushed(bool),
    /// Detach the client, flush, end.
    Stop,
}
