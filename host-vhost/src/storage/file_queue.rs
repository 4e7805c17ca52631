//! A poller's queue of a file: io_uring for what it does well, a worker for the rest.
//!
//! A file in a file system in memory (tmpfs) is the exception. It takes no request that mustn't wait, so io_uring
//! would hand each one to a thread of the kernel, which costs far more than the copy that it makes: 30 us instead of
//! 2 us for 4 KiB. Such transfers are made at once, by a system call.

#![expect(unsafe_code, reason = "lets the kernel copy between the file and guest memory")]

use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::command::{Operation, StorageCommand, Submission};
use super::file::FileShared;
use super::ring::Registration;
use super::slots::{RingKind, RingWork};
use super::worker::WorkerPool;
use super::{IoContext, StorageError};

/// See the module.
#[derive(Debug)]
pub struct FileQueue {
    shared: Arc<FileShared>,
    registration: Registration,
    helpers: Arc<WorkerPool>,
}

impl FileQueue {
    pub(super) fn new(shared: Arc<FileShared>, registration: Registration, helpers: Arc<WorkerPool>) -> Self {
        Self { shared, registration, helpers }
    }

    #[inline]
    pub(super) fn submit(&mut self, context: &mut IoContext, command: &StorageCommand<'_>) -> Submission {
        let shared = &*self.shared;
        if let Err(error) = shared.limits.check(command) {
            return Submission::Complete(Err(error));
        }
        let kind = match command.operation {
            Operation::Flush => {
                if let Err(error) = shared.lost_flush.check() {
                    return Submission::Complete(Err(error));
                }
                RingKind::Flush
            }
            _ if command.len_bytes == 0 => return Submission::Complete(Ok(())),
            Operation::Read => RingKind::Read,
            Operation::Write { fua } => RingKind::Write { fua },
            _ => return context.submit_to_worker(command, &self.helpers),
        };
        if kind != RingKind::Flush && !shared.takes(command.offset_bytes, command.segments) {
            return context.submit_to_worker(command, &self.helpers);
        }
        let writes = matches!(kind, RingKind::Write { .. });
        if writes && !shared.gate.try_enter() {
            return Submission::Busy;
        }
        let work = RingWork {
            file: self.registration.file,
            kind,
            offset_bytes: command.offset_bytes,
            len_bytes: command.len_bytes,
        };
        if shared.in_memory && self.transferred(command) {
            if writes {
                shared.gate.leave();
            }
            return Submission::Complete(Ok(()));
        }
        let submission = context.submit_to_ring(command, &self.registration, work);
        if writes && submission != Submission::Queued {
            shared.gate.leave();
        }
        submission
    }

    /// Makes a transfer at once. False where it didn't go through whole, for whatever reason: the ring does it again.
    fn transferred(&self, command: &StorageCommand<'_>) -> bool {
        let (list, file) = (command.segments, self.shared.as_raw_fd());
        let (Ok(count), Ok(offset)) = (list.len().try_into(), command.offset_bytes.try_into()) else {
            return false;
        };
        let moved = match command.operation {
            // SAFETY: the segments are writable and alive until the command is answered (contract of
            // `StorageCommand::new`), which is after this call.
            Operation::Read => unsafe { libc::preadv(file, list.as_ptr(), count, offset) },
            // SAFETY: the same, and readable.
            Operation::Write { fua: false } => unsafe { libc::pwritev(file, list.as_ptr(), count, offset) },
            _ => return false,
        };
        u64::try_from(moved).is_ok_and(|moved| moved == command.len_bytes)
    }
}

const _: () = assert!(size_of::<Result<(), StorageError>>() <= 8);
