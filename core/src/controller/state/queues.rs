//! The admin queue, I/O queue identifiers, and what is under way to groups, as records.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::super::admin_queue::AdminQueue;
use super::super::groups::UnderWay;
use super::super::queues::Queues;
use super::super::{Controller, PendingCommand};
use crate::message::{DoorbellBuffer, GroupRequest, MessageWords, kind};
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::state::controller::{AdminQueueRecord, GroupRecord, PendingRecord, QueueRecord, RequestRecord};
use crate::state::group::StatisticsRecord;
use crate::state::{StateError, Writer, ensure, flag};

impl AdminQueueRecord {
    pub(super) fn new(admin: &AdminQueue) -> Self {
        let AdminQueue { submission, completion } = admin;
        Self {
            submission: submission.save(),
            completion: completion.save(),
            phase: completion.phase().into(),
            reserved: [0; 3],
        }
    }

    /// The queue, with an entry reserved for a command that is being carried out.
    pub(super) fn restore(
        &self,
        buffer: Option<DoorbellBuffer>,
        is_reserved: bool,
    ) -> Result<AdminQueue, StateError> {
        self.submission.check(1)?;
        self.completion.check(CompletionQueue::ALIGNMENT)?;
        let submission = SubmissionQueue::restore(0, &self.submission, buffer, false);
        let mut completion = CompletionQueue::restore(0, &self.completion, self.phase != 0, buffer, false);
        ensure(
            !is_reserved || completion.reserve(),
            "a pending command without an entry for its completion",
        )?;
        Ok(AdminQueue { submission, completion })
    }
}

impl<const QUEUES: usize> Queues<QUEUES> {
    pub(super) fn save(&self, writer: &mut Writer<'_>, io_queues: u16) -> Result<(), StateError> {
        let Self { completion, submission } = self;
        for (completion, cqid) in completion.iter().zip(submission).take(io_queues.into()) {
            let has_completion = (*completion).into();
            writer.record(&QueueRecord { cqid: (*cqid).into(), has_completion, reserved: 0 })?;
        }
        Ok(())
    }

    pub(super) fn load(&mut self, records: &[QueueRecord]) -> Result<(), StateError> {
        let places = self.completion.iter_mut().zip(&mut self.submission);
        for (record, (completion, submission)) in records.iter().zip(places) {
            *completion = flag(record.has_completion)?;
            *submission = record.cqid.get();
        }
        let all_there = self.submission.iter().all(|&cqid| cqid == 0 || self.has_completion_queue(cqid));
        ensure(all_there, "a submission queue without a completion queue")
    }
}

impl UnderWay {
    pub(super) fn record(self, statistics: StatisticsRecord) -> GroupRecord {
        let (under_way, namespace) = match self {
            Self::Nothing => (0, 0),
            Self::Reset => (1, 0),
            Self::ClearDoorbellBuffer => (2, 0),
            Self::Namespace(index) => (3, index),
            Self::Command => (4, 0),
        };
        GroupRecord { under_way, reserved: 0, namespace: namespace.into(), statistics }
    }
}

impl GroupRecord {
    pub(super) fn restore(&self) -> Result<UnderWay, StateError> {
        Ok(match self.under_way {
            0 => UnderWay::Nothing,
            1 => UnderWay::Reset,
            2 => UnderWay::ClearDoorbellBuffer,
            3 => UnderWay::Namespace(self.namespace.get()),
            4 => UnderWay::Command,
            _ => return Err(StateError::Inconsistent("what is under way to a group")),
        })
    }
}

impl PendingRecord {
    pub(super) fn new(pending: Option<&PendingCommand>) -> Self {
        let mut record = Self::new_zeroed();
        let Some(PendingCommand { command, request, failure, aborted }) = pending else { return record };
        record.is_there = 1;
        record.has_failed = failure.is_some().into();
        record.status = failure.map_or(0, |status| status.0).into();
        record.aborted = (*aborted).into();
        // Both are 64 bytes.
        let _ = command.write_to(&mut record.command);
        record.request = RequestRecord::new(request);
        record
    }

    /// `None` where the request is none; another command, where the record is none that [`PendingRecord::new`]
    /// makes.
    pub(super) fn restore(&self) -> Option<PendingCommand> {
        Some(PendingCommand {
            command: SubmissionQueueEntry::read_from_bytes(&self.command).ok()?,
            request: self.request.restore()?,
            failure: (self.has_failed != 0).then_some(Status(self.status.get())),
            aborted: self.aborted != 0,
        })
    }
}

