//! Threads of a device. Their log lines say whose they are, which matters where a process has many.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that logs for the device of the thread that starts it.
pub(crate) fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let device = tracing::Span::current();
    Builder::new().name(name.into()).spawn(move || device.in_scope(body))
}
