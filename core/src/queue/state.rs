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

fn check(ring: &RingRecord) -> Result<(), StateError> {
    ensure(SIZES.contains(&ring.size.get()), "a queue's size")?;
    ensure(ring.head.get().max(ring.tail.get()) < ring.size.get(), "a position outside its queue")
}

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
    ) -> Result<Self, StateError> {
        check(ring)?;
        let doorbell = Doorbell::restore(tail_index(qid), ring, buffer, posted_registers)?;
        let (head, tail) = (ring.head.get(), ring.tail.get());
        Ok(Self { qid, base: ring.base.get(), size: ring.size.get(), head, tail, doorbell })
    }
}

impl CompletionQueue {
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
    ) -> Result<Self, StateError> {
        check(ring)?;
        // Entries are written a dword at a time.
        ensure(ring.base.get() & 3 == 0, "a completion queue's alignment")?;
        let doorbell = Doorbell::restore(head_index(qid), ring, buffer, posted_registers)?;
        let (size, head, tail) = (ring.size.get(), ring.head.get(), ring.tail.get());
        let mut queue = Self { qid, base: ring.base.get(), size, head, tail, free: 0, phase, doorbell };
        queue.free = size.wrapping_sub(1).saturating_sub(queue.unread());
        Ok(queue)
    }
}
