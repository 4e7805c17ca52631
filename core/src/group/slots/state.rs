//! The command table as records: generations, the free list, commands in flight.

use zerocopy::little_endian::{U16, U32};

use super::{Entry, Kind, Slot, Slots};
use crate::state::group::CommandRecord;
use crate::state::{StateError, Writer, ensure};

impl<const COMMANDS: usize> Slots<COMMANDS> {
    /// Slots that were ever used.
    pub(in crate::group) const fn used(&self) -> u16 {
        self.fresh
    }

    /// Whether a command is in flight in this slot; its tag's generation.
    pub(in crate::group) fn generation_in_flight(&self, slot: u16) -> Option<u32> {
        let entry = self.entries.get(usize::from(slot))?;
        (!entry.is_free()).then_some(entry.generation)
    }

    pub(in crate::group) fn save(&self, writer: &mut Writer<'_>) -> Result<(), StateError> {
        for entry in self.entries.iter().take(usize::from(self.fresh)) {
            writer.record(&U32::new(entry.generation))?;
        }
        let mut next = self.free;
        for _ in self.occupied..self.fresh {
            let free = next.wrapping_sub(1);
            writer.record(&U16::new(free))?;
            next = self.entries.get(usize::from(free)).map_or(0, |entry| entry.cid_or_next);
        }
        for (slot, entry) in (0..).zip(&self.entries) {
            if !entry.is_free() {
                writer.record(&entry.slot().record(slot))?;
            }
        }
        Ok(())
    }

    /// Fills an empty table. The commands' submission queues are the caller's to check.
    pub(in crate::group) fn restore(
        &mut self,
        generations: &[U32],
        free: &[U16],
        commands: &[CommandRecord],
    ) -> Result<(), StateError> {
        let mut entries = self.entries.iter_mut();
        for generation in generations {
            let entry = entries.next().ok_or(StateError::TooSmall("commands"))?;
            *entry = Entry { generation: generation.get(), ..Entry::FREE };
            self.fresh = self.fresh.wrapping_add(1);
        }
        // Slots at or behind `fresh` were never used and are in neither list.
        let entries = self.entries.get_mut(..usize::from(self.fresh)).unwrap_or_default();
        for record in commands {
            match entries.get_mut(usize::from(record.slot.get())) {
                Some(entry) if entry.is_free() => entry.put(&Slot::restore(record)?),
                _ => return Err(StateError::Inconsistent("a command's slot")),
            }
            self.occupied = self.occupied.wrapping_add(1);
        }
        for index in free.iter().rev() {
            match entries.get_mut(usize::from(index.get())) {
                Some(entry) if entry.is_free() => entry.cid_or_next = self.free,
                _ => return Err(StateError::Inconsistent("the list of free slots")),
            }
            self.free = index.get().wrapping_add(1);
        }
        // A list of the right length that comes to its end passes each slot once: after a repetition it would
        // go round for ever.
        let mut next = self.free;
        for _ in free {
            let entry = next.checked_sub(1).and_then(|index| entries.get(usize::from(index)));
            next = entry.map_or(0, |entry| entry.cid_or_next);
        }
        let complete = generations.len() == commands.len().saturating_add(free.len());
        ensure(complete && next == 0, "the list of free slots")
    }
}

impl Slot {
    fn record(&self, slot: u16) -> CommandRecord {
        let Self { submission, cid, nsid, lba, kind, bytes } = *self;
        CommandRecord {
            slot: slot.into(),
            submission: submission.into(),
            cid: cid.into(),
            kind: kind as u8,
            reserved: 0,
            nsid: nsid.into(),
            bytes: bytes.into(),
            lba: lba.into(),
        }
    }

    fn restore(record: &CommandRecord) -> Result<Self, StateError> {
        let kind = match record.kind {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::FlushAll,
            4 => Kind::Other,
            _ => return Err(StateError::Inconsistent("a command's kind")),
        };
        let (nsid, bytes) = (record.nsid.get(), record.bytes.get());
        ensure((kind == Kind::FlushAll) == (nsid == 0), "a command's namespace")?;
        ensure(bytes & 0x1ff == 0, "a command's length")?;
        Ok(Self {
            submission: record.submission.get(),
            cid: record.cid.get(),
            nsid,
            lba: record.lba.get(),
            kind,
            bytes,
        })
    }
}
