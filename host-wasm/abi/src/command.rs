//! Commands on their way to the host, completions on their way back, and what is to be written to guest memory.

use doorbell_core::command::{DeallocateRanges, IoCommand, Operation, Range, Transfer};
use doorbell_core::data::{DataStart, Direction, Segments};
use doorbell_core::namespace::Namespace;
use doorbell_core::tag::Tag;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a command does, in [`CommandRecord::operation`].
mod operation {
    pub(super) const FLUSH: u8 = 0;
    pub(super) const FLUSH_ALL: u8 = 1;
    pub(super) const READ: u8 = 2;
    pub(super) const WRITE: u8 = 3;
    pub(super) const COMPARE: u8 = 4;
    pub(super) const VERIFY: u8 = 5;
    pub(super) const WRITE_ZEROES: u8 = 6;
    pub(super) const DEALLOCATE: u8 = 7;
}

/// Durable before it completes.
const FUA: u8 = 1;
/// The blocks may be given back.
const DEAC: u8 = 2;
/// The data pointer is an SGL descriptor.
const SGL: u8 = 4;

/// One I/O command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandRecord {
    /// The command's tag: slot in bits 15:0, generation in bits 47:16.
    pub tag: U64,
    /// First byte in the namespace.
    pub offset_bytes: U64,
    /// Bytes.
    pub len_bytes: U64,
    /// PRP1, or the address of the SGL descriptor.
    pub data_low: U64,
    /// PRP2, or length and identifier of the SGL descriptor.
    pub data_high: U64,
    /// Namespace identifier, 0 for flush of all.
    pub nsid: U32,
    /// Submission queue.
    pub sqid: U16,
    /// Ranges of a deallocation.
    pub ranges: U16,
    /// What to do.
    pub operation: u8,
    /// FUA, DEAC, SGL.
    pub flags: u8,
    /// Memory page size as a power of two.
    pub page_shift: u8,
    /// 0.
    pub reserved: [u8; 13],
}

const _: () = assert!(size_of::<CommandRecord>() == 64);

impl CommandRecord {
    /// The record of a command whose data pointer hasn't been walked.
    #[inline]
    #[must_use]
    pub fn encode(command: &IoCommand) -> Self {
        let mut record = Self {
            tag: U64::new(command.tag.to_u64()),
            offset_bytes: U64::new(0),
            len_bytes: U64::new(0),
            data_low: U64::new(0),
            data_high: U64::new(0),
            nsid: U32::new(command.nsid),
            sqid: U16::new(command.sqid),
            ranges: U16::new(0),
            operation: operation::FLUSH,
            flags: 0,
            page_shift: 0,
            reserved: [0; 13],
        };
        match &command.operation {
            Operation::Flush => {}
            Operation::FlushAll => record.operation = operation::FLUSH_ALL,
            Operation::Read(transfer) => record.set_transfer(operation::READ, transfer),
            Operation::Write { transfer, fua } => {
                record.set_transfer(operation::WRITE, transfer);
                record.set_flag(FUA, *fua);
            }
            Operation::Compare(transfer) => record.set_transfer(operation::COMPARE, transfer),
            Operation::Verify(range) => record.set_range(operation::VERIFY, range),
            Operation::WriteZeroes { range, deallocate, fua } => {
                record.set_range(operation::WRITE_ZEROES, range);
                record.set_flag(DEAC, *deallocate);
                record.set_flag(FUA, *fua);
            }
            Operation::Deallocate(ranges) => {
                record.operation = operation::DEALLOCATE;
                if let Some((start, count)) = ranges.start() {
                    record.ranges = U16::new(count);
                    record.set_start(start);
                }
            }
        }
        record
    }

    /// The command that the record describes, with none of it checked against anything; `None` where the
    /// operation isn't one. `namespace` is the shape that the ranges of a deallocation are to lie in.
    #[inline]
    #[must_use]
    pub fn decode(&self, namespace: Option<Namespace>) -> Option<IoCommand> {
        let range = Range { offset_bytes: self.offset_bytes.get(), len_bytes: self.len_bytes.get() };
        let fua = self.flags & FUA != 0;
        let operation = match self.operation {
            operation::FLUSH => Operation::Flush,
            operation::FLUSH_ALL => Operation::FlushAll,
            operation::READ => Operation::Read(self.transfer(Direction::ToGuest)?),
            operation::WRITE => Operation::Write { transfer: self.transfer(Direction::ToController)?, fua },
            operation::COMPARE => Operation::Compare(self.transfer(Direction::ToController)?),
            operation::VERIFY => Operation::Verify(range),
            operation::WRITE_ZEROES => {
                Operation::WriteZeroes { range, deallocate: self.flags & DEAC != 0, fua }
            }
            operation::DEALLOCATE => {
                let ranges = DeallocateRanges::from_start(self.start()?, self.ranges.get(), namespace?);
                Operation::Deallocate(ranges)
            }
            _ => return None,
        };
        let tag = Tag::from_u64(self.tag.get());
        Some(IoCommand { tag, sqid: self.sqid.get(), nsid: self.nsid.get(), operation })
    }

