//! Messages between controller and group, and what a group call leaves.

use doorbell_core::group::QueueStatistics;
use doorbell_core::message::{
    Coalescing, CommandError, DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest,
    GroupStatistics,
};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One message of any kind. What the fields mean depends on `kind`; the others are 0.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MessageRecord {
    /// Which message.
    pub kind: U16,
    /// First small field.
    pub a: U16,
    /// Second small field.
    pub b: U16,
    /// Third small field.
    pub c: U16,
    /// First dword.
    pub d: U32,
    /// The group's index where a request leaves the controller, else 0.
    pub group: U32,
    /// Qwords.
    pub q: [U64; 6],
}

const _: () = assert!(size_of::<MessageRecord>() == 64);

mod request {
    pub(super) const CREATE_CQ: u16 = 1;
    pub(super) const CREATE_SQ: u16 = 2;
    pub(super) const DELETE_CQ: u16 = 3;
    pub(super) const DELETE_SQ: u16 = 4;
    pub(super) const ABORT: u16 = 5;
    pub(super) const SET_DOORBELL_BUFFER: u16 = 6;
    pub(super) const CLEAR_DOORBELL_BUFFER: u16 = 7;
    pub(super) const SET_NAMESPACE: u16 = 8;
    pub(super) const REMOVE_NAMESPACE: u16 = 9;
    pub(super) const SET_WRITE_CACHE: u16 = 10;
    pub(super) const SET_COALESCING: u16 = 11;
    pub(super) const SET_VECTOR_COALESCING: u16 = 12;
    pub(super) const REPORT_STATISTICS: u16 = 13;
    pub(super) const RESET: u16 = 14;
}

mod reply {
    pub(super) const DONE: u16 = 32;
    pub(super) const FAILED: u16 = 33;
    pub(super) const ABORT: u16 = 34;
    pub(super) const STATISTICS: u16 = 35;
    pub(super) const RESET_DONE: u16 = 36;
}

mod event {
    pub(super) const INVALID_DOORBELL: u16 = 48;
    pub(super) const COMMAND_ERROR: u16 = 49;
    pub(super) const FATAL: u16 = 50;
}

impl MessageRecord {
    /// A record of this kind with nothing in it.
    #[must_use]
    pub fn of_kind(kind: u16) -> Self {
        Self { kind: U16::new(kind), ..Self::default() }
    }

    /// The record of a request to the group at this index.
    #[must_use]
    pub fn encode_request(group: u16, request: &GroupRequest) -> Self {
        let mut record = Self { group: U32::new(u32::from(group)), ..Self::default() };
        let kind = match *request {
            GroupRequest::CreateCompletionQueue { qid, base, size, vector, coalesce } => {
                record.a = U16::new(qid);
                record.b = U16::new(vector.unwrap_or(0));
                record.c = U16::new(u16::from(vector.is_some()) | u16::from(coalesce) << 1);
                record.d = U32::new(size);
                record.q = [base, 0, 0, 0, 0, 0].map(U64::new);
                request::CREATE_CQ
            }
            GroupRequest::CreateSubmissionQueue { qid, cqid, base, size, page_shift } => {
                record.a = U16::new(qid);
                record.b = U16::new(cqid);
                record.c = U16::new(u16::from(page_shift));
                record.d = U32::new(size);
                record.q = [base, 0, 0, 0, 0, 0].map(U64::new);
                request::CREATE_SQ
            }
            GroupRequest::DeleteCompletionQueue { qid } => {
                record.a = U16::new(qid);
                request::DELETE_CQ
            }
            GroupRequest::DeleteSubmissionQueue { qid } => {
                record.a = U16::new(qid);
                request::DELETE_SQ
            }
            GroupRequest::Abort { sqid, cid } => {
                record.a = U16::new(sqid);
                record.b = U16::new(cid);
                request::ABORT
            }
            GroupRequest::SetDoorbellBuffer(DoorbellBuffer { shadow, event_idx }) => {
                record.q = [shadow, event_idx, 0, 0, 0, 0].map(U64::new);
                request::SET_DOORBELL_BUFFER
            }
            GroupRequest::ClearDoorbellBuffer => request::CLEAR_DOORBELL_BUFFER,
            GroupRequest::SetNamespace { nsid, namespace } => {
                record.a = U16::new(u16::from(namespace.block_shift));
                record.b = U16::new(u16::from(namespace.read_only));
                record.d = U32::new(nsid);
                record.q = [namespace.size_blocks, 0, 0, 0, 0, 0].map(U64::new);
                request::SET_NAMESPACE
            }
            GroupRequest::RemoveNamespace { nsid } => {
                record.d = U32::new(nsid);
                request::REMOVE_NAMESPACE
            }
            GroupRequest::SetWriteCache { enabled } => {
                record.a = U16::new(u16::from(enabled));
                request::SET_WRITE_CACHE
            }
            GroupRequest::SetCoalescing(Coalescing { threshold_z, time_100us }) => {
                record.a = U16::new(u16::from(threshold_z));
                record.b = U16::new(u16::from(time_100us));
                request::SET_COALESCING
            }
            GroupRequest::SetVectorCoalescing { vector, enabled } => {
                record.a = U16::new(vector);
                record.b = U16::new(u16::from(enabled));
                request::SET_VECTOR_COALESCING
            }
            GroupRequest::ReportStatistics => request::REPORT_STATISTICS,
            GroupRequest::Reset => request::RESET,
        };
        record.kind = U16::new(kind);
        record
    }

