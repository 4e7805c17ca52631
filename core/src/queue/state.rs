//! Queues as records. What follows from the rest (free entries) is computed.

use super::{CompletionQueue, SubmissionQueue};
use crate::doorbell::{Doorbell, head_index, tail_index};
use crate::message::DoorbellBuffer;
use crate::state::group::RingRecord;
use crate::state::{StateError, ensure};

/// Entries that a ring can have.
const SIZES: core::ops::RangeInclusive<u32> = 2..=65_536;

fn record([size, head, tail]: [u32; 3], base: u64, doorbell: &Doorbell) -> RingRecord {
    let mut ring = RingRecord {
        base: base.into(),
        size: size.into(),
        head: head.into(),
        tail: tail.into(),
        ..RingRecord::default()
    };
    doorbell.save(&mut ring);
    ring
}

impl RingRecord {
    /// Whether it can be a queue's, with entries at multiples of `alignment`.
    pub(crate) fn check(&self, alignment: u64) -> Result<(), StateError> {
        let (size, lag) = (self.size.get(), self.lag.get());
        let inside = self.head.get().max(self.tail.get()) < size && lag <= size;
        ensure(SIZES.contains(&size) && inside, "a position outside its queue, or the queue's size")?;
        ensure(self.base.get() & alignment.wrapping_sub(1) == 0, "a queue's alignment")
    }
}

// What is restored from must have been checked.
impl SubmissionQueue {
    pub(crate) fn save(&self) -> RingRecord {
        let Self { qid: _, base, size, head, tail, doorbell } = *self;
        record([size, head, tail], base, &doorbell)
    }

    pub(crate) fn restore(
        qid: u16,
        ring: &RingRecord,
        buffer: Option<DoorbellBuffer>,
        posted_registers: bool,
    ) -> Self {
        let doorbell = Doorbell::restore(tail_index(qid), ring, buffer, posted_registers);
        let (head, tail) = (ring.head.get(), ring.tail.get());
        Self { qid, base: ring.base.get(), size: ring.size.get(), head, tail, doorbell }
    }
}

impl CompletionQueue {
    /// Entries are written a dword at a time.
    pub(crate) const ALIGNMENT: u64 = 4;

    /// Apart from [`CompletionQueue::phase`].
    pub(crate) fn save(&self) -> RingRecord {
        let Self { qid: _, base, size, head, tail, free: _, phase: _, doorbell } = *self;
        record([size, head, tail], base, &doorbell)
    }

    pub(crate) const fn phase(&self) -> bool {
        self.phase
    }

    /// The queue without a reservation: the caller reserves an entry for each command in flight.
    pub(crate) fn restore(
        qid: u16,
        ring: &RingRecord,
        phase: bool,
        buffer: Option<DoorbellBuffer>,
        posted_registers: bool,
    ) -> Self {
        let doorbell = Doorbell::restore(head_index(qid), ring, buffer, posted_registers);
        let (size, head, tail) = (ring.size.get(), ring.head.get(), ring.tail.get());
        let mut queue = Self { qid, base: ring.base.get(), size, head, tail, free: 0, phase, doorbell };
        queue.free = size.wrapping_sub(1).saturating_sub(queue.unread());
        queue
    }
}
