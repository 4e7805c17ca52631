//! Where a device's clients come from.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::vfio_user::listener::{Handed, ListenError, Listener, Naming};

/// Where clients come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A UNIX socket to be made at this path.
    Path(PathBuf),
    /// A connected or listening socket of this process.
    Fd(RawFd),
}

impl Endpoint {
    /// Makes the socket, or takes over the one that was handed over.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub(crate) fn open(&self, naming: Naming) -> Result<Handed, ListenError> {
        match self {
            Self::Path(path) => Ok(Handed::Listening(Listener::bind(path, naming)?)),
            Self::Fd(fd) => Listener::from_fd(take_fd(*fd)?),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Fd(fd) => write!(f, "file descriptor {fd}"),
        }
    }
}

/// Takes over a file descriptor that was inherited.
#[expect(unsafe_code, reason = "a number that a person gave becomes an owned file descriptor")]
fn take_fd(fd: RawFd) -> Result<OwnedFd, ListenError> {
    if fd <= 2 || !Path::new(&format!("/proc/self/fd/{fd}")).exists() {
        return Err(ListenError::NotOpen { fd });
    }
    // SAFETY: it is open, and whoever started us gave it to us alone; nothing in this process uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