    /// The request that the record describes, and the index of its group.
    #[must_use]
    pub fn decode_request(&self) -> Option<(u16, GroupRequest)> {
        let (a, b, c, d) = (self.a.get(), self.b.get(), self.c.get(), self.d.get());
        let [q0, q1, ..] = self.q.map(U64::get);
        let request = match self.kind.get() {
            request::CREATE_CQ => GroupRequest::CreateCompletionQueue {
                qid: a,
                base: q0,
                size: d,
                vector: (c & 1 != 0).then_some(b),
                coalesce: c & 2 != 0,
            },
            request::CREATE_SQ => GroupRequest::CreateSubmissionQueue {
                qid: a,
                cqid: b,
                base: q0,
                size: d,
                page_shift: u8::try_from(c).ok()?,
            },
            request::DELETE_CQ => GroupRequest::DeleteCompletionQueue { qid: a },
            request::DELETE_SQ => GroupRequest::DeleteSubmissionQueue { qid: a },
            request::ABORT => GroupRequest::Abort { sqid: a, cid: b },
            request::SET_DOORBELL_BUFFER => {
                GroupRequest::SetDoorbellBuffer(DoorbellBuffer { shadow: q0, event_idx: q1 })
            }
            request::CLEAR_DOORBELL_BUFFER => GroupRequest::ClearDoorbellBuffer,
            request::SET_NAMESPACE => GroupRequest::SetNamespace {
                nsid: d,
                namespace: Namespace {
                    size_blocks: q0,
                    block_shift: u8::try_from(a).ok()?,
                    read_only: b & 1 != 0,
                },
            },
            request::REMOVE_NAMESPACE => GroupRequest::RemoveNamespace { nsid: d },
            request::SET_WRITE_CACHE => GroupRequest::SetWriteCache { enabled: a & 1 != 0 },
            request::SET_COALESCING => GroupRequest::SetCoalescing(Coalescing {
                threshold_z: u8::try_from(a).ok()?,
                time_100us: u8::try_from(b).ok()?,
            }),
            request::SET_VECTOR_COALESCING => {
                GroupRequest::SetVectorCoalescing { vector: a, enabled: b & 1 != 0 }
            }
            request::REPORT_STATISTICS => GroupRequest::ReportStatistics,
            request::RESET => GroupRequest::Reset,
            _ => return None,
        };
        Some((u16::try_from(self.group.get()).ok()?, request))
    }

    /// The record of a message to the controller.
    #[must_use]
    pub fn encode_message(message: &GroupMessage) -> Self {
        let mut record = Self::default();
        let kind = match *message {
            GroupMessage::Reply(GroupReply::Done) => reply::DONE,
            GroupMessage::Reply(GroupReply::Failed(status)) => {
                record.a = U16::new(status.0);
                reply::FAILED
            }
            GroupMessage::Reply(GroupReply::Abort { aborted }) => {
                record.a = U16::new(u16::from(aborted));
                reply::ABORT
            }
            GroupMessage::Reply(GroupReply::Statistics(statistics)) => {
                record.q = StatisticsRecord::encode(&statistics).0;
                reply::STATISTICS
            }
            GroupMessage::Reply(GroupReply::ResetDone) => reply::RESET_DONE,
            GroupMessage::Event(GroupEvent::InvalidDoorbell { qid, completion, value }) => {
                record.a = U16::new(qid);
                record.b = U16::new(u16::from(completion));
                record.d = U32::new(value);
                event::INVALID_DOORBELL
            }
            GroupMessage::Event(GroupEvent::CommandError(error)) => {
                record.a = U16::new(error.sqid);
                record.b = U16::new(error.cid);
                record.c = U16::new(error.status.0);
                record.d = U32::new(error.nsid);
                record.q = [error.lba, 0, 0, 0, 0, 0].map(U64::new);
                event::COMMAND_ERROR
            }
            GroupMessage::Event(GroupEvent::Fatal { qid }) => {
                record.a = U16::new(qid);
                event::FATAL
            }
        };
        record.kind = U16::new(kind);
        record
    }