    /// Whether the operation changes the medium.
    #[inline]
    #[must_use]
    pub fn changes_medium(&self) -> bool {
        matches!(self.operation, operation::WRITE | operation::WRITE_ZEROES | operation::DEALLOCATE)
    }

    /// Whether the operation moves data between guest memory and the medium.
    #[inline]
    #[must_use]
    pub fn moves_data(&self) -> bool {
        matches!(self.operation, operation::READ | operation::WRITE | operation::COMPARE)
    }

    /// Whether the operation names a range of the medium.
    #[inline]
    #[must_use]
    pub fn has_range(&self) -> bool {
        self.moves_data() || matches!(self.operation, operation::VERIFY | operation::WRITE_ZEROES)
    }

    /// Whether it is the flush of every namespace, which names none.
    #[inline]
    #[must_use]
    pub fn is_flush_all(&self) -> bool {
        self.operation == operation::FLUSH_ALL
    }

    #[inline]
    fn set_transfer(&mut self, operation: u8, transfer: &Transfer) {
        self.operation = operation;
        self.offset_bytes = U64::new(transfer.offset_bytes);
        self.len_bytes = U64::new(u64::from(transfer.len_bytes));
        if let Some(start) = transfer.segments.start() {
            self.set_start(start);
        }
    }

    fn set_range(&mut self, operation: u8, range: &Range) {
        self.operation = operation;
        self.offset_bytes = U64::new(range.offset_bytes);
        self.len_bytes = U64::new(range.len_bytes);
    }

    #[inline]
    fn set_start(&mut self, start: DataStart) {
        match start {
            DataStart::Prp { first, second, page_shift } => {
                self.data_low = U64::new(first);
                self.data_high = U64::new(second);
                self.page_shift = page_shift;
            }
            DataStart::Sgl { low, high } => {
                self.data_low = U64::new(low);
                self.data_high = U64::new(high);
                self.flags |= SGL;
            }
        }
    }

    fn set_flag(&mut self, flag: u8, set: bool) {
        if set {
            self.flags |= flag;
        }
    }

    #[inline]
    fn transfer(&self, direction: Direction) -> Option<Transfer> {
        let len_bytes = u32::try_from(self.len_bytes.get()).ok()?;
        let segments = Segments::from_start(self.start()?, len_bytes, direction);
        Some(Transfer { offset_bytes: self.offset_bytes.get(), len_bytes, segments })
    }

    #[inline]
    fn start(&self) -> Option<DataStart> {
        let (low, high) = (self.data_low.get(), self.data_high.get());
        if self.flags & SGL != 0 {
            return Some(DataStart::Sgl { low, high });
        }
        // Memory pages of 4 KiB (MPS 0) to 128 MiB (MPS 15).
        matches!(self.page_shift, 12..=27).then_some(DataStart::Prp {
            first: low,
            second: high,
            page_shift: self.page_shift,
        })
    }
}

/// A command that has ended.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionRecord {
    /// The command's tag.
    pub tag: U64,
    /// Its status (Status Field without Phase Tag).
    pub status: U16,
    /// 0.
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<CompletionRecord>() == 16);

/// How a [`WriteRecord`] is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A completion queue entry of 16 bytes whose last dword becomes visible last.
    Entry,
    /// One dword.
    Dword,
}

/// Something to write to guest memory after the call, in the order of the list.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteRecord {
    /// Guest address, a multiple of 4.
    pub address: U64,
    /// 0: an entry; 1: a dword.
    pub kind: U32,
    /// 0.
    pub reserved: U32,
    /// The dwords; for a dword only the first.
    pub dwords: [U32; 4],
}

const _: () = assert!(size_of::<WriteRecord>() == 32);

impl WriteRecord {
    /// A completion queue entry.
    #[inline]
    #[must_use]
    pub fn entry(address: u64, dwords: [u32; 4]) -> Self {
        Self {
            address: U64::new(address),
            kind: U32::new(0),
            reserved: U32::new(0),
            dwords: dwords.map(U32::new),
        }
    }

    /// A dword.
    #[inline]
    #[must_use]
    pub fn dword(address: u64, value: u32) -> Self {
        let dwords = [value, 0, 0, 0].map(U32::new);
        Self { address: U64::new(address), kind: U32::new(1), reserved: U32::new(0), dwords }
    }

    /// How to carry it out; `None` where it means nothing.
    #[inline]
    #[must_use]
    pub fn write_kind(&self) -> Option<WriteKind> {
        match self.kind.get() {
            _ if self.address.get() & 3 != 0 => None,
            0 => Some(WriteKind::Entry),
            1 => Some(WriteKind::Dword),
            _ => None,
        }
    }
}
