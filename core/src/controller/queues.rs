//! Create and Delete I/O Queue, Abort, Doorbell Buffer Config: commands that the groups have a part in.
//!
//! Read first: NVM Express Base Specification 2.0, sections 5.1 (Abort), 5.4 to 5.7 (queues) and 5.8 (Doorbell
//! Buffer Config).

use super::groups::GroupSet;
use super::{Answer, Controller};
use crate::memory::{Access, DmaMemory};
use crate::message::{DoorbellBuffer, GroupRequest};
use crate::spec::admin::{
    AbortDword10, CreateCompletionQueueDword11, CreateQueueDword10, CreateSubmissionQueueDword11,
};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;

/// The I/O queues that exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues<const QUEUES: usize> {
    pub(super) completion: [bool; QUEUES],
    /// By submission queue, the completion queue that it uses; 0 where it doesn't exist.
    pub(super) submission: [u16; QUEUES],
}

impl<const QUEUES: usize> Queues<QUEUES> {
    pub(super) const fn new() -> Self {
        Self { completion: [false; QUEUES], submission: [0; QUEUES] }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.completion.contains(&true) && self.submission.iter().all(|&cqid| cqid == 0)
    }

    pub(super) fn has_completion_queue(&self, qid: u16) -> bool {
        index(qid).and_then(|index| self.completion.get(index)).copied().unwrap_or(false)
    }

    /// The completion queue of a submission queue that exists.
    pub(super) fn completion_queue_of(&self, sqid: u16) -> Option<u16> {
        index(sqid).and_then(|index| self.submission.get(index)).copied().filter(|&cqid| cqid != 0)
    }

    pub(super) fn is_used(&self, cqid: u16) -> bool {
        self.submission.contains(&cqid)
    }

    /// A queue command has been obeyed by its group.
    pub(super) fn group_obeyed(&mut self, request: &GroupRequest) {
        let (exists, qid, cqid) = match *request {
            GroupRequest::CreateCompletionQueue { qid, .. } => (true, qid, None),
            GroupRequest::DeleteCompletionQueue { qid } => (false, qid, None),
            GroupRequest::CreateSubmissionQueue { qid, cqid, .. } => (true, qid, Some(cqid)),
            GroupRequest::DeleteSubmissionQueue { qid } => (true, qid, Some(0)),
            _ => return,
        };
        let Some(index) = index(qid) else { return };
        match cqid {
            None => {
                if let Some(place) = self.completion.get_mut(index) {
                    *place = exists;
                }
            }
            Some(cqid) => {
                if let Some(place) = self.submission.get_mut(index) {
                    *place = cqid;
                }
            }
        }
    }
}

