//! The ranges of a discard or write zeroes request.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::chain::Chain;
use super::super::disk::{Disk, MAX_RANGE_SECTORS, MAX_RANGES, SECTOR_BYTES};
use super::{IOERR, UNSUPP};
use crate::storage::Operation;

/// Ranges that are left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ranges {
    discard: bool,
    list: [Range; MAX_RANGES],
    next: u8,
    count: u8,
}

/// `struct virtio_blk_discard_write_zeroes` (VIRTIO 1.3, 5.2.6).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Range {
    sector: U64,
    num_sectors: U32,
    /// Bit 0: unmap.
    flags: U32,
}

const _: () = assert!(size_of::<Range>() == 16);

const FLAG_UNMAP: u32 = 1;

impl Ranges {
    /// Takes the ranges of a request, and refuses what the specification wants refused before anything is done
    /// (5.2.6.2): unknown flags, and unmap with discard, are unsupported; anything out of bounds is an error.
    pub(super) fn parse(discard: bool, chain: &mut Chain, disk: &Disk) -> Result<Self, u8> {
        let mut ranges = Self { discard, ..Self::default() };
        if disk.storage.read_only() {
            return Err(IOERR);
        }
        let len_bytes = chain.readable_bytes();
        let count = len_bytes / size_of::<Range>() as u64;
        if count == 0 || count > MAX_RANGES as u64 || !len_bytes.is_multiple_of(size_of::<Range>() as u64) {
            return Err(IOERR);
        }
        ranges.count = count as u8;
        let list = &mut ranges.list[..count as usize];
        if !chain.read_front(list.as_mut_bytes()) {
            return Err(IOERR);
        }
        let size_bytes = disk.storage.size_bytes();
        for range in list {
            let known = if discard { 0 } else { FLAG_UNMAP };
            if range.flags.get() & !known != 0 {
                return Err(UNSUPP);
            }
            let end = range.sector.get().checked_add(range.num_sectors.get().into());
            let end_bytes = end.and_then(|end| end.checked_mul(SECTOR_BYTES));
            let inside = end_bytes.is_some_and(|end_bytes| end_bytes <= size_bytes);
            if !inside || range.num_sectors.get() > MAX_RANGE_SECTORS {
                return Err(IOERR);
            }
        }
        Ok(ranges)
    }

    /// Whether the request is one of ranges, of which some may be left.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        self.count > 0
    }

    /// None is left.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// The next range: what to do with it, its first byte and its length.
    pub(super) fn first(&self, write_through: bool) -> Option<(Operation, u64, u64)> {
        let range = self.list[..usize::from(self.count)].get(usize::from(self.next))?;
        let operation = if self.discard {
            Operation::Deallocate
        } else {
            let deallocate = range.flags.get() & FLAG_UNMAP != 0;
            Operation::WriteZeroes { deallocate, fua: write_through }
        };
        let len_bytes = u64::from(range.num_sectors.get()) * SECTOR_BYTES;
        Some((operation, range.sector.get() * SECTOR_BYTES, len_bytes))
    }

    /// The next range was started.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }
}
