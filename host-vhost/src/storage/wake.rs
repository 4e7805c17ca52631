//! Waking a poller that sleeps: an eventfd that the ring and worker threads write.
//!
//! The ring writes it at every completion (the kernel does, cheaply). A worker writes it only while
//! the poller says that it sleeps. The usual two-sided protocol: the poller stores `sleeping`, then
//! looks for completions; the worker publishes a completion, then looks at `sleeping`; a SeqCst
//! fence between the two steps on each side, so that at least one sees the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::EventfdFlags;

use super::OpenError;

#[derive(Debug)]
pub(super) struct Wake {
    eventfd: OwnedFd,
    sleeping: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> Result<Self, OpenError> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| OpenError::System { what: "create an eventfd", source: errno.into() })?;
        Ok(Self { eventfd, sleeping: AtomicBool::new(false) })
    }

    /// The poller is about to look for completions one last time, and to sleep if there are none.
    pub(super) fn prepare_sleep(&self) {
        self.drain();
        self.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `notify`.
        fence(Ordering::SeqCst);
    }

    /// The poller is awake.
    pub(super) fn finish_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        self.drain();
    }

    /// A worker has published a completion.
    pub(super) fn notify(&self) {
        // Pairs with the fence in `prepare_sleep`.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            // Can only fail with EAGAIN, when the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }

    fn drain(&self) {
        // EAGAIN: nothing to drain.
        let _ = rustix::io::read(&self.eventfd, &mut [0_u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
