//! A completion queue from the controller's side.

use super::{after, distance};
use crate::doorbell::{Doorbell, DoorbellError, Registers, head_index};
use crate::memory::{DmaError, DmaMemory};
use crate::message::DoorbellBuffer;
use crate::spec::queue_entry::CompletionQueueEntry;
use crate::spec::status::Status;

/// A completion queue: the controller moves the tail, the driver the head.
///
/// An entry is reserved before the command that will fill it is fetched, so posting never finds the queue
/// full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionQueue {
    /// Queue identifier.
    pub(crate) qid: u16,
    pub(super) base: u64,
    pub(super) size: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// Entries neither posted nor reserved.
    pub(super) free: u32,
    pub(super) phase: bool,
    /// The head doorbell.
    pub(crate) doorbell: Doorbell,
}

impl CompletionQueue {
    /// An empty queue at `base` with `size` entries.
    pub(crate) const fn new(qid: u16, base: u64, size: u32) -> Self {
        Self {
            qid,
            base,
            size,
            head: 0,
            tail: 0,
            free: size.wrapping_sub(1),
            phase: true,
            doorbell: Doorbell::new(head_index(qid)),
        }
    }

    /// Whether no entry can be reserved.
    #[inline]
    pub(crate) const fn is_full(&self) -> bool {
        self.free == 0
    }

    /// Entries posted that the driver hasn't been seen to take.
    #[inline]
    pub(crate) const fn unread(&self) -> u32 {
        distance(self.head, self.tail, self.size)
    }

    /// Whether half of the queue hasn't been seen to be taken.
    #[inline]
    pub(crate) const fn is_half_unread(&self) -> bool {
        self.unread() >= self.size / 2
    }

    /// Reserves an entry for a command, or says that there is none.
    #[inline]
    pub(crate) fn reserve(&mut self) -> bool {
        match self.free.checked_sub(1) {
            Some(free) => {
                self.free = free;
                true
            }
            None => false,
        }
    }

    /// Gives back a reservation whose command was never fetched.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.free = self.free.wrapping_add(1);
    }

    /// Looks at the head doorbell. A head must lie between the old head and the tail.
    pub(crate) fn poll_head(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
    ) -> Result<(), DoorbellError> {
        if let Some(head) = self.doorbell.poll(memory, registers, self.head, self.size)? {
            let taken = distance(self.head, head, self.size);
            if taken > self.unread() {
                return Err(DoorbellError::Invalid(head));
            }
            self.head = head;
            self.free = self.free.wrapping_add(taken);
            self.doorbell.publish(memory, head, self.size)?;
        }
        Ok(())
    }

    /// Writes a completion into the entry reserved for it; its dword with the Phase Tag becomes visible last.
    #[inline]
    pub(crate) fn post(&mut self, memory: &impl DmaMemory, completion: Completion) -> Result<(), DmaError> {
        let Completion { sqid, sqhd, cid, status, result } = completion;
        let entry = CompletionQueueEntry { result, sqhd, sqid, cid, phase: self.phase, status };
        let offset = u64::from(self.tail).wrapping_mul(CompletionQueueEntry::SIZE_BYTES);
        memory.publish(self.base.wrapping_add(offset), entry.to_dwords())?;
        self.tail = after(self.tail, self.size);
        if self.tail == 0 {
            self.phase = !self.phase;
        }
        Ok(())
    }

    /// Uses the shadow in `buffer` from now on; what the old source held is taken first.
    pub(crate) fn attach(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        buffer: DoorbellBuffer,
    ) -> Result<(), DoorbellError> {
        let mut polled = self.poll_head(memory, registers);
        // A driver that moves a shadow which is in use now must write the register too. Where that shadow is
        // gone, there is nothing to take from it.
        if self.arm(memory, registers) == Ok(true) {
            polled = polled.and(self.poll_head(memory, registers));
        }
        self.doorbell.attach(memory, buffer, self.head)?;
        match polled {
            Err(DoorbellError::Dma) => Ok(()),
            polled => polled,
        }
    }

    /// Before sleeping: whether the head has moved already.
    pub(crate) fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Result<bool, DmaError> {
        self.doorbell.arm(memory, registers, self.head)
    }
}

/// What a completion queue entry says, without what the queue itself adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) sqid: u16,
    pub(crate) sqhd: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    pub(crate) result: u64,
}