    /// The message to the controller that the record describes.
    #[must_use]
    pub fn decode_message(&self) -> Option<GroupMessage> {
        let (a, b, c, d) = (self.a.get(), self.b.get(), self.c.get(), self.d.get());
        Some(match self.kind.get() {
            reply::DONE => GroupMessage::Reply(GroupReply::Done),
            reply::FAILED => GroupMessage::Reply(GroupReply::Failed(Status(a))),
            reply::ABORT => GroupMessage::Reply(GroupReply::Abort { aborted: a & 1 != 0 }),
            reply::STATISTICS => {
                GroupMessage::Reply(GroupReply::Statistics(StatisticsRecord(self.q).decode()))
            }
            reply::RESET_DONE => GroupMessage::Reply(GroupReply::ResetDone),
            event::INVALID_DOORBELL => {
                GroupMessage::Event(GroupEvent::InvalidDoorbell { qid: a, completion: b & 1 != 0, value: d })
            }
            event::COMMAND_ERROR => {
                let [lba, ..] = self.q.map(U64::get);
                let (sqid, cid, status, nsid) = (a, b, Status(c), d);
                GroupMessage::Event(GroupEvent::CommandError(CommandError { sqid, cid, status, lba, nsid }))
            }
            event::FATAL => GroupMessage::Event(GroupEvent::Fatal { qid: a }),
            _ => return None,
        })
    }
}

/// [`GroupStatistics`], in the order of its fields.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatisticsRecord(pub [U64; 6]);

impl StatisticsRecord {
    /// The record of these statistics.
    #[must_use]
    pub fn encode(statistics: &GroupStatistics) -> Self {
        let GroupStatistics {
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            media_errors,
            error_log_entries,
        } = *statistics;
        let words =
            [bytes_read, bytes_written, read_commands, write_commands, media_errors, error_log_entries];
        Self(words.map(U64::new))
    }

    /// The statistics of the record.
    #[must_use]
    pub fn decode(&self) -> GroupStatistics {
        let [bytes_read, bytes_written, read_commands, write_commands, media_errors, error_log_entries] =
            self.0.map(U64::get);
        GroupStatistics {
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            media_errors,
            error_log_entries,
        }
    }
}

/// [`QueueStatistics`]: the two identifiers, then the counters in the order of its fields.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueRecord {
    /// Submission queue.
    pub sqid: U16,
    /// Completion queue.
    pub cqid: U16,
    /// 0.
    pub reserved: U32,
    /// The counters.
    pub counters: [U64; 9],
}

const _: () = assert!(size_of::<QueueRecord>() == 80);

impl QueueRecord {
    /// The record of these counters.
    #[must_use]
    pub fn encode(statistics: &QueueStatistics) -> Self {
        let counters = [
            statistics.commands,
            statistics.errors,
            statistics.bytes_read,
            statistics.bytes_written,
            statistics.doorbell_reads,
            statistics.rearms_won,
            statistics.rearms_lost,
            statistics.cq_full,
            statistics.interrupts,
        ];
        Self {
            sqid: U16::new(statistics.sqid),
            cqid: U16::new(statistics.cqid),
            reserved: U32::new(0),
            counters: counters.map(U64::new),
        }
    }

    /// The counters of the record.
    #[must_use]
    pub fn decode(&self) -> QueueStatistics {
        let [
            commands,
            errors,
            bytes_read,
            bytes_written,
            doorbell_reads,
            rearms_won,
            rearms_lost,
            cq_full,
            interrupts,
        ] = self.counters.map(U64::get);
        QueueStatistics {
            sqid: self.sqid.get(),
            cqid: self.cqid.get(),
            commands,
            errors,
            bytes_read,
            bytes_written,
            doorbell_reads,
            rearms_won,
            rearms_lost,
            cq_full,
            interrupts,
        }
    }
}

/// What the host says before `group_poll`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TurnInput {
    /// Guest address of the shadow doorbells whose values are staged, or all ones where none are.
    pub shadow: U64,
}

/// What every group call leaves: how many records there are in each list, and the group's state.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TurnRecord {
    /// Commands to carry out.
    pub commands: U32,
    /// Writes to guest memory.
    pub writes: U32,
    /// Messages to the controller.
    pub messages: U32,
    /// Interrupts.
    pub interrupts: U32,
    /// Commands to cancel.
    pub cancels: U32,
    /// [`TurnRecord::MORE`] and its like.
    pub flags: U32,
    /// Events dropped so far.
    pub dropped_events: U64,
    /// When interrupts that are held back are due, or [`NEVER`](crate::NEVER).
    pub deadline_ns: U64,
}

const _: () = assert!(size_of::<TurnRecord>() == 40);

impl TurnRecord {
    /// The group gave up although it may have more to do: call again.
    pub const MORE: u32 = 1;
    /// Completions wait for a decision about their interrupt.
    pub const WANTS_INTERRUPT: u32 = 2;
    /// A reset waits for commands in flight.
    pub const RESETTING: u32 = 4;
    /// No command, seen or unseen, waits for an entry of its completion queue or for a slot: a head that moves is no
    /// reason for a turn, and a turn that only ends commands needn't fetch.
    pub const HAS_ROOM: u32 = 8;
}
