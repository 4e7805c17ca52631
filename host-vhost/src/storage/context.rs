//! What one poller thread shares among all its storage queues.
//!
//! An [`IoContext`] owns the slots of commands in flight, the thread's single io_uring, the channel on
//! which worker threads answer, and the eventfd that wakes the poller. Nothing here is written by
//! another poller.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::Receiver;

use super::command::{StorageCommand, Submission};
use super::file::FileShared;
use super::ring::{Registration, Ring};
use super::slots::{RingWork, Slots, Work};
use super::worker::{Replies, Reply, Request, WorkerPool};
use super::{OpenError, StorageError, Token};

/// Limits of an [`IoContext`]. All memory is taken when it is made.
#[derive(Debug, Clone, Copy)]
pub struct IoContextConfig {
    /// Commands in flight over all queues; one more is answered with [`Submission::Busy`].
    pub slots: u32,
    /// Segments of one command; more are answered with [`StorageError::BadSegments`] by storages that
    /// queue commands. At most 1024, which is the kernel's limit.
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
    id: u64,
    config: IoContextConfig,
    slots: Slots,
    /// Made when the first file is opened, so that a poller of RAM namespaces has none.
    ring: Option<Ring>,
    replies: Arc<Replies>,
    answered: Receiver<Reply>,
    in_workers: u32,
    in_ring: u32,
}

impl IoContext {
    /// For one poller thread.
    ///
    /// # Errors
    ///
    /// [`OpenError::System`] if the eventfd can't be had.
    pub fn new(config: IoContextConfig) -> Result<Self, OpenError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let (replies, answered) = Replies::new(config.slots)?;
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            config,
            slots: Slots::new(config.slots, config.max_segments),
            ring: None,
            replies: Arc::new(replies),
            answered,
            in_workers: 0,
            in_ring: 0,
        })
    }

    /// Hands everything submitted since the last call to the kernel: one `io_uring_enter`, or none if
    /// there is nothing. Call it once after a batch of submissions, and in every round in which
    /// commands are in flight, since [`Self::reap`] may continue a short transfer.
    #[inline]
    pub fn submit_batch(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.submit_batch();
        }
    }

    /// Passes every command that has completed to `sink`, without a system call. Returns how many.
    #[inline]
    pub fn reap(&mut self, sink: &mut impl FnMut(Token, Result<(), StorageError>)) -> usize {
        let mut reaped = 0;
        if self.in_ring > 0
            && let Some(ring) = &mut self.ring
        {
            let from_ring = ring.reap(&mut self.slots, sink);
            self.in_ring -= from_ring;
            reaped += from_ring as usize;
        }
        while self.in_workers > 0 {
            let Ok(reply) = self.answered.try_recv() else { break };
            self.in_workers -= 1;
            reaped += 1;
            sink(self.slots.release(reply.slot), reply.result);
        }
        reaped
    }

    /// Asks to give up on a command in flight, and says whether it was found. Best effort: it is
    /// still reaped, as [`StorageError::Cancelled`] or with its own result.
    pub fn cancel(&mut self, token: Token) -> bool {
        let Some(index) = self.slots.find(token) else { return false };
        self.cancel_slot(index);
        true
    }

    /// [`Self::cancel`] for everything in flight. Returns how many that is.
    pub fn cancel_all(&mut self) -> u32 {
        for index in 0..self.config.slots {
            self.cancel_slot(index);
        }
        self.slots.in_flight()
    }

    fn cancel_slot(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if slot.cancelled {
            return;
        }
        match slot.work {
            Work::None => {}
            Work::Worker => {
                slot.cancelled = true;
                self.replies.cancel(index);
            }
            Work::Ring(_) => {
                slot.cancelled = true;
                if let Some(ring) = &mut self.ring {
                    ring.cancel(index);
                }
            }
        }
    }

    /// Commands that will still be reaped.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_ring + self.in_workers
    }

    /// How often `io_uring_enter` was called.
    #[must_use]
    pub fn enters(&self) -> u64 {
        self.ring.as_ref().map_or(0, Ring::enters)
    }

    /// Becomes readable when a completion comes after [`Self::prepare_sleep`] returned true.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.replies.wake.as_fd()
    }

    /// Before the poller sleeps on [`Self::wake_fd`]. False means that a completion is there already:
    /// reap it instead. Either way call [`Self::finish_sleep`] afterwards.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.replies.wake.prepare_sleep();
        self.answered.is_empty() && !self.ring.as_mut().is_some_and(Ring::has_completions)
    }

    /// After the poller slept, or didn't.
    pub fn finish_sleep(&mut self) {
        self.replies.wake.finish_sleep();
    }

    /// A registered file, or `None` where there is no io_uring.
    pub(super) fn register(&mut self, file: &Arc<FileShared>) -> Option<Registration> {
        if self.ring.is_none() {
            match Ring::new(self.config.slots, self.replies.wake.as_fd()) {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => {
                    tracing::warn!(%error, "no io_uring on this machine; files are served by threads, slower");
                    return None;
                }
            }
        }
        let registered = self.ring.as_mut()?.register(self.id, file);
        registered.inspect_err(|error| tracing::warn!(%error, "io_uring can't register the file")).ok()
    }

    /// Starts a transfer or flush by io_uring.
    #[inline]
    pub(super) fn submit_to_ring(
        &mut self,
        command: &StorageCommand<'_>,
        registration: &Registration,
        work: RingWork,
    ) -> Submission {
        let Some(ring) = &mut self.ring else {
            return Submission::Complete(Err(StorageError::Unsupported));
        };
        // A queue of another context: its file has another index here, or none.
        if registration.context != self.id {
            debug_assert!(false, "a storage queue was used with a context that isn't its own");
            return Submission::Complete(Err(StorageError::Unsupported));
        }
        if !self.slots.fits(command.segments.len()) {
            return Submission::Complete(Err(StorageError::BadSegments));
        }
        let Some(index) = self.slots.take(command.token, Work::Ring(work), command.segments) else {
            return Submission::Busy;
        };
        ring.start(&mut self.slots, index);
        self.in_ring += 1;
        Submission::Queued
    }

    /// Passes a command to a worker thread.
    pub(super) fn submit_to_worker(&mut self, command: &StorageCommand<'_>, pool: &WorkerPool) -> Submission {
        if !self.slots.fits(command.segments.len()) {
            return Submission::Complete(Err(StorageError::BadSegments));
        }
        let Some(index) = self.slots.take(command.token, Work::Worker, command.segments) else {
            return Submission::Busy;
        };
        self.replies.arm(index);
        let request = Request::new(index, command, self.slots.segments(index), Arc::clone(&self.replies));
        if !pool.send(request) {
            self.slots.release(index);
            return Submission::Busy;
        }
        self.in_workers += 1;
        Submission::Queued
    }
}

impl Drop for IoContext {
    /// Cancels what is in flight and waits for it: when the context is gone, nothing of it touches
    /// guest memory.
    fn drop(&mut self) {
        self.replies.close();
        self.cancel_all();
        while self.in_flight() > 0 {
            if self.in_ring > 0 {
                if let Some(ring) = &mut self.ring {
                    ring.wait();
                }
            } else if let Ok(reply) = self.answered.recv() {
                self.in_workers -= 1;
                self.slots.release(reply.slot);
            }
            self.reap(&mut |_, _| ());
        }
    }
}
