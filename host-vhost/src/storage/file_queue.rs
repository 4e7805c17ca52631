//! A poller's queue of a file: io_uring for what it does well, a worker for the rest.

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
        let submission = context.submit_to_ring(command, &self.registration, work);
        if writes && submission != Submission::Queued {
            shared.gate.leave();
        }
        submission
    }
}

const _: () = assert!(size_of::<Result<(), StorageError>>() <= 8);
