//! Data pointers: the pieces of guest memory that a command names by PRP entries or SGL descriptors.
//!
//! [`Segments`] walks them lazily: every entry is read from guest memory exactly once, neighbouring pieces are
//! merged, and the number of descriptors is bounded. Read first: NVM Express Base Specification 2.0,
//! sections 4.1.1 (PRP) and 4.1.2 (SGL).

mod cursor;
mod prp;
mod sgl;

pub use cursor::{DataReader, DataWriter};

use crate::memory::{DmaError, DmaMemory};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use prp::PrpWalk;
use sgl::SglWalk;

pub use sgl::MAX_SGL_DESCRIPTORS;

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From guest memory to the controller (Write, Compare).
    ToController,
    /// From the controller to guest memory (Read, Identify).
    ToGuest,
}

/// One contiguous piece of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest address; meaningless for a bit bucket.
    pub address: u64,
    /// Bytes, at least 1.
    pub len_bytes: u32,
    /// The bytes are read from the medium and dropped (SGL Bit Bucket descriptor).
    pub bit_bucket: bool,
}

impl Segment {
    fn touches(&self, next: &Self) -> bool {
        self.bit_bucket == next.bit_bucket
            && (self.bit_bucket || self.address.checked_add(u64::from(self.len_bytes)) == Some(next.address))
    }
}

/// A data pointer as it stood in its command: what a walk starts from, in plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataStart {
    /// Two Physical Region Page entries.
    Prp {
        /// PRP1.
        first: u64,
        /// PRP2: a page or a list.
        second: u64,
        /// Memory page size as a power of two.
        page_shift: u8,
    },
    /// One SGL descriptor, as two qwords.
    Sgl {
        /// Address.
        low: u64,
        /// Length in bytes in bits 31:0, SGL Identifier in bits 63:56.
        high: u64,
    },
}

/// The walk over a command's data pointer.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    walk: Walk,
    /// Read ahead and not merged into the piece before it.
    ahead: Option<Segment>,
}

#[derive(Clone, Copy, Debug)]
enum Walk {
    Prp(PrpWalk),
    Sgl(SglWalk),
    Done,
}

impl Segments {
    /// The data pointer of `entry` for a transfer of `len_bytes`, by PSDT a PRP or an SGL.
    ///
    /// `page_shift` is the memory page size (CC.MPS + 12). Reads no guest memory.
    ///
    /// # Errors
    /// Invalid Field in Command where PSDT is reserved or names an SGL for metadata.
    pub fn new(
        entry: &SubmissionQueueEntry,
        len_bytes: u32,
        direction: Direction,
        page_shift: u8,
    ) -> Result<Self, Status> {
        Self::check(entry)?;
        Ok(Self::from_checked(entry, len_bytes, direction, page_shift))
    }

    /// Whether the kind of data pointer is one that [`Segments::from_checked`] knows.
    #[inline]
    pub(crate) fn check(entry: &SubmissionQueueEntry) -> Result<(), Status> {
        if entry.flags.psdt() > 1 { Err(Status::INVALID_FIELD.dnr()) } else { Ok(()) }
    }

    /// As [`Segments::new`] after [`Segments::check`].
    #[inline]
    pub(crate) fn from_checked(
        entry: &SubmissionQueueEntry,
        len_bytes: u32,
        direction: Direction,
        page_shift: u8,
    ) -> Self {
        if entry.flags.psdt() == 0 {
            return Self::from_prp(entry, len_bytes, page_shift);
        }
        let walk = Walk::Sgl(SglWalk::new(entry.prp1.get(), entry.prp2.get(), len_bytes, direction));
        Self { walk, ahead: None }
    }

    /// The data pointer of `entry` as PRP entries whatever PSDT says.
    #[inline]
    #[must_use]
    pub fn from_prp(entry: &SubmissionQueueEntry, len_bytes: u32, page_shift: u8) -> Self {
        let walk = PrpWalk::new(entry.prp1.get(), entry.prp2.get(), len_bytes, page_shift);
        Self { walk: Walk::Prp(walk), ahead: None }
    }

    /// A walk of `len_bytes` bytes from a data pointer, for hosts whose core lives elsewhere.
    #[inline]
    #[must_use]
    pub const fn from_start(start: DataStart, len_bytes: u32, direction: Direction) -> Self {
        let walk = match start {
            DataStart::Prp { first, second, page_shift } => {
                Walk::Prp(PrpWalk::new(first, second, len_bytes, page_shift))
            }
            DataStart::Sgl { low, high } => Walk::Sgl(SglWalk::new(low, high, len_bytes, direction)),
        };
        Self { walk, ahead: None }
    }

    /// Where the walk starts, or `None` once it has begun.
    #[inline]
    #[must_use]
    pub const fn start(&self) -> Option<DataStart> {
        match (&self.walk, &self.ahead) {
            (Walk::Prp(walk), None) => walk.start(),
            (Walk::Sgl(walk), None) => walk.start(),
            _ => None,
        }
    }

    /// The next piece, as large as neighbouring entries make it, or `None` after the last.
    ///
    /// After an error the walk is over. Each piece's address range is the guest's claim: the host still has to
    /// find it in guest memory.
    ///
    /// # Errors
    /// The status that the command ends with: PRP Offset Invalid, one of the SGL statuses, Data Transfer Error
    /// where a list can't be read.
    pub fn next_segment(&mut self, memory: &impl DmaMemory) -> Option<Result<Segment, Status>> {
        let mut merged = match self.ahead.take() {
            Some(segment) => segment,
            None => match self.walk.next_piece(memory)? {
                Ok(segment) => segment,
                Err(status) => return Some(Err(status)),
            },
        };
        while let Some(piece) = self.walk.next_piece(memory) {
            match piece {
                Err(status) => return Some(Err(status)),
                Ok(next) => match merged.len_bytes.checked_add(next.len_bytes) {
                    Some(len_bytes) if merged.touches(&next) => merged.len_bytes = len_bytes,
                    _ => {
                        self.ahead = Some(next);
                        break;
                    }
                },
            }
        }
        Some(Ok(merged))
    }
}

impl Walk {
    fn next_piece(&mut self, memory: &impl DmaMemory) -> Option<Result<Segment, Status>> {
        let piece = match self {
            Self::Prp(walk) => walk.next_piece(memory),
            Self::Sgl(walk) => walk.next_piece(memory),
            Self::Done => None,
        };
        if !matches!(piece, Some(Ok(_))) {
            *self = Self::Done;
        }
        piece
    }
}

impl From<DmaError> for Status {
    fn from(_: DmaError) -> Self {
        Self::DATA_TRANSFER_ERROR
    }
}
