//! The admin queue, I/O queue identifiers, and what is under way to groups, as records.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::super::admin_queue::AdminQueue;
use super::super::groups::UnderWay;
use super::super::queues::Queues;
use super::super::{Controller, PendingCommand};
use crate::message::{Coalescing, DoorbellBuffer, GroupRequest};
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::state::controller::{AdminQueueRecord, GroupRecord, PendingRecord, QueueRecord, RequestRecord};
use crate::state::group::StatisticsRecord;
use crate::state::{StateError, Writer, ensure, flag, optional};

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
        let phase = flag(self.phase)?;
        self.submission.check(1)?;
        self.completion.check(CompletionQueue::ALIGNMENT)?;
        let submission = SubmissionQueue::restore(0, &self.submission, buffer, false);
        let mut completion = CompletionQueue::restore(0, &self.completion, phase, buffer, false);
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

    pub(super) fn restore(&self) -> Result<PendingCommand, StateError> {
        let command = SubmissionQueueEntry::read_from_bytes(&self.command);
        Ok(PendingCommand {
            command: command.map_err(|_| StateError::WrongLength)?,
            request: self.request.restore()?,
            failure: optional(self.has_failed, Status(self.status.get()))?,
            aborted: flag(self.aborted)?,
        })
    }
}

impl RequestRecord {
    fn new(request: &GroupRequest) -> Self {
        let record = Self::default();
        match *request {
            GroupRequest::CreateCompletionQueue { qid, base, size, vector, coalesce } => Self {
                kind: 1,
                flag: coalesce.into(),
                qid: qid.into(),
                other: vector.unwrap_or(0).into(),
                low: vector.is_some().into(),
                size: size.into(),
                base: base.into(),
                ..record
            },
            GroupRequest::CreateSubmissionQueue { qid, cqid, base, size, page_shift } => Self {
                kind: 2,
                qid: qid.into(),
                other: cqid.into(),
                low: page_shift,
                size: size.into(),
                base: base.into(),
                ..record
            },
            GroupRequest::DeleteCompletionQueue { qid } => Self { kind: 3, qid: qid.into(), ..record },
            GroupRequest::DeleteSubmissionQueue { qid } => Self { kind: 4, qid: qid.into(), ..record },
            GroupRequest::Abort { sqid, cid } => {
                Self { kind: 5, qid: sqid.into(), other: cid.into(), ..record }
            }
            GroupRequest::SetDoorbellBuffer(DoorbellBuffer { shadow, event_idx }) => {
                Self { kind: 6, base: shadow.into(), second: event_idx.into(), ..record }
            }
            GroupRequest::SetWriteCache { enabled } => Self { kind: 7, flag: enabled.into(), ..record },
            GroupRequest::SetCoalescing(Coalescing { threshold_z, time_100us }) => {
                Self { kind: 8, low: threshold_z, high: time_100us, ..record }
            }
            GroupRequest::SetVectorCoalescing { vector, enabled } => {
                Self { kind: 9, flag: enabled.into(), other: vector.into(), ..record }
            }
            GroupRequest::ReportStatistics => Self { kind: 10, ..record },
            // No admin command asks for these.
            GroupRequest::ClearDoorbellBuffer
            | GroupRequest::SetNamespace { .. }
            | GroupRequest::RemoveNamespace { .. }
            | GroupRequest::Reset => record,
        }
    }

    fn restore(&self) -> Result<GroupRequest, StateError> {
        let (qid, other, flag) = (self.qid.get(), self.other.get(), flag(self.flag)?);
        let (base, size) = (self.base.get(), self.size.get());
        Ok(match self.kind {
            1 => {
                let vector = optional(self.low, other)?;
                GroupRequest::CreateCompletionQueue { qid, base, size, vector, coalesce: flag }
            }
            2 => GroupRequest::CreateSubmissionQueue { qid, cqid: other, base, size, page_shift: self.low },
            3 => GroupRequest::DeleteCompletionQueue { qid },
            4 => GroupRequest::DeleteSubmissionQueue { qid },
            5 => GroupRequest::Abort { sqid: qid, cid: other },
            6 => {
                let event_idx = self.second.get();
                GroupRequest::SetDoorbellBuffer(DoorbellBuffer { shadow: base, event_idx })
            }
            7 => GroupRequest::SetWriteCache { enabled: flag },
            8 => {
                let (threshold_z, time_100us) = (self.low, self.high);
                GroupRequest::SetCoalescing(Coalescing { threshold_z, time_100us })
            }
            9 => GroupRequest::SetVectorCoalescing { vector: other, enabled: flag },
            10 => GroupRequest::ReportStatistics,
            _ => return Err(StateError::Inconsistent("what a pending command asks of the groups")),
        })
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
