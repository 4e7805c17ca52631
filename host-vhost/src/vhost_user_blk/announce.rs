//! Telling the frontend that the disk's size has changed: CONFIG_CHANGE_MSG on the channel that it handed over for
//! such messages (`vhost-user.rst`, "Back-end message types"). It then reads the configuration space again and
//! interrupts its guest.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendFlags, SocketType, send};

/// The socket that SET_BACKEND_REQ_FD brought.
#[derive(Debug)]
pub(super) struct Channel(File);

impl Channel {
    /// `None`: it isn't a UNIX stream socket.
    pub(super) fn new(file: File) -> Option<Self> {
        let unix = socket_domain(&file).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && socket_type(&file).is_ok_and(|kind| kind == SocketType::STREAM);
        unix.then_some(Self(file))
    }

    /// Sends CONFIG_CHANGE_MSG, without a wish for a reply, and without waiting for a frontend that doesn't read.
    fn tell(&self) -> bool {
        let mut message = [0; 12];
        message[..4].copy_from_slice(&CONFIG_CHANGE_MSG.to_le_bytes());
        message[4..8].copy_from_slice(&VERSION.to_le_bytes());
        matches!(send(&self.0, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL), Ok(12))
    }
}

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE_MSG: u32 = 2;
/// Flags of a message: version 1.
const VERSION: u32 = 1;

/// What the frontend knows of the size, and how to tell it of another.
#[derive(Debug, Default)]
pub(super) struct Announcer(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    channel: Option<Channel>,
    /// Sectors that it has read. What it was told of may have come too early for it.
    read: Option<u64>,
}

impl Announcer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another channel, or none: then what was read goes too, since the next frontend is another one.
    pub(super) fn set_channel(&self, channel: Option<Channel>) {
        let mut state = self.state();
        if channel.is_none() {
            state.read = None;
        }
        state.channel = channel;
    }

    /// The frontend has read this capacity.
    pub(super) fn was_read(&self, sectors: u64) {
        self.state().read = Some(sectors);
    }

    /// Tells it where that isn't what it has read; one that has read nothing yet will. False where it can't be told.
    pub(super) fn announce(&self, sectors: u64) -> bool {
        let state = self.state();
        state.read.is_none_or(|read| read == sectors) || state.channel.as_ref().is_some_and(Channel::tell)
    }
}
