//! A submission queue from the controller's side.

use zerocopy::{FromZeros, IntoBytes};

use super::{after, distance};
use crate::doorbell::{Doorbell, DoorbellError, Registers, tail_index};
use crate::memory::{DmaError, DmaMemory};
use crate::spec::queue_entry::SubmissionQueueEntry;

/// Bytes of a submission queue entry (CC.IOSQES 6).
const ENTRY_BYTES: u64 = 64;

/// A place for a submission queue entry. It is aligned, which the entry itself doesn't ask for, so that it is
/// copied and read word by word.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub(crate) struct Fetched(pub(crate) SubmissionQueueEntry);

impl Fetched {
    #[inline]
    pub(crate) fn new() -> Self {
        Self(SubmissionQueueEntry::new_zeroed())
    }
}

/// A submission queue: the driver moves the tail, the controller the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmissionQueue {
    /// Queue identifier.
    pub(crate) qid: u16,
    pub(super) base: u64,
    pub(super) size: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The tail doorbell.
    pub(crate) doorbell: Doorbell,
}

impl SubmissionQueue {
    /// An empty queue at `base` with `size` entries.
    pub(crate) const fn new(qid: u16, base: u64, size: u32) -> Self {
        Self { qid, base, size, head: 0, tail: 0, doorbell: Doorbell::new(tail_index(qid)) }
    }

    /// Entries known to wait.
    #[inline]
    pub(crate) const fn waiting(&self) -> u32 {
        distance(self.head, self.tail, self.size)
    }

    /// SQ Head Pointer for completion queue entries.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a position is at most 65,535")]
    pub(crate) const fn sqhd(&self) -> u16 {
        self.head as u16
    }

    /// Looks at the tail doorbell; afterwards [`SubmissionQueue::waiting`] tells what is new.
    #[inline]
    pub(crate) fn poll_tail(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
    ) -> Result<(), DoorbellError> {
        if let Some(tail) = self.doorbell.poll(memory, registers, self.tail, self.size)? {
            self.tail = tail;
            self.doorbell.publish(memory, tail, self.size)?;
        }
        Ok(())
    }

    /// Copies the entry at the head out of guest memory into `entry`, once, and moves the head past it.
    ///
    /// The caller has seen that an entry waits.
    #[inline]
    pub(crate) fn fetch(&mut self, memory: &impl DmaMemory, entry: &mut Fetched) -> Result<(), DmaError> {
        let offset = u64::from(self.head).wrapping_mul(ENTRY_BYTES);
        memory.read(self.base.wrapping_add(offset), entry.0.as_mut_bytes())?;
        self.head = after(self.head, self.size);
        Ok(())
    }

    /// Uses the shadow in `buffer` from now on; what the old source held is taken first.
    pub(crate) fn attach(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        buffer: crate::message::DoorbellBuffer,
    ) -> Result<(), DoorbellError> {
        let mut polled = self.poll_tail(memory, registers);
        // A driver that moves a shadow which is in use now must write the register too. Where that shadow is
        // gone, there is nothing to take from it.
        if self.arm(memory, registers) == Ok(true) {
            polled = polled.and(self.poll_tail(memory, registers));
        }
        self.doorbell.attach(memory, buffer, self.tail)?;
        match polled {
            Err(DoorbellError::Dma) => Ok(()),
            polled => polled,
        }
    }

    /// Before sleeping: whether the tail has moved already.
    pub(crate) fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Result<bool, DmaError> {
        self.doorbell.arm(memory, registers, self.tail)
    }
}
