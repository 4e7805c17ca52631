//! From one command to storage operations and back.
//!
//! Most commands are one operation that RAM or null storage carries out at once; those never leave the stack. A
//! command that its storage queues becomes a [`Flight`], and so does one of several operations (a flush of all
//! namespaces, ranges to deallocate), which are done one after the other.

use doorbell_core::command::{IoCommand, Operation, Range, Transfer};
use doorbell_core::data::Segment;
use doorbell_core::memory::{Access, DmaMemory};
use doorbell_core::spec::status::Status;

use super::flight::{Bounce, BounceBuffer, Flight, Progress, range_of, status_of};
use crate::memory::{MemoryView, ResolveError};
use crate::storage::{
    IoContext, Operation as StorageOperation, StorageCommand, StorageError, StorageQueue, Submission,
};

/// A place for one command's pieces of guest memory, kept by the thread.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pieces: Vec<libc::iovec>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { pieces: Vec::with_capacity(2048) }
    }
}

/// What a step of a command needs.
#[derive(Debug)]
pub(super) struct Work<'a> {
    /// The storages' queues; that of namespace `n` at `n - 1`.
    pub(super) queues: &'a mut [Option<StorageQueue>],
    pub(super) view: &'a MemoryView,
    pub(super) context: &'a mut IoContext,
    pub(super) scratch: &'a mut Scratch,
}

/// Where a command stands after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has ended.
    Done(Status),
    /// A storage works on it.
    Queued,
    /// Its storage has no room: try again when something has completed.
    Busy,
}

impl Work<'_> {
    /// Starts a command that is just come; `None` where it isn't a single operation or needs to be remembered
    /// in another way, and has to become a [`Flight`] first.
    #[inline]
    pub(super) fn start(&mut self, command: &IoCommand, token: u64) -> Option<Step> {
        let (operation, transfer, access) = moves_data(&command.operation)?;
        let Some(Some(queue)) = self.queues.get_mut((command.nsid as usize).wrapping_sub(1)) else {
            return Some(Step::Done(Status::NAMESPACE_NOT_READY));
        };
        match resolve(transfer, self.view, access, &mut self.scratch.pieces) {
            Ok(()) => {}
            Err(NotResolved::Refused(status)) => return Some(Step::Done(status)),
            Err(NotResolved::MessageOnly) => return None,
        }
        let submission = submit_pieces(queue, self.context, token, operation, transfer, &self.scratch.pieces);
        Some(match submission {
            Submission::Complete(Ok(())) => Step::Done(Status::SUCCESS),
            Submission::Complete(Err(error)) => Step::Done(failed(error, command)),
            Submission::Queued => Step::Queued,
            Submission::Busy => Step::Busy,
        })
    }

    /// Starts a flight's next operation, and the ones after it as long as they end at once.
    pub(super) fn advance(&mut self, flight: &mut Flight, token: u64) -> Step {
        loop {
            match self.submit_next(flight, token) {
                Err(status) => return Step::Done(status),
                Ok(Submission::Queued) => return Step::Queued,
                Ok(Submission::Busy) => return Step::Busy,
                Ok(Submission::Complete(result)) => {
                    if let Some(status) = self.operation_ended(flight, result) {
                        return Step::Done(status);
                    }
                }
            }
        }
    }

    /// An operation of a flight has ended: the flight's status, or `None` where more is to be done.
    pub(super) fn operation_ended(
        &self,
        flight: &mut Flight,
        result: Result<(), StorageError>,
    ) -> Option<Status> {
        match result {
            Err(error) => Some(failed(error, &flight.command)),
            Ok(()) if !matches!(flight.progress, Progress::Single) => None,
            Ok(()) => Some(match flight.bounce.take() {
                Some(bounce) if matches!(flight.command.operation, Operation::Read(_)) => {
                    bounce.deliver(self.view)
                }
                _ => Status::SUCCESS,
            }),
        }
    }

    /// Submits a flight's next operation; `Err` ends the flight.
    fn submit_next(&mut self, flight: &mut Flight, token: u64) -> Result<Submission, Status> {
        let index = (flight.command.nsid as usize).wrapping_sub(1);
        match &mut flight.progress {
            Progress::Single => {
                let queue = self.queues.get_mut(index).and_then(Option::as_mut);
                let queue = queue.ok_or(Status::NAMESPACE_NOT_READY)?;
                submit_single(flight, queue, self.view, token, self.context, self.scratch)
            }
            Progress::FlushAll { next } => loop {
                match self.queues.get_mut(*next) {
                    None => return Err(Status::SUCCESS),
                    Some(None) => *next += 1,
                    Some(Some(queue)) => {
                        let flush = StorageCommand::without_data(token, StorageOperation::Flush, 0, 0);
                        let submission = queue.submit(self.context, &flush);
                        if submission != Submission::Busy {
                            *next += 1;
                        }
                        return Ok(submission);
                    }
                }
            },
            Progress::Deallocate(ranges) => {
                let before = *ranges;
                let Some(range) = ranges.next_range(self.view) else { return Err(Status::SUCCESS) };
                let Range { offset_bytes, len_bytes } = range?;
                let queue = self.queues.get_mut(index).and_then(Option::as_mut);
                let queue = queue.ok_or(Status::NAMESPACE_NOT_READY)?;
                let operation = StorageOperation::Deallocate;
                let command = StorageCommand::without_data(token, operation, offset_bytes, len_bytes);
                let submission = queue.submit(self.context, &command);
                if submission == Submission::Busy {
                    *ranges = before;
                }
                Ok(submission)
            }
        }
    }

    /// A command comes soon.
    #[inline]
    pub(super) fn prefetch(&self, command: &IoCommand) {
        if let Operation::Read(transfer) = &command.operation
            && let Some(Some(queue)) = self.queues.get((command.nsid as usize).wrapping_sub(1))
        {
            queue.prefetch(transfer.offset_bytes, u64::from(transfer.len_bytes));
        }
    }
}

