//! The control socket beside a device's socket: `SOCKET.ctl`, mode 0600, one JSON object a line.
//!
//! A request is `{"version": 1, "command": ...}`, a reply `{"version": 1, "ok": ...}` or
//! `{"version": 1, "error": "..."}`. Unknown versions and commands are answered with an error.

pub mod client;
pub mod protocol;
pub mod server;

use std::path::{Path, PathBuf};

/// The control socket of the device at `socket`.
#[must_use]
pub fn path_of(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".ctl");
    name.into()
}
