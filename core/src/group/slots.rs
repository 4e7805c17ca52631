//! The command table: fixed slots, a free list through them, a generation each.

mod state;

use crate::tag::Tag;

/// What a group remembers of a command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Index of the submission queue.
    pub(super) submission: u16,
    pub(super) cid: u16,
    pub(super) nsid: u32,
    /// Index into the namespace table where the command counts there.
    pub(super) namespace: Option<u16>,
    pub(super) lba: u64,
    pub(super) kind: Kind,
    /// Bytes of user data.
    pub(super) bytes: u32,
}

/// How a command counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Read, Compare, Verify.
    Read,
    Write,
    /// Flush of every namespace.
    FlushAll,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    /// The next free slot, where this one is free.
    next: u16,
    slot: Option<Slot>,
}

/// No slot.
const NONE: u16 = u16::MAX;

/// `COMMANDS` slots, at most 65,535.
#[derive(Debug)]
pub(super) struct Slots<const COMMANDS: usize> {
    entries: [Entry; COMMANDS],
    free: u16,
    /// Slots from here on have never been used and aren't in the free list.
    fresh: u16,
    occupied: u16,
}

impl<const COMMANDS: usize> Slots<COMMANDS> {
    pub(super) const fn new() -> Self {
        const { assert!(COMMANDS > 0 && COMMANDS < NONE as usize, "1 to 65,534 commands") };
        Self {
            entries: [Entry { generation: 0, next: NONE, slot: None }; COMMANDS],
            free: NONE,
            fresh: 0,
            occupied: 0,
        }
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
        let index = if self.free == NONE { self.fresh } else { self.free };
        let entry = self.entries.get_mut(usize::from(index))?;
        if self.free == NONE {
            self.fresh = self.fresh.wrapping_add(1);
        } else {
            self.free = entry.next;
        }
        entry.slot = Some(slot);
        self.occupied = self.occupied.wrapping_add(1);
        Some(Tag { slot: index, generation: entry.generation })
    }

    /// Takes the command out that has this tag.
    #[inline]
    pub(super) fn vacate(&mut self, tag: Tag) -> Option<Slot> {
        let entry = self.entries.get_mut(usize::from(tag.slot))?;
        if entry.generation != tag.generation {
            return None;
        }
        let slot = entry.slot.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = tag.slot;
        self.occupied = self.occupied.wrapping_sub(1);
        Some(slot)
    }

    /// The tag of the command with this identifier on this submission queue.
    pub(super) fn find(&self, submission: u16, cid: u16) -> Option<Tag> {
        self.tags().find(|tag| {
            let slot = self.entries.get(usize::from(tag.slot)).and_then(|entry| entry.slot);
            slot.is_some_and(|slot| slot.submission == submission && slot.cid == cid)
        })
    }

    /// The tags of all commands in flight.
    fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.slot.is_some())
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
        Slot { submission: 0, cid, nsid: 1, namespace: None, lba: 0, kind: Kind::Other, bytes: 0 }
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