/// What the guest is told of a storage's error, and the log with it.
#[cold]
fn failed(error: StorageError, command: &IoCommand) -> Status {
    if matches!(error, StorageError::Io(_) | StorageError::NoSpace) {
        crate::rate_limit::warn_sometimes(|| {
            tracing::warn!(nsid = command.nsid, %error, "storage error");
        });
    }
    status_of(error, &command.operation)
}

/// The storage operation of a command that moves data.
#[inline]
fn moves_data(operation: &Operation) -> Option<(StorageOperation, Transfer, Access)> {
    match *operation {
        Operation::Read(transfer) => Some((StorageOperation::Read, transfer, Access::Write)),
        Operation::Write { transfer, fua } => Some((StorageOperation::Write { fua }, transfer, Access::Read)),
        Operation::Compare(transfer) => Some((StorageOperation::Compare, transfer, Access::Read)),
        _ => None,
    }
}

/// Submits a command that is one storage operation.
fn submit_single(
    flight: &mut Flight,
    queue: &mut StorageQueue,
    view: &MemoryView,
    token: u64,
    context: &mut IoContext,
    scratch: &mut Scratch,
) -> Result<Submission, Status> {
    let Some((operation, transfer, access)) = moves_data(&flight.command.operation) else {
        let Range { offset_bytes, len_bytes } = range_of(&flight.command.operation);
        let operation = match flight.command.operation {
            Operation::WriteZeroes { deallocate, fua, .. } => {
                StorageOperation::WriteZeroes { deallocate, fua }
            }
            Operation::Verify(_) => StorageOperation::Verify,
            _ => StorageOperation::Flush,
        };
        let command = StorageCommand::without_data(token, operation, offset_bytes, len_bytes);
        return Ok(queue.submit(context, &command));
    };
    if flight.bounce.is_none() {
        match resolve(transfer, view, access, &mut scratch.pieces) {
            Ok(()) => {}
            Err(NotResolved::Refused(status)) => return Err(status),
            Err(NotResolved::MessageOnly) => match BounceBuffer::new(transfer.len_bytes as usize) {
                Some(buffer) => flight.bounce = Some(Bounce::new(buffer, transfer, view, access)?),
                None => return Ok(Submission::Busy),
            },
        }
    }
    if let Some(bounce) = &mut flight.bounce {
        scratch.pieces.clear();
        let base = bounce.buffer.as_mut_ptr().cast();
        scratch.pieces.push(libc::iovec { iov_base: base, iov_len: bounce.buffer.len() });
    }
    Ok(submit_pieces(queue, context, token, operation, transfer, &scratch.pieces))
}

