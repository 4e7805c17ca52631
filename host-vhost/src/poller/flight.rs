//! What the host remembers of a command while its storage works on it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_core::command::{DeallocateRanges, IoCommand, Operation, Range};
use doorbell_core::data::Segment;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use crate::storage::StorageError;

/// The storage's part of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// One storage operation.
    Single,
    /// Flush of namespace after namespace; the next one's index.
    FlushAll { next: usize },
    /// Range after range.
    Deallocate(DeallocateRanges),
}

/// A command in flight; the slot of its tag is the index.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) command: IoCommand,
    pub(super) progress: Progress,
    /// When it was fetched, or 0 where its latency isn't sampled.
    pub(super) started_ns: u64,
    pub(super) bounce: Option<Bounce>,
}

/// A command that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) tag: Tag,
    pub(super) status: Status,
    pub(super) sqid: u16,
    pub(super) started_ns: u64,
}

impl Flight {
    pub(super) fn new(command: IoCommand, started_ns: u64) -> Self {
        let progress = match command.operation {
            Operation::FlushAll => Progress::FlushAll { next: 0 },
            Operation::Deallocate(ranges) => Progress::Deallocate(ranges),
            _ => Progress::Single,
        };
        Self { command, progress, started_ns, bounce: None }
    }

    /// The flight's end.
    pub(super) fn ended(&self, status: Status) -> Ended {
        Ended { tag: self.command.tag, status, sqid: self.command.sqid, started_ns: self.started_ns }
    }
}

/// The data of a command whose guest memory has no address in this process.
#[derive(Debug)]
pub(super) struct Bounce {
    pub(super) buffer: BounceBuffer,
    pub(super) segments: Vec<Segment>,
}

/// Memory of this process on account of commands whose data goes by message.
#[derive(Debug)]
pub(super) struct BounceBuffer {
    bytes: Box<[u8]>,
}

/// Bytes that all bounce buffers of the process may take: a guest chooses how many there are.
const MAX_BOUNCED_BYTES: usize = 64 << 20;

/// Bytes that they take.
static BOUNCED_BYTES: AtomicUsize = AtomicUsize::new(0);

impl BounceBuffer {
    /// `len` zeroes, or `None` while others take too much.
    pub(super) fn new(len: usize) -> Option<Self> {
        let grow = |taken: usize| taken.checked_add(len).filter(|taken| *taken <= MAX_BOUNCED_BYTES);
        BOUNCED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        Some(Self { bytes: vec![0; len].into_boxed_slice() })
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        BOUNCED_BYTES.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Deref for BounceBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for BounceBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// The kind of a storage operation, for the choice of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Other,
}

fn kind(operation: &Operation) -> Kind {
    match operation {
        Operation::Read(_) | Operation::Compare(_) | Operation::Verify(_) => Kind::Read,
        Operation::Write { .. } | Operation::WriteZeroes { .. } => Kind::Write,
        Operation::Flush | Operation::FlushAll | Operation::Deallocate(_) => Kind::Other,
    }
}

/// What the guest is told of a storage's error.
pub(super) fn status_of(error: StorageError, operation: &Operation) -> Status {
    match error {
        StorageError::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
        StorageError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        StorageError::NoSpace => Status::CAPACITY_EXCEEDED,
        StorageError::Miscompare => Status::COMPARE_FAILURE.dnr(),
        StorageError::Cancelled => Status::ABORT_REQUESTED,
        // Guest memory that isn't there: its file was truncated.
        StorageError::Io(libc::EFAULT) => Status::DATA_TRANSFER_ERROR,
        StorageError::Io(_) => match kind(operation) {
            Kind::Read => Status::UNRECOVERED_READ_ERROR,
            Kind::Write => Status::WRITE_FAULT,
            Kind::Other => Status::INTERNAL_ERROR,
        },
        StorageError::Unsupported | StorageError::BadSegments => Status::INTERNAL_ERROR.dnr(),
    }
}

/// The range of an operation that has just one.
pub(super) fn range_of(operation: &Operation) -> Range {
    match operation {
        Operation::Read(transfer) | Operation::Write { transfer, .. } | Operation::Compare(transfer) => {
            Range { offset_bytes: transfer.offset_bytes, len_bytes: u64::from(transfer.len_bytes) }
        }
        Operation::Verify(range) | Operation::WriteZeroes { range, .. } => *range,
        Operation::Flush | Operation::FlushAll | Operation::Deallocate(_) => {
            Range { offset_bytes: 0, len_bytes: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounce_buffers_take_a_bounded_amount_of_memory() {
        let mut buffers = Vec::new();
        while let Some(buffer) = BounceBuffer::new(1 << 20) {
            buffers.push(buffer);
            assert!(buffers.len() <= MAX_BOUNCED_BYTES >> 20);
        }
        assert!(!buffers.is_empty());
        buffers.pop();
        assert!(BounceBuffer::new(1 << 20).is_some());
    }
}
