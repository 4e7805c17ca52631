//! I/O commands as they leave the core: checked, in bytes, with nothing of NVMe left but the data pointer.

use crate::data::{DataReader, DataStart, Direction, Segments};
use crate::memory::DmaMemory;
use crate::namespace::Namespace;
use crate::spec::nvm;
use crate::spec::status::Status;
use crate::tag::Tag;

/// One command for the host to carry out and then give back through
/// [`QueueGroup::complete`](crate::group::QueueGroup::complete).
#[derive(Clone, Copy, Debug)]
pub struct IoCommand {
    /// Names the command until it completes.
    pub tag: Tag,
    /// Submission queue it came from.
    pub sqid: u16,
    /// Namespace identifier, from 1; the namespace exists. 0 where the operation is [`Operation::FlushAll`].
    pub nsid: u32,
    /// What to do.
    pub operation: Operation,
}

/// What to do, in bytes of the namespace. Every range lies inside the namespace and within MDTS.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Make everything durable that the namespace has completed so far.
    Flush,
    /// The same for all namespaces (NSID FFFFFFFFh).
    FlushAll,
    /// Read from the medium into guest memory.
    Read(Transfer),
    /// Write guest memory to the medium.
    Write {
        /// Where from and where to.
        transfer: Transfer,
        /// Durable before it completes (Force Unit Access, or the volatile write cache is off).
        fua: bool,
    },
    /// Compare guest memory with the medium: [`Status::COMPARE_FAILURE`] where they differ.
    Compare(Transfer),
    /// Read the medium and report errors; moves nothing.
    Verify(Range),
    /// Make the range read as zeroes.
    WriteZeroes {
        /// The range.
        range: Range,
        /// The blocks may be given back to the medium (DEAC).
        deallocate: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// The ranges hold nothing of worth any more; afterwards they read as the namespace's configuration says
    /// (DLFEAT).
    Deallocate(DeallocateRanges),
}

impl Operation {
    /// Bytes of guest memory that it moves or compares.
    #[inline]
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        match self {
            Self::Read(transfer) | Self::Write { transfer, .. } | Self::Compare(transfer) => {
                transfer.len_bytes as u64
            }
            _ => 0,
        }
    }
}

/// A range of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes; a multiple of the block size.
    pub len_bytes: u64,
}

/// A data transfer: a range of the namespace and as many bytes of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// First byte in the namespace.
    pub offset_bytes: u64,
    /// Bytes; a multiple of the block size, at most MDTS.
    pub len_bytes: u32,
    /// The pieces of guest memory, in order; their lengths add up to `len_bytes`.
    pub segments: Segments,
}

/// The ranges of a Dataset Management command, read from guest memory one by one.
#[derive(Clone, Copy, Debug)]
pub struct DeallocateRanges {
    pub(crate) reader: DataReader,
    pub(crate) namespace: Namespace,
    pub(crate) left: u16,
}

impl DeallocateRanges {
    /// `count` ranges of `namespace` from a data pointer, for hosts whose core lives elsewhere.
    #[must_use]
    pub const fn from_start(start: DataStart, count: u16, namespace: Namespace) -> Self {
        let len_bytes = (count as u32).wrapping_mul(nvm::DSM_RANGE_BYTES);
        let segments = Segments::from_start(start, len_bytes, Direction::ToController);
        Self { reader: DataReader::new(segments), namespace, left: count }
    }

    /// Where the ranges start and how many there are, or `None` once one has been read.
    #[must_use]
    pub const fn start(&self) -> Option<(DataStart, u16)> {
        match self.reader.start() {
            Some(start) => Some((start, self.left)),
            None => None,
        }
    }

    /// The next range, read from guest memory exactly once, or `None` after the last. Empty ranges are passed
    /// over. An error ends the command with that status.
    pub fn next_range(&mut self, memory: &impl DmaMemory) -> Option<Result<Range, Status>> {
        while let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            match self.read_range(memory) {
                Ok(range) if range.len_bytes == 0 => {}
                Ok(range) => return Some(Ok(range)),
                Err(status) => {
                    self.left = 0;
                    return Some(Err(status));
                }
            }
        }
        None
    }

    /// One 16-byte range (NVM Command Set Specification 1.0, section 3.2.3.1): context attributes, length in
    /// blocks (not 0's based), starting LBA.
    fn read_range(&mut self, memory: &impl DmaMemory) -> Result<Range, Status> {
        let mut bytes = [0; 16];
        self.reader.read(memory, &mut bytes)?;
        let [_, _, _, _, l0, l1, l2, l3, s0, s1, s2, s3, s4, s5, s6, s7] = bytes;
        let count = u32::from_le_bytes([l0, l1, l2, l3]);
        let slba = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let (offset_bytes, len_bytes) =
            self.namespace.byte_range(slba, u64::from(count)).ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
        Ok(Range { offset_bytes, len_bytes })
    }
}
