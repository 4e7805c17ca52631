//! The driver's side of queues and doorbells.

use std::collections::BTreeSet;

/// How a driver with shadow doorbells decides whether to ring the register as well. `old` and `new` are the
/// doorbell's values before and after; all are modulo 2^16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As Linux does: the event index lies in `old..new`.
    Linux,
    /// As SPDK does: the event index lies in `old..=new`.
    Spdk,
}

impl Rule {
    /// Whether the register has to be written.
    #[must_use]
    pub const fn rings(self, event_index: u16, old: u16, new: u16) -> bool {
        let moved = new.wrapping_sub(old);
        match self {
            Self::Linux => new.wrapping_sub(event_index).wrapping_sub(1) < moved,
            Self::Spdk => new.wrapping_sub(event_index) <= moved,
        }
    }
}

/// A submission queue that the driver owns.
#[derive(Clone, Debug)]
pub struct SubmissionQueue {
    /// Identifier.
    pub id: u16,
    /// Where the entries are.
    pub base: u64,
    /// How many entries fit.
    pub entries: u32,
    /// The completion queue that it names.
    pub cqid: u16,
    /// The next free entry.
    pub tail: u32,
    /// The value that was last rung.
    pub rung: u32,
    /// Command identifiers in use.
    pub inflight: BTreeSet<u16>,
    pub(super) next_cid: u16,
}

impl SubmissionQueue {
    /// A queue that was just created: nothing submitted, nothing completed.
    #[must_use]
    pub const fn fresh(id: u16, base: u64, entries: u32, cqid: u16) -> Self {
        Self { id, base, entries, cqid, tail: 0, rung: 0, inflight: BTreeSet::new(), next_cid: 0 }
    }

    /// A command identifier that isn't in use.
    pub(super) fn take_cid(&mut self) -> u16 {
        while !self.inflight.insert(self.next_cid) {
            self.next_cid = self.next_cid.wrapping_add(1);
        }
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1) & 0x7fff;
        cid
    }
}

/// A completion queue that the driver owns.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    /// Identifier.
    pub id: u16,
    /// Where the entries are.
    pub base: u64,
    /// How many entries fit.
    pub entries: u32,
    /// The next entry to look at.
    pub head: u32,
    /// The value that was last rung.
    pub rung: u32,
    /// The phase tag of a new entry.
    pub phase: bool,
}

impl CompletionQueue {
    /// A queue that was just created: nothing submitted, nothing completed.
    #[must_use]
    pub const fn fresh(id: u16, base: u64, entries: u32) -> Self {
        Self { id, base, entries, head: 0, rung: 0, phase: true }
    }
}

#[cfg(test)]
mod tests {
    use super::Rule;

    #[test]
    fn rules_differ_at_equality_only() {
        assert!(Rule::Linux.rings(4, 4, 5));
        assert!(!Rule::Linux.rings(5, 4, 5));
        assert!(Rule::Spdk.rings(5, 4, 5));
        assert!(!Rule::Spdk.rings(3, 4, 5));
        assert!(!Rule::Linux.rings(3, 4, 5));
    }

    #[test]
    fn rules_count_modulo_two_to_the_sixteen_across_a_lap() {
        // A ring of 8 goes from 6 to 1: the value falls, and everything from 6 up and below 1 is passed.
        assert!(Rule::Linux.rings(7, 6, 1));
        assert!(Rule::Linux.rings(0, 6, 1));
        assert!(!Rule::Linux.rings(3, 6, 1));
    }
}
