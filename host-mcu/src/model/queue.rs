//! A queue pair from the driver's side.

use doorbell_core::memory::DmaMemory;
use doorbell_core::spec::queue_entry::SubmissionQueueEntry;
use zerocopy::IntoBytes;

use super::ram::GuestRam;

/// Entries of every I/O queue: few, so that the rings wrap all the time.
pub(super) const ENTRIES: u32 = 16;

/// A queue pair in guest memory; both rings have the same number of entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub(super) qid: u16,
    sq: u64,
    cq: u64,
    entries: u32,
    pub(super) tail: u32,
    pub(super) head: u32,
    phase: bool,
}

/// A completion as the driver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) cid: u16,
    /// Status Field without the Phase Tag.
    pub(super) status: u16,
    pub(super) result: u32,
    pub(super) sqid: u16,
}

impl Completion {
    /// Status code type and code, without More and Do Not Retry.
    pub(super) const fn code(&self) -> u16 {
        self.status & 0x7ff
    }
}

impl Pair {
    pub(super) fn new(ram: GuestRam<'_>, qid: u16, sq: u64, cq: u64, entries: u32) -> Self {
        for word in 0..u64::from(entries) * 4 {
            let _ = ram.store_u32(cq + word * 4, 0);
        }
        Self { qid, sq, cq, entries, tail: 0, head: 0, phase: true }
    }

    pub(super) const fn sq(&self) -> u64 {
        self.sq
    }

    pub(super) const fn cq(&self) -> u64 {
        self.cq
    }

    pub(super) const fn entries(&self) -> u32 {
        self.entries
    }

    /// Puts an entry at the tail; the doorbell is still to be rung.
    pub(super) fn put(&mut self, ram: GuestRam<'_>, entry: &SubmissionQueueEntry) {
        let _ = ram.write(self.sq + u64::from(self.tail) * 64, entry.as_bytes());
        self.tail = (self.tail + 1) % self.entries;
    }

    /// Takes the next completion, if there is one.
    pub(super) fn take(&mut self, ram: GuestRam<'_>) -> Option<Completion> {
        let at = self.cq + u64::from(self.head) * 16;
        let dword3 = ram.load_u32(at + 12).ok()?;
        if (dword3 >> 16 & 1 != 0) != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.entries;
        if self.head == 0 {
            self.phase = !self.phase;
        }
        Some(Completion {
            cid: dword3 as u16,
            status: (dword3 >> 17) as u16,
            result: ram.load_u32(at).ok()?,
            sqid: (ram.load_u32(at + 8).ok()? >> 16) as u16,
        })
    }
}
