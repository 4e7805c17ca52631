//! What a poller asks of a storage: one [`StorageCommand`] at a time, answered by a [`Submission`].
//!
//! Everything is bytes. Ranges that a guest chose have been checked by the core; they are checked
//! once more here against the size of the storage, because a namespace can shrink under a guest.
//! Namespaces, blocks and NVMe status live elsewhere.

#![expect(unsafe_code, reason = "declares the one unsafe promise of this module tree: segments stay alive")]

use super::error::StorageError;

/// Names a command in flight. Chosen by the caller and handed back by
/// [`IoContext::reap`](super::IoContext::reap); unique among the commands in flight of one context.
pub type Token = u64;

/// What to do with the range of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Medium to segments. A segment whose base is null is a bit bucket: its length is skipped.
    Read,
    /// Segments to medium.
    Write {
        /// Durable after a power failure when it completes (Force Unit Access).
        fua: bool,
    },
    /// Makes every write that completed before it was submitted, on any queue of the storage,
    /// durable after a power failure. Has no range.
    Flush,
    /// The range reads zero afterwards. Moves no data.
    WriteZeroes {
        /// The range may be given back to whoever provides the medium.
        deallocate: bool,
        /// As for a write.
        fua: bool,
    },
    /// A hint that the range isn't needed any more. Afterwards each byte of it reads zero or what
    /// it held before; always zero if [`Storage::deallocate_reads_zero`](super::Storage::deallocate_reads_zero).
    Deallocate,
    /// Medium against segments: [`StorageError::Miscompare`] if a byte differs.
    Compare,
    /// Reads the medium and moves nothing.
    Verify,
}

impl Operation {
    /// Whether the operation carries segments.
    #[must_use]
    pub const fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. } | Self::Compare)
    }

    /// Whether a read-only storage refuses the operation.
    #[must_use]
    pub const fn changes_medium(self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes { .. } | Self::Deallocate)
    }
}

/// One command. The segments are borrowed only until `submit` returns (it copies the list), what
/// they point at must live until the command has completed: see [`StorageCommand::new`].
#[derive(Debug, Clone, Copy)]
pub struct StorageCommand<'a> {
    pub(super) token: Token,
    pub(super) operation: Operation,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) segments: &'a [libc::iovec],
}

impl<'a> StorageCommand<'a> {
    /// A command that moves data. The lengths of `segments` must add up to `len_bytes`, or the
    /// command is answered with [`StorageError::BadSegments`].
    ///
    /// # Safety
    ///
    /// Every segment, but for null ones of a read, must be memory that stays mapped, readable (and
    /// for a read writable) until the command has completed: `submit` answered
    /// [`Submission::Complete`] or [`Submission::Busy`], or the token was reaped, or the
    /// [`IoContext`](super::IoContext) was dropped. No reference may point into it meanwhile. A guest may write it at any time:
    /// it is only ever copied raw, by this process or by the kernel.
    #[must_use]
    pub const unsafe fn new(
        token: Token,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        segments: &'a [libc::iovec],
    ) -> Self {
        Self { token, operation, offset_bytes, len_bytes, segments }
    }

    /// A command without segments: flush, write zeroes, deallocate, verify. Any operation that moves
    /// data is answered with [`StorageError::BadSegments`], unless its length is 0.
    #[must_use]
    pub const fn without_data(
        token: Token,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> StorageCommand<'static> {
        StorageCommand { token, operation, offset_bytes, len_bytes, segments: &[] }
    }

    /// Names it.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// What to do.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// First byte of the medium.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The pieces of memory; none where no data moves.
    #[must_use]
    pub const fn segments(&self) -> &'a [libc::iovec] {
        self.segments
    }

    /// Refuses what no storage of this size may do, before anything is touched.
    #[inline]
    pub(super) fn check(&self, size_bytes: u64, read_only: bool) -> Result<(), StorageError> {
        if matches!(self.operation, Operation::Flush) {
            return Ok(());
        }
        match self.offset_bytes.checked_add(self.len_bytes) {
            Some(end) if end <= size_bytes => {}
            _ => return Err(StorageError::OutOfRange),
        }
        if read_only && self.operation.changes_medium() {
            return Err(StorageError::ReadOnly);
        }
        if self.operation.moves_data() {
            let null_allowed = matches!(self.operation, Operation::Read);
            let mut total = 0_u64;
            for segment in self.segments {
                if segment.iov_base.is_null() && !null_allowed {
                    return Err(StorageError::BadSegments);
                }
                total = total.checked_add(segment.iov_len as u64).ok_or(StorageError::BadSegments)?;
            }
            if total != self.len_bytes {
                return Err(StorageError::BadSegments);
            }
        }
        Ok(())
    }
}

/// What became of a submitted command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// Done already; the token will not be reaped.
    Complete(Result<(), StorageError>),
    /// Under way; the token will be reaped exactly once.
    Queued,
    /// Nothing happened: no slot is free, too much waits for a worker, or a write must not overtake a
    /// read-modify-write. Submit again in the next round. It need not be one of this context's own
    /// commands that is in the way, so don't sleep on it.
    Busy,
}
