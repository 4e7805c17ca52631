//! Physical Region Page entries and lists (NVM Express Base Specification 2.0, section 4.1.1).

use super::{DataStart, Segment};
use crate::memory::DmaMemory;
use crate::spec::status::Status;

/// Bytes of a PRP entry.
const ENTRY_BYTES: u64 = 8;

/// A walk over PRP1 and PRP2.
///
/// Bounded by itself: every data entry but the first stands for a whole page, and a list that is chained to
/// starts at a page boundary, so it holds at least 511 data entries for the one that chains.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrpWalk {
    next: Next,
    prp2: u64,
    /// Bytes that no entry has stood for yet.
    left: u32,
    page_shift: u8,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    /// PRP1: a page with an offset.
    First(u64),
    /// PRP2, which is a page or a list as the length demands.
    Second,
    /// The list entry at this address.
    List(u64),
}

impl PrpWalk {
    pub(super) const fn new(prp1: u64, prp2: u64, len_bytes: u32, page_shift: u8) -> Self {
        Self { next: Next::First(prp1), prp2, left: len_bytes, page_shift }
    }

    pub(super) const fn start(&self) -> Option<DataStart> {
        match self.next {
            Next::First(first) => {
                Some(DataStart::Prp { first, second: self.prp2, page_shift: self.page_shift })
            }
            Next::Second | Next::List(_) => None,
        }
    }

    #[inline]
    pub(super) fn next_piece(&mut self, memory: &impl DmaMemory) -> Option<Result<Segment, Status>> {
        if self.left == 0 {
            return None;
        }
        Some(match self.next {
            Next::First(prp1) => self.first(prp1),
            Next::Second if self.left <= self.page_bytes() => self.page(self.prp2),
            Next::Second => self.list(self.prp2, memory),
            Next::List(address) => self.list_entry(address, memory),
        })
    }

    #[inline]
    fn page_bytes(&self) -> u32 {
        1u32.wrapping_shl(u32::from(self.page_shift))
    }

    #[inline]
    fn offset_in_page(&self, address: u64) -> u64 {
        address & u64::from(self.page_bytes().wrapping_sub(1))
    }

    /// PRP1 may have an offset, dword aligned.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "an offset is smaller than a page")]
    fn first(&mut self, prp1: u64) -> Result<Segment, Status> {
        if prp1 & 3 != 0 {
            return Err(Status::PRP_OFFSET_INVALID.dnr());
        }
        self.next = Next::Second;
        let room = self.page_bytes().wrapping_sub(self.offset_in_page(prp1) as u32);
        Ok(self.take(prp1, room))
    }

    /// An entry that stands for a whole page.
    #[inline]
    fn page(&mut self, address: u64) -> Result<Segment, Status> {
        if self.offset_in_page(address) != 0 {
            return Err(Status::PRP_OFFSET_INVALID.dnr());
        }
        Ok(self.take(address, self.page_bytes()))
    }

    /// PRP2 as the first list, which may start at any qword of its page.
    fn list(&mut self, address: u64, memory: &impl DmaMemory) -> Result<Segment, Status> {
        if address & 7 != 0 {
            return Err(Status::PRP_OFFSET_INVALID.dnr());
        }
        self.list_entry(address, memory)
    }

    fn list_entry(&mut self, mut address: u64, memory: &impl DmaMemory) -> Result<Segment, Status> {
        let mut entry = read_entry(address, memory)?;
        let last_in_page = self.offset_in_page(address.wrapping_add(ENTRY_BYTES)) == 0;
        if last_in_page && self.left > self.page_bytes() {
            // More remains than this entry could stand for, so it chains to a list at the start of a page.
            if self.offset_in_page(entry) != 0 {
                return Err(Status::PRP_OFFSET_INVALID.dnr());
            }
            address = entry;
            entry = read_entry(address, memory)?;
        }
        self.next = Next::List(address.wrapping_add(ENTRY_BYTES));
        self.page(entry)
    }

    #[inline]
    fn take(&mut self, address: u64, room: u32) -> Segment {
        let len_bytes = room.min(self.left);
        self.left = self.left.wrapping_sub(len_bytes);
        Segment { address, len_bytes, bit_bucket: false }
    }
}

fn read_entry(address: u64, memory: &impl DmaMemory) -> Result<u64, Status> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
