//! The command table as records: generations, the free list, commands in flight.

use zerocopy::little_endian::{U16, U32};

use super::{Entry, Kind, NONE, Slot, Slots};
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
        entry.slot.is_some().then_some(entry.generation)
    }

    pub(in crate::group) fn save(&self, writer: &mut Writer<'_>) -> Result<(), StateError> {
        for entry in self.entries.iter().take(usize::from(self.fresh)) {
            writer.record(&U32::new(entry.generation))?;
        }
        let mut free = self.free;
        for _ in self.occupied..self.fresh {
            writer.record(&U16::new(free))?;
            free = self.entries.get(usize::from(free)).map_or(NONE, |entry| entry.next);
        }
        for (slot, entry) in (0..).zip(&self.entries) {
            if let Some(command) = &entry.slot {
                writer.record(&command.record(slot))?;
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
            *entry = Entry { generation: generation.get(), next: NONE, slot: None };
            self.fresh = self.fresh.wrapping_add(1);
        }
        // Slots at or behind `fresh` were never used and are in neither list.
        let entries = self.entries.get_mut(..usize::from(self.fresh)).unwrap_or_default();
        for record in commands {
            let entry = entries.get_mut(usize::from(record.slot.get()));
            match entry {
                Some(entry) if entry.slot.is_none() => entry.slot = Some(Slot::restore(record)?),
                _ => return Err(StateError::Inconsistent("a command's slot")),
            }
            self.occupied = self.occupied.wrapping_add(1);
        }
        for index in free.iter().rev() {
            let index = index.get();
            let entry = entries.get_mut(usize::from(index));
            match entry {
                Some(entry) if entry.slot.is_none() => entry.next = self.free,
                _ => return Err(StateError::Inconsistent("the list of free slots")),
            }
            self.free = index;
        }
        // A list of the right length that comes to its end passes each slot once: after a repetition it would
        // go round for ever.
        let mut end = self.free;
        for _ in free {
            end = entries.get(usize::from(end)).map_or(NONE, |entry| entry.next);
        }
        let complete = generations.len() == commands.len().saturating_add(free.len());
        ensure(complete && end == NONE, "the list of free slots")
    }
}

impl Slot {
    fn record(&self, slot: u16) -> CommandRecord {
        let Self { submission, cid, nsid, namespace: _, lba, kind, bytes } = *self;
        CommandRecord {
            slot: slot.into(),
            submission: submission.into(),
            cid: cid.into(),
            kind: match kind {
                Kind::Read => 0,
                Kind::Write => 1,
                Kind::FlushAll => 2,
                Kind::Other => 3,
            },
            reserved: 0,
            nsid: nsid.into(),
            bytes: bytes.into(),
            lba: lba.into(),
        }
    }

    fn restore(record: &CommandRecord) -> Result<Self, StateError> {
        let kind = match record.kind {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::FlushAll,
            3 => Kind::Other,
            _ => return Err(StateError::Inconsistent("a command's kind")),
        };
        let nsid = record.nsid.get();
        let namespace = if kind == Kind::FlushAll { None } else { namespace_index(nsid) };
        ensure((kind == Kind::FlushAll) == (nsid == 0), "a command's namespace")?;
        Ok(Self {
            submission: record.submission.get(),
            cid: record.cid.get(),
            nsid,
            namespace,
            lba: record.lba.get(),
            kind,
            bytes: record.bytes.get(),
        })
    }
}

fn namespace_index(nsid: u32) -> Option<u16> {
    u16::try_from(nsid.checked_sub(1)?).ok()
}