/// What is taken from the kinds of messages that admin commands don't lead to.
const KINDS_LEFT_OUT: u16 = kind::SET_WRITE_CACHE - 7;

impl RequestRecord {
    fn new(request: &GroupRequest) -> Self {
        let MessageWords { kind, a, b, c, d, q: [base, second, ..] } = request.to_words();
        let [a_low, _] = a.to_le_bytes();
        let [b_low, _] = b.to_le_bytes();
        let [c_low, _] = c.to_le_bytes();
        let mut record = Self { size: d.into(), base: base.into(), second: second.into(), ..Self::default() };
        let mut left_out = KINDS_LEFT_OUT;
        match kind {
            kind::SET_WRITE_CACHE => record.flag = a_low,
            kind::SET_COALESCING => (record.low, record.high) = (a_low, b_low),
            kind::SET_VECTOR_COALESCING => (record.other, record.flag) = (a.into(), b_low),
            kind::REPORT_STATISTICS => {}
            _ => {
                left_out = 0;
                (record.qid, record.other, record.low) = (a.into(), b.into(), c_low);
                if kind == kind::CREATE_CQ {
                    (record.low, record.flag) = (c_low & 1, c_low >> 1);
                }
            }
        }
        [record.kind, _] = kind.wrapping_sub(left_out).to_le_bytes();
        record
    }

    fn restore(&self) -> Option<GroupRequest> {
        let (qid, other) = (self.qid.get(), self.other.get());
        let (flag, low, high) = (self.flag.into(), self.low.into(), self.high.into());
        let q = [self.base.get(), self.second.get(), 0, 0, 0, 0];
        let kind = u16::from(self.kind);
        let (kind, [a, b, c]) = match kind {
            kind::CREATE_CQ => (kind, [qid, other, low | flag << 1]),
            kind::CREATE_SQ..=kind::SET_DOORBELL_BUFFER => (kind, [qid, other, low]),
            _ => {
                let kind = kind.wrapping_add(KINDS_LEFT_OUT);
                (
                    kind,
                    match kind {
                        kind::SET_WRITE_CACHE => [flag, 0, 0],
                        kind::SET_COALESCING => [low, high, 0],
                        _ => [other, flag, 0],
                    },
                )
            }
        };
        GroupRequest::from_words(&MessageWords { kind, a, b, c, d: self.size.get(), q })
    }
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// Whether an admin command may ask this of the groups as things are.
    pub(super) fn is_possible(&self, request: &GroupRequest) -> bool {
        let exists = |qid: u16| (1..=self.config.io_queues).contains(&qid);
        let is_ring =
            |base: u64, size: u32| base & 0xfff == 0 && (2..=self.config.max_queue_entries).contains(&size);
        let is_vector = |vector: u16| vector < self.config.vectors;
        match *request {
            GroupRequest::CreateCompletionQueue { qid, base, size, vector, .. } => {
                exists(qid)
                    && is_ring(base, size)
                    && vector.is_none_or(is_vector)
                    && !self.queues.has_completion_queue(qid)
            }
            GroupRequest::CreateSubmissionQueue { qid, cqid, base, size, page_shift } => {
                exists(qid)
                    && is_ring(base, size)
                    && page_shift == self.page_shift
                    && self.queues.has_completion_queue(cqid)
                    && self.queues.completion_queue_of(qid).is_none()
            }
            GroupRequest::DeleteCompletionQueue { qid } => {
                self.queues.has_completion_queue(qid) && !self.queues.is_used(qid)
            }
            GroupRequest::DeleteSubmissionQueue { qid } | GroupRequest::Abort { sqid: qid, .. } => {
                self.queues.completion_queue_of(qid).is_some()
            }
            GroupRequest::SetDoorbellBuffer(DoorbellBuffer { shadow, event_idx }) => {
                (shadow | event_idx) & 0xfff == 0 && shadow != event_idx
            }
            GroupRequest::SetVectorCoalescing { vector, .. } => is_vector(vector),
            GroupRequest::SetWriteCache { .. }
            | GroupRequest::SetCoalescing(_)
            | GroupRequest::ReportStatistics => true,
            GroupRequest::ClearDoorbellBuffer
            | GroupRequest::SetNamespace { .. }
            | GroupRequest::RemoveNamespace { .. }
            | GroupRequest::Reset => false,
        }
    }
}