/// Lends guest memory to a storage.
#[inline]
#[expect(unsafe_code, reason = "the one place where guest memory is lent to a storage")]
fn submit_pieces(
    queue: &mut StorageQueue,
    context: &mut IoContext,
    token: u64,
    operation: StorageOperation,
    transfer: Transfer,
    pieces: &[libc::iovec],
) -> Submission {
    let len_bytes = u64::from(transfer.len_bytes);
    // SAFETY: every piece lies in a mapping of a snapshot that the group's view keeps until nothing is in flight
    // (`GroupRunner::release_retired`), or in a flight's own bounce buffer, which lives until the operation has
    // ended.
    let command = unsafe { StorageCommand::new(token, operation, transfer.offset_bytes, len_bytes, pieces) };
    queue.submit(context, &command)
}

/// Why a command's guest memory has no pieces in this process.
enum NotResolved {
    /// The command ends with that status.
    Refused(Status),
    /// It has to be copied by messages.
    MessageOnly,
}

impl From<ResolveError> for NotResolved {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Dma(error) => Self::Refused(error.into()),
            ResolveError::MessageOnly => Self::MessageOnly,
        }
    }
}

/// Walks a command's data pointer and finds its pieces in this process.
#[inline]
fn resolve(
    mut transfer: Transfer,
    view: &MemoryView,
    access: Access,
    pieces: &mut Vec<libc::iovec>,
) -> Result<(), NotResolved> {
    pieces.clear();
    while let Some(segment) = transfer.segments.next_segment(view) {
        let Segment { address, len_bytes, bit_bucket } = segment.map_err(NotResolved::Refused)?;
        if bit_bucket {
            let iov_base = std::ptr::null_mut();
            pieces.push(libc::iovec { iov_base, iov_len: len_bytes as usize });
        } else {
            view.resolve(address, len_bytes as usize, access, &mut |base, len| {
                pieces.push(libc::iovec { iov_base: base.cast(), iov_len: len });
            })?;
        }
    }
    Ok(())
}

impl Bounce {
    /// `buffer` for `transfer`; for a write with the guest's data in it.
    #[cold]
    fn new(
        mut buffer: BounceBuffer,
        mut transfer: Transfer,
        view: &MemoryView,
        access: Access,
    ) -> Result<Self, Status> {
        let mut segments = Vec::new();
        while let Some(segment) = transfer.segments.next_segment(view) {
            segments.push(segment?);
        }
        if access == Access::Read {
            let mut rest = &mut buffer[..];
            for segment in &segments {
                let (piece, later) = rest.split_at_mut(segment.len_bytes as usize);
                view.read(segment.address, piece)?;
                rest = later;
            }
        }
        Ok(Self { buffer, segments })
    }

    /// Writes what was read to guest memory.
    fn deliver(&self, view: &MemoryView) -> Status {
        let mut rest = &self.buffer[..];
        for segment in &self.segments {
            let (piece, later) = rest.split_at(segment.len_bytes as usize);
            if !segment.bit_bucket && view.write(segment.address, piece).is_err() {
                return Status::DATA_TRANSFER_ERROR;
            }
            rest = later;
        }
        Status::SUCCESS
    }
}