fn index(qid: u16) -> Option<usize> {
    qid.checked_sub(1).map(usize::from)
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    pub(super) fn create_completion_queue(
        &self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        let dword10 = CreateQueueDword10::from_bits(command.cdw10.get());
        let dword11 = CreateCompletionQueueDword11::from_bits(command.cdw11.get());
        let qid = dword10.qid();
        if qid == 0 || qid > self.features.completion_queues() || self.queues.has_completion_queue(qid) {
            return Err(Status::INVALID_QUEUE_IDENTIFIER.dnr());
        }
        if self.registers.configuration.iocqes() != 4 {
            return Err(Status::INVALID_QUEUE_SIZE.dnr());
        }
        let size = self.queue_size(dword10)?;
        if !dword11.pc() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if dword11.ien() && dword11.iv() >= self.config.vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR.dnr());
        }
        let base = self.queue_base(memory, command, size, 16, Access::Write)?;
        let vector = dword11.ien().then_some(dword11.iv());
        let coalesce = self.features.coalesces(dword11.iv());
        Ok(Answer::ForGroup(
            self.groups.of_completion_queue(qid),
            GroupRequest::CreateCompletionQueue { qid, base, size, vector, coalesce },
        ))
    }

    pub(super) fn create_submission_queue(
        &self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        let dword10 = CreateQueueDword10::from_bits(command.cdw10.get());
        let dword11 = CreateSubmissionQueueDword11::from_bits(command.cdw11.get());
        let (qid, cqid) = (dword10.qid(), dword11.cqid());
        if !self.queues.has_completion_queue(cqid) {
            return Err(Status::COMPLETION_QUEUE_INVALID.dnr());
        }
        if qid == 0
            || qid > self.features.submission_queues()
            || self.queues.completion_queue_of(qid).is_some()
        {
            return Err(Status::INVALID_QUEUE_IDENTIFIER.dnr());
        }
        if self.registers.configuration.iosqes() != 6 {
            return Err(Status::INVALID_QUEUE_SIZE.dnr());
        }
        let size = self.queue_size(dword10)?;
        if !dword11.pc() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let base = self.queue_base(memory, command, size, 64, Access::Read)?;
        let page_shift = self.page_shift;
        Ok(Answer::ForGroup(
            self.groups.of_completion_queue(cqid),
            GroupRequest::CreateSubmissionQueue { qid, cqid, base, size, page_shift },
        ))
    }

    pub(super) fn delete_completion_queue(&self, command: &SubmissionQueueEntry) -> Result<Answer, Status> {
        let qid = CreateQueueDword10::from_bits(command.cdw10.get()).qid();
        if !self.queues.has_completion_queue(qid) {
            return Err(Status::INVALID_QUEUE_IDENTIFIER.dnr());
        }
        if self.queues.is_used(qid) {
            return Err(Status::INVALID_QUEUE_DELETION.dnr());
        }
        let group = self.groups.of_completion_queue(qid);
        Ok(Answer::ForGroup(group, GroupRequest::DeleteCompletionQueue { qid }))
    }

    pub(super) fn delete_submission_queue(&self, command: &SubmissionQueueEntry) -> Result<Answer, Status> {
        let qid = CreateQueueDword10::from_bits(command.cdw10.get()).qid();
        let cqid = self.queues.completion_queue_of(qid).ok_or(Status::INVALID_QUEUE_IDENTIFIER.dnr())?;
        let group = self.groups.of_completion_queue(cqid);
        Ok(Answer::ForGroup(group, GroupRequest::DeleteSubmissionQueue { qid }))
    }

    /// Result bit 0 is 1 where the command was not aborted.
    pub(super) fn abort(&mut self, command: &SubmissionQueueEntry) -> Result<Answer, Status> {
        let dword10 = AbortDword10::from_bits(command.cdw10.get());
        let (sqid, cid) = (dword10.sqid(), dword10.cid());
        if sqid == 0 {
            // The only admin commands that are outstanding beside this one are held event requests.
            return Ok(Answer::Result(u32::from(!self.events.abort(cid))));
        }
        match self.queues.completion_queue_of(sqid) {
            Some(cqid) => {
                let group = self.groups.of_completion_queue(cqid);
                Ok(Answer::ForGroup(group, GroupRequest::Abort { sqid, cid }))
            }
            None => Ok(Answer::Result(1)),
        }
    }

    pub(super) fn doorbell_buffer_config(
        &self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        let buffer = DoorbellBuffer { shadow: command.prp1.get(), event_idx: command.prp2.get() };
        let page_bytes = self.page_bytes();
        let page_mask = page_bytes.wrapping_sub(1);
        if (buffer.shadow | buffer.event_idx) & page_mask != 0 || buffer.shadow == buffer.event_idx {
            return Err(Status::INVALID_FIELD.dnr());
        }
        memory.check(buffer.shadow, page_bytes, Access::Read)?;
        memory.check(buffer.shadow, page_bytes, Access::Write)?;
        memory.check(buffer.event_idx, page_bytes, Access::Write)?;
        Ok(Answer::ForAllGroups(GroupRequest::SetDoorbellBuffer(buffer)))
    }

    fn queue_size(&self, dword10: CreateQueueDword10) -> Result<u32, Status> {
        let size = u32::from(dword10.qsize_z()).wrapping_add(1);
        if size < 2 || size > self.config.max_queue_entries {
            return Err(Status::INVALID_QUEUE_SIZE.dnr());
        }
        Ok(size)
    }

    fn queue_base(
        &self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
        size: u32,
        entry_bytes: u64,
        access: Access,
    ) -> Result<u64, Status> {
        let base = command.prp1.get();
        if base & self.page_bytes().wrapping_sub(1) != 0 {
            return Err(Status::PRP_OFFSET_INVALID.dnr());
        }
        memory.check(base, u64::from(size).wrapping_mul(entry_bytes), access)?;
        Ok(base)
    }

    pub(super) fn groups_for(&self, answer: &Answer) -> GroupSet {
        match answer {
            Answer::ForGroup(group, _) => GroupSet::one(*group),
            Answer::ForAllGroups(_) => self.groups.all(),
            Answer::Result(_) | Answer::Held => GroupSet::EMPTY,
        }
    }
}
