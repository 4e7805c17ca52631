//! The admin queue pair. Its doorbells work by register always, and by shadow as well once Doorbell Buffer
//! Config has named one (see [`crate::doorbell`]).

use crate::doorbell::{DoorbellError, Registers};
use crate::memory::{DmaError, DmaMemory};
use crate::message::DoorbellBuffer;
use crate::queue::{Completion, CompletionQueue, Fetched, SubmissionQueue};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;

/// The admin submission and completion queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdminQueue {
    pub(super) submission: SubmissionQueue,
    pub(super) completion: CompletionQueue,
}

/// Why a queue isn't served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminQueueError {
    /// A doorbell held a value that it can't have; dropped.
    InvalidDoorbell,
    /// The shadow doorbells' memory is gone.
    Shadow,
    /// The queue itself can't be read or written.
    Fatal,
}

impl From<DoorbellError> for AdminQueueError {
    fn from(error: DoorbellError) -> Self {
        match error {
            DoorbellError::Invalid(_) => Self::InvalidDoorbell,
            DoorbellError::Dma => Self::Shadow,
        }
    }
}

impl AdminQueue {
    pub(super) const fn new(asq: u64, submission: u32, acq: u64, completion: u32) -> Self {
        Self {
            submission: SubmissionQueue::new(0, asq, submission),
            completion: CompletionQueue::new(0, acq, completion),
        }
    }

    /// Looks at the head doorbell, which makes room and lowers a pin-based interrupt.
    pub(super) fn poll_head(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
    ) -> Result<(), AdminQueueError> {
        Ok(self.completion.poll_head(memory, registers)?)
    }

    /// The next command, with an entry of the completion queue reserved for it.
    pub(super) fn fetch(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
    ) -> Result<Option<SubmissionQueueEntry>, AdminQueueError> {
        if self.submission.waiting() == 0 {
            self.submission.poll_tail(memory, registers)?;
        }
        if self.submission.waiting() == 0 || !self.completion.reserve() {
            return Ok(None);
        }
        let mut fetched = Fetched::new();
        match self.submission.fetch(memory, &mut fetched) {
            Ok(()) => Ok(Some(fetched.0)),
            Err(DmaError) => {
                self.completion.release();
                Err(AdminQueueError::Fatal)
            }
        }
    }

    /// Reserves an entry for a completion that no fetched command stands behind.
    pub(super) fn reserve(&mut self) -> bool {
        self.completion.reserve()
    }

    /// Gives a reservation back.
    pub(super) fn release(&mut self) {
        self.completion.release();
    }

    /// Posts into a reserved entry.
    pub(super) fn post(
        &mut self,
        memory: &impl DmaMemory,
        cid: u16,
        status: Status,
        result: u32,
    ) -> Result<(), DmaError> {
        let sqhd = self.submission.sqhd();
        let result = u64::from(result);
        let posted = self.completion.post(memory, Completion { sqid: 0, sqhd, cid, status, result });
        if posted.is_err() {
            self.completion.release();
        }
        posted
    }

    /// Whether a command waits and could be fetched.
    pub(super) const fn has_work(&self) -> bool {
        self.submission.waiting() > 0 && !self.completion.is_full()
    }

    /// Whether the driver has entries to take.
    pub(super) const fn has_unread(&self) -> bool {
        self.completion.unread() > 0
    }

    pub(super) fn attach(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        buffer: DoorbellBuffer,
    ) -> Result<(), AdminQueueError> {
        // Both are attached whatever the first one says: an invalid value was dropped, and its queue attached.
        let submission = self.submission.attach(memory, registers, buffer);
        let completion = self.completion.attach(memory, registers, buffer);
        if submission == Err(DoorbellError::Dma) { Err(AdminQueueError::Shadow) } else { Ok(completion?) }
    }

    pub(super) fn detach(&mut self) {
        self.submission.doorbell.detach();
        self.completion.doorbell.detach();
    }

    /// Before the host sleeps: asks for register writes; whether either doorbell has moved already.
    pub(super) fn arm(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
    ) -> Result<bool, AdminQueueError> {
        let armed = (|| {
            let tail = self.submission.waiting() == 0 && self.submission.arm(memory, registers)?;
            let head = self.completion.unread() > 0 && self.completion.arm(memory, registers)?;
            Ok(tail || head)
        })();
        armed.map_err(|DmaError| AdminQueueError::Shadow)
    }
}
