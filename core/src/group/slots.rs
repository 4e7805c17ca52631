//! The command table: fixed slots, a free list through them, a generation each.

use crate::tag::Tag;

/// What a group remembers of a command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Index of the submission queue.
    pub(super) submission: u16,
    pub(super) cid: u16,
    /// Namespace identifier; 0 where the command concerns every namespace.
    pub(super) nsid: u32,
    pub(super) lba: u64,
    pub(super) kind: Kind,
    /// Bytes of user data: whole blocks, so a multiple of 512, and at most 65,536 blocks of 4,096.
    pub(super) bytes: u32,
}

/// How a command counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Read, Compare, Verify.
    Read = 1,
    Write = 2,
    /// Flush of every namespace.
    FlushAll = 3,
    /// Any other command that names a namespace.
    Other = 4,
    /// It is completed at once and counts nowhere.
    Refused = 5,
}

/// A slot as it lies in the table: 24 bytes, aligned to 4, all 0 before its first use.
#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    nsid: u32,
    lba_low: u32,
    lba_high: u32,
    /// [`Slot::bytes`], whose low nine bits are 0, and the kind in them; 0 where the slot is free.
    work: u32,
    submission: u16,
    /// The command identifier; in a free slot the next free one as index plus 1, 0 where there is none.
    cid_or_next: u16,
}

/// The bits of [`Entry::work`] that the kind has.
const KIND_BITS: u32 = 0x7;

impl Entry {
    const FREE: Self =
        Self { generation: 0, nsid: 0, lba_low: 0, lba_high: 0, work: 0, submission: 0, cid_or_next: 0 };

    #[inline]
    const fn is_free(&self) -> bool {
        self.work == 0
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the address is split into its two dwords")]
    const fn put(&mut self, slot: &Slot) {
        self.nsid = slot.nsid;
        self.lba_low = slot.lba as u32;
        self.lba_high = (slot.lba >> 32) as u32;
        self.work = slot.bytes & !KIND_BITS | slot.kind as u32;
        self.submission = slot.submission;
        self.cid_or_next = slot.cid;
    }

    /// The command of a slot that isn't free.
    #[inline]
    const fn slot(&self) -> Slot {
        let kind = match self.work & KIND_BITS {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::FlushAll,
            4 => Kind::Other,
            _ => Kind::Refused,
        };
        Slot {
            submission: self.submission,
            cid: self.cid_or_next,
            nsid: self.nsid,
            lba: (self.lba_high as u64) << 32 | self.lba_low as u64,
            kind,
            bytes: self.work & !KIND_BITS,
        }
    }
}

/// `COMMANDS` slots, at most 65,534.
#[derive(Debug)]
pub(super) struct Slots<const COMMANDS: usize> {
    entries: [Entry; COMMANDS],
    /// The first free slot as index plus 1; 0 where the list is empty.
    free: u16,
    /// Slots from here on have never been used and aren't in the free list.
    fresh: u16,
    occupied: u16,
}

impl<const COMMANDS: usize> Slots<COMMANDS> {
    pub(super) const fn new() -> Self {
        const { assert!(COMMANDS > 0 && COMMANDS < u16::MAX as usize, "1 to 65,534 commands") };
        Self { entries: [Entry::FREE; COMMANDS], free: 0, fresh: 0, occupied: 0 }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        usize::from(self.occupied) >= COMMANDS
    }

    #[inline]
    pub(super) fn occupied(&self) -> usize {
        usize::from(self.occupied)
    }

    /// Puts a command into a free slot.
    #[inline]
    pub(super) fn occupy(&mut self, slot: Slot) -> Option<Tag> {
        let listed = self.free.checked_sub(1);
        let index = listed.unwrap_or(self.fresh);
        let entry = self.entries.get_mut(usize::from(index))?;
        if listed.is_some() {
            self.free = entry.cid_or_next;
        } else {
            self.fresh = self.fresh.wrapping_add(1);
        }
        entry.put(&slot);
        self.occupied = self.occupied.wrapping_add(1);
        Some(Tag { slot: index, generation: entry.generation })
    }

    /// Takes the command out that has this tag.
    #[inline]
    pub(super) fn vacate(&mut self, tag: Tag) -> Option<Slot> {
        let entry = self.entries.get_mut(usize::from(tag.slot))?;
        if entry.generation != tag.generation || entry.is_free() {
            return None;
        }
        let slot = entry.slot();
        entry.work = 0;
        entry.generation = entry.generation.wrapping_add(1);
        entry.cid_or_next = self.free;
        self.free = tag.slot.wrapping_add(1);
        self.occupied = self.occupied.wrapping_sub(1);
        Some(slot)
    }

    /// The tag of the command with this identifier on this submission queue.
    pub(super) fn find(&self, submission: u16, cid: u16) -> Option<Tag> {
        (0..)
            .zip(&self.entries)
            .find(|(_, entry)| !entry.is_free() && entry.submission == submission && entry.cid_or_next == cid)
            .map(|(slot, entry)| Tag { slot, generation: entry.generation })
    }

    /// Forgets every command; their tags are stale.
    pub(super) fn clear(&mut self) {
        let mut index = 0;
        while let Some(entry) = self.entries.get(usize::from(index)) {
            let tag = Tag { slot: index, generation: entry.generation };
            let _forgotten = self.vacate(tag);
            index = index.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(cid: u16) -> Slot {
        Slot { submission: 0, cid, nsid: 1, lba: 0, kind: Kind::Other, bytes: 0 }
    }

    #[test]
    fn a_slot_keeps_everything_in_24_bytes() {
        assert_eq!(size_of::<Entry>(), 24);
        for kind in [Kind::Read, Kind::Write, Kind::FlushAll, Kind::Other, Kind::Refused] {
            let mut slots = Slots::<1>::new();
            let bytes = 65_536 * 4096;
            let put =
                Slot { submission: 65_535, cid: 65_535, nsid: u32::MAX, lba: u64::MAX - 1, kind, bytes };
            let tag = slots.occupy(put).unwrap();
            let got = slots.vacate(tag).unwrap();
            assert_eq!(format!("{got:?}"), format!("{put:?}"));
        }
    }

    #[test]
    fn a_tag_matches_only_until_its_command_ends() {
        let mut slots = Slots::<2>::new();
        let first = slots.occupy(slot(1)).unwrap();
        let second = slots.occupy(slot(2)).unwrap();
        assert!(slots.is_full() && slots.occupy(slot(3)).is_none());
        assert_eq!(slots.find(0, 2), Some(second));
        assert_eq!(slots.vacate(first).unwrap().cid, 1);
        assert!(slots.vacate(first).is_none());
        let third = slots.occupy(slot(3)).unwrap();
        assert_eq!(third.slot, first.slot);
        assert!(slots.vacate(first).is_none());
        slots.clear();
        assert!(slots.vacate(second).is_none() && slots.vacate(third).is_none());
        assert_eq!(slots.occupied(), 0);
    }
}
