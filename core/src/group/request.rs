//! The controller's requests, and the replies that have to wait.

use super::{
    GroupCompletion, Pending, QueueGroup, QueueStatistics, Submission, get_mut, namespace_index, remove,
};
use crate::doorbell::{DoorbellError, Registers, clear_register, head_index, tail_index};
use crate::memory::DmaMemory;
use crate::message::{Coalescing, DoorbellBuffer, GroupReply, GroupRequest};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::spec::status::Status;
use crate::tag::Tag;

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    /// Takes a request of the controller; its reply comes out of [`QueueGroup::poll_message`].
    pub fn handle_request(&mut self, memory: &impl DmaMemory, registers: &Registers, request: GroupRequest) {
        let result = match request {
            GroupRequest::CreateCompletionQueue { qid, base, size, vector, coalesce } => {
                let queue = CompletionQueue::new(qid, base, size);
                self.create_completion_queue(memory, registers, queue, vector, coalesce)
            }
            GroupRequest::CreateSubmissionQueue { qid, cqid, base, size, page_shift } => {
                self.page_shift = page_shift;
                self.create_submission_queue(memory, registers, SubmissionQueue::new(qid, base, size), cqid)
            }
            GroupRequest::DeleteCompletionQueue { qid } => self.delete_completion_queue(qid),
            GroupRequest::DeleteSubmissionQueue { qid } => self.delete_submission_queue(qid),
            GroupRequest::Abort { sqid, cid } => self.abort(sqid, cid),
            GroupRequest::SetDoorbellBuffer(buffer) => self.attach_doorbells(memory, registers, buffer),
            GroupRequest::ClearDoorbellBuffer => {
                self.detach_doorbells();
                Ok(Some(GroupReply::Done))
            }
            GroupRequest::SetNamespace { nsid, namespace } => self.set_namespace(nsid, namespace),
            GroupRequest::RemoveNamespace { nsid } => self.remove_namespace(nsid),
            GroupRequest::SetWriteCache { enabled } => {
                self.write_through = !enabled;
                Ok(Some(GroupReply::Done))
            }
            GroupRequest::SetCoalescing(coalescing) => {
                self.coalescing = coalescing;
                Ok(Some(GroupReply::Done))
            }
            GroupRequest::SetVectorCoalescing { vector, enabled } => {
                for completion in self.completion.iter_mut().flatten() {
                    if completion.vector == Some(vector) {
                        completion.coalesce = enabled;
                    }
                }
                Ok(Some(GroupReply::Done))
            }
            GroupRequest::ReportStatistics => Ok(Some(GroupReply::Statistics(self.statistics))),
            GroupRequest::Reset => {
                self.reset();
                return;
            }
        };
        match result {
            Ok(Some(reply)) => self.reply = Place::Full(reply),
            Ok(None) => {}
            Err(status) => self.reply = Place::Full(GroupReply::Failed(status)),
        }
    }

    fn create_completion_queue(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        mut queue: CompletionQueue,
        vector: Option<u16>,
        coalesce: bool,
    ) -> Result<Option<GroupReply>, Status> {
        let place =
            self.completion.iter_mut().find(|place| place.is_empty()).ok_or(Status::INTERNAL_ERROR)?;
        clear_register(registers, head_index(queue.qid));
        queue.doorbell = queue.doorbell.with_posted_registers(self.config.posted_registers);
        if let Some(buffer) = self.doorbell_buffer {
            queue.doorbell.attach(memory, buffer, 0)?;
        }
        *place = Place::Full(GroupCompletion {
            queue,
            vector,
            coalesce,
            is_waiting: false,
            unannounced: 0,
            since_ns: 0,
            interrupts: 0,
        });
        Ok(Some(GroupReply::Done))
    }

    fn create_submission_queue(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        mut queue: SubmissionQueue,
        cqid: u16,
    ) -> Result<Option<GroupReply>, Status> {
        let completion = self.find_completion_queue(cqid).ok_or(Status::COMPLETION_QUEUE_INVALID.dnr())?;
        let (index, place) = (0..)
            .zip(self.submission.iter_mut())
            .find(|(_, place)| place.is_empty())
            .ok_or(Status::INTERNAL_ERROR)?;
        let sqid = queue.qid;
        clear_register(registers, tail_index(sqid));
        queue.doorbell = queue.doorbell.with_posted_registers(self.config.posted_registers);
        if let Some(buffer) = self.doorbell_buffer {
            queue.doorbell.attach(memory, buffer, 0)?;
        }
        self.active.push(index).map_err(|_| Status::INTERNAL_ERROR)?;
        let statistics = QueueStatistics { sqid, cqid, ..QueueStatistics::default() };
        *place = Place::Full(Submission { queue, completion, in_flight: 0, stopped: false, statistics });
        Ok(Some(GroupReply::Done))
    }

    fn delete_completion_queue(&mut self, qid: u16) -> Result<Option<GroupReply>, Status> {
        let index = self.find_completion_queue(qid).ok_or(Status::INVALID_QUEUE_IDENTIFIER.dnr())?;
        if let Some(place) = self.completion.get_mut(usize::from(index)) {
            *place = Place::Empty;
        }
        if let Some(position) = self.unannounced.iter().position(|&other| other == index) {
            remove(&mut self.unannounced, position);
        }
        Ok(Some(GroupReply::Done))
    }

    fn delete_submission_queue(&mut self, qid: u16) -> Result<Option<GroupReply>, Status> {
        let index = self.find_submission_queue(qid).ok_or(Status::INVALID_QUEUE_IDENTIFIER.dnr())?;
        if let Some(submission) = get_mut(&mut self.submission, index) {
            submission.stopped = true;
        }
        self.pending = Place::Full(Pending::DeleteSubmissionQueue { index });
        self.settle_pending_deletion();
        Ok(None)
    }

    fn abort(&mut self, sqid: u16, cid: u16) -> Result<Option<GroupReply>, Status> {
        let found = self.find_submission_queue(sqid).and_then(|index| self.slots.find(index, cid));
        let Some(tag) = found else { return Ok(Some(GroupReply::Abort { aborted: false })) };
        self.pending = Place::Full(Pending::Abort { tag, told: false });
        Ok(None)
    }

    fn set_namespace(&mut self, nsid: u32, namespace: Namespace) -> Result<Option<GroupReply>, Status> {
        let index = namespace_index(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let entry = self.namespaces.get_mut(index).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        entry.set(namespace);
        Ok(Some(GroupReply::Done))
    }

    fn remove_namespace(&mut self, nsid: u32) -> Result<Option<GroupReply>, Status> {
        let index = namespace_index(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let entry = self.namespaces.get_mut(index).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        entry.remove();
        self.pending = Place::Full(Pending::RemoveNamespace { index });
        self.settle_pending_deletion();
        Ok(None)
    }

    /// Seeds the buffers for every queue and switches over. What a queue's old source held is taken first, and
    /// every doorbell is looked at again by the next poll, so nothing rung meanwhile is lost.
    fn attach_doorbells(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        buffer: DoorbellBuffer,
    ) -> Result<Option<GroupReply>, Status> {
        let mut result = Ok(Some(GroupReply::Done));
        for index in 0..QUEUES {
            if let Some(submission) = self.submission.get_mut(index).and_then(Place::as_mut) {
                let qid = submission.queue.qid;
                let attached = submission.queue.attach(memory, registers, buffer);
                result = result.and(self.attached(qid, false, attached));
            }
            if let Some(completion) = self.completion.get_mut(index).and_then(Place::as_mut) {
                let qid = completion.queue.qid;
                let attached = completion.queue.attach(memory, registers, buffer);
                result = result.and(self.attached(qid, true, attached));
            }
        }
        match result {
            Ok(_) => self.doorbell_buffer = Some(buffer),
            // The controller has checked both pages, so they vanished just now.
            Err(_) => self.reattach_doorbells(memory, registers),
        }
        result
    }

    /// Goes back to the buffers in use before, which the driver keeps using when it is refused new ones.
    fn reattach_doorbells(&mut self, memory: &impl DmaMemory, registers: &Registers) {
        let Some(buffer) = self.doorbell_buffer else { return self.detach_doorbells() };
        let mut intact = true;
        for submission in self.submission.iter_mut().flatten() {
            intact &= submission.queue.attach(memory, registers, buffer) != Err(DoorbellError::Dma);
        }
        for completion in self.completion.iter_mut().flatten() {
            intact &= completion.queue.attach(memory, registers, buffer) != Err(DoorbellError::Dma);
        }
        if !intact {
            self.detach_doorbells();
        }
    }

    fn attached(
        &mut self,
        qid: u16,
        completion: bool,
        attached: Result<(), DoorbellError>,
    ) -> Result<Option<GroupReply>, Status> {
        match attached {
            Err(DoorbellError::Dma) => Err(Status::DATA_TRANSFER_ERROR),
            Err(error @ DoorbellError::Invalid(_)) => {
                self.doorbell_failed(qid, completion, error);
                Ok(Some(GroupReply::Done))
            }
            Ok(()) => Ok(Some(GroupReply::Done)),
        }
    }

    pub(super) fn detach_doorbells(&mut self) {
        self.doorbell_buffer = None;
        for submission in self.submission.iter_mut().flatten() {
            submission.queue.doorbell.detach();
        }
        for completion in self.completion.iter_mut().flatten() {
            completion.queue.doorbell.detach();
        }
    }

    /// Forgets everything that belongs to the driver, at once; the reply waits for the commands in flight.
    fn reset(&mut self) {
        self.detach_doorbells();
        self.submission = [Place::Empty; QUEUES];
        self.completion = [Place::Empty; QUEUES];
        self.active.clear();
        self.unannounced.clear();
        self.turn = 0;
        self.burst = 0;
        self.page_shift = 12;
        self.write_through = false;
        self.coalescing = Coalescing::default();
        self.pending = Place::Empty;
        self.reply = Place::Empty;
        self.fatal = None;
        self.events.clear();
        self.resetting = true;
        self.finish_reset();
    }

    pub(super) fn finish_reset(&mut self) {
        if self.slots.occupied() == 0 {
            self.resetting = false;
            self.reply = Place::Full(GroupReply::ResetDone);
        }
    }

    /// A command has ended: does the pending request have its answer?
    pub(super) fn settle_pending(&mut self, ended: Tag, status: Status) {
        match self.pending {
            Place::Full(Pending::Abort { tag, .. }) if tag == ended => {
                let aborted = (status.code_type(), status.code()) == (0, Status::ABORT_REQUESTED.code());
                self.pending = Place::Empty;
                self.reply = Place::Full(GroupReply::Abort { aborted });
            }
            _ => self.settle_pending_deletion(),
        }
    }

    fn settle_pending_deletion(&mut self) {
        match self.pending {
            Place::Full(Pending::DeleteSubmissionQueue { index }) => {
                let Some(place) = self.submission.get_mut(usize::from(index)) else { return };
                if place.as_ref().is_some_and(|submission| submission.in_flight > 0) {
                    return;
                }
                *place = Place::Empty;
                if let Some(position) = self.active.iter().position(|&other| other == index) {
                    remove(&mut self.active, position);
                }
            }
            Place::Full(Pending::RemoveNamespace { index }) => {
                let used = self.namespaces.get(index).is_some_and(|entry| entry.in_flight > 0);
                if used || self.flushes_of_all > 0 {
                    return;
                }
            }
            _ => return,
        }
        self.pending = Place::Empty;
        self.reply = Place::Full(GroupReply::Done);
    }

    fn find_completion_queue(&self, qid: u16) -> Option<u16> {
        let found =
            |place: &Place<GroupCompletion>| place.as_ref().is_some_and(|found| found.queue.qid == qid);
        (0..).zip(&self.completion).find(|(_, place)| found(place)).map(|(index, _)| index)
    }

    fn find_submission_queue(&self, qid: u16) -> Option<u16> {
        let found = |place: &Place<Submission>| place.as_ref().is_some_and(|found| found.queue.qid == qid);
        (0..).zip(&self.submission).find(|(_, place)| found(place)).map(|(index, _)| index)
    }
}
