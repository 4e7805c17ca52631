//! Messages as plain numbers: what they are where they cross an interface or lie in a state.

use super::{
    Coalescing, CommandError, DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest,
    GroupStatistics,
};
use crate::namespace::Namespace;
use crate::spec::status::Status;

/// A message: its kind, and fields that mean something else in each. Fields that a kind doesn't have are 0.
///
/// | kind | request to a group | fields |
/// | --- | --- | --- |
/// | 1 | create completion queue | a identifier, b vector, c bit 0 has a vector, bit 1 coalesces, d entries, q\[0\] address |
/// | 2 | create submission queue | a identifier, b its completion queue, c page shift, d entries, q\[0\] address |
/// | 3, 4 | delete completion, submission queue | a identifier |
/// | 5 | abort | a submission queue, b command identifier |
/// | 6 | use shadow doorbells | q\[0\] Shadow Doorbell buffer, q\[1\] EventIdx buffer |
/// | 7 | go back to registers | |
/// | 8 | namespace | a block size as a power of two, b bit 0 read-only, d NSID, q\[0\] blocks |
/// | 9 | namespace goes away | d NSID |
/// | 10 | write cache | a 1: on |
/// | 11 | coalescing | a threshold (0's based), b time in 100 µs |
/// | 12 | coalescing of a vector | a vector, b 1: takes part |
/// | 13 | report statistics | |
/// | 14 | reset | |
///
/// | kind | message to the controller | fields |
/// | --- | --- | --- |
/// | 32 | done | |
/// | 33 | failed | a status |
/// | 34 | abort | a 1: aborted |
/// | 35 | statistics | q, in the order of the fields of [`GroupStatistics`] |
/// | 36 | reset done | |
/// | 48 | a doorbell held an impossible value | a queue, b 1: completion queue, d value |
/// | 49 | a command failed | a queue, b command identifier, c status, d NSID, q\[0\] LBA |
/// | 50 | a queue can't be used any more | a queue |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table above")]
pub struct MessageWords {
    pub kind: u16,
    pub a: u16,
    pub b: u16,
    pub c: u16,
    pub d: u32,
    pub q: [u64; 6],
}

pub(crate) mod kind {
    pub(crate) const CREATE_CQ: u16 = 1;
    pub(crate) const CREATE_SQ: u16 = 2;
    pub(crate) const DELETE_CQ: u16 = 3;
    pub(crate) const DELETE_SQ: u16 = 4;
    pub(crate) const ABORT: u16 = 5;
    pub(crate) const SET_DOORBELL_BUFFER: u16 = 6;
    pub(crate) const CLEAR_DOORBELL_BUFFER: u16 = 7;
    pub(crate) const SET_NAMESPACE: u16 = 8;
    pub(crate) const REMOVE_NAMESPACE: u16 = 9;
    pub(crate) const SET_WRITE_CACHE: u16 = 10;
    pub(crate) const SET_COALESCING: u16 = 11;
    pub(crate) const SET_VECTOR_COALESCING: u16 = 12;
    pub(crate) const REPORT_STATISTICS: u16 = 13;
    pub(crate) const RESET: u16 = 14;

    pub(crate) const DONE: u16 = 32;
    pub(crate) const FAILED: u16 = 33;
    pub(crate) const ABORT_REPLY: u16 = 34;
    pub(crate) const STATISTICS: u16 = 35;
    pub(crate) const RESET_DONE: u16 = 36;

    pub(crate) const INVALID_DOORBELL: u16 = 48;
    pub(crate) const COMMAND_ERROR: u16 = 49;
    pub(crate) const FATAL: u16 = 50;
}

impl GroupRequest {
    /// The request as numbers.
    #[must_use]
    pub fn to_words(&self) -> MessageWords {
        let mut words = MessageWords::default();
        words.kind = match *self {
            Self::CreateCompletionQueue { qid, base, size, vector, coalesce } => {
                (words.a, words.b, words.d) = (qid, vector.unwrap_or(0), size);
                words.c = u16::from(vector.is_some()) | u16::from(coalesce) << 1;
                words.q = [base, 0, 0, 0, 0, 0];
                kind::CREATE_CQ
            }
            Self::CreateSubmissionQueue { qid, cqid, base, size, page_shift } => {
                (words.a, words.b, words.c, words.d) = (qid, cqid, page_shift.into(), size);
                words.q = [base, 0, 0, 0, 0, 0];
                kind::CREATE_SQ
            }
            Self::DeleteCompletionQueue { qid } => {
                words.a = qid;
                kind::DELETE_CQ
            }
            Self::DeleteSubmissionQueue { qid } => {
                words.a = qid;
                kind::DELETE_SQ
            }
            Self::Abort { sqid, cid } => {
                (words.a, words.b) = (sqid, cid);
                kind::ABORT
            }
            Self::SetDoorbellBuffer(DoorbellBuffer { shadow, event_idx }) => {
                words.q = [shadow, event_idx, 0, 0, 0, 0];
                kind::SET_DOORBELL_BUFFER
            }
            Self::ClearDoorbellBuffer => kind::CLEAR_DOORBELL_BUFFER,
            Self::SetNamespace { nsid, namespace: Namespace { size_blocks, block_shift, read_only } } => {
                (words.a, words.b, words.d) = (block_shift.into(), read_only.into(), nsid);
                words.q = [size_blocks, 0, 0, 0, 0, 0];
                kind::SET_NAMESPACE
            }
            Self::RemoveNamespace { nsid } => {
                words.d = nsid;
                kind::REMOVE_NAMESPACE
            }
            Self::SetWriteCache { enabled } => {
                words.a = enabled.into();
                kind::SET_WRITE_CACHE
            }
            Self::SetCoalescing(Coalescing { threshold_z, time_100us }) => {
                (words.a, words.b) = (threshold_z.into(), time_100us.into());
                kind::SET_COALESCING
            }
            Self::SetVectorCoalescing { vector, enabled } => {
                (words.a, words.b) = (vector, enabled.into());
                kind::SET_VECTOR_COALESCING
            }
            Self::ReportStatistics => kind::REPORT_STATISTICS,
            Self::Reset => kind::RESET,
        };
        words
    }

    /// The request that these numbers are; `None` where they are none.
    #[must_use]
    pub fn from_words(words: &MessageWords) -> Option<Self> {
        let MessageWords { kind, a, b, c, d, q: [q0, q1, ..] } = *words;
        Some(match kind {
            kind::CREATE_CQ => Self::CreateCompletionQueue {
                qid: a,
                base: q0,
                size: d,
                vector: (c & 1 != 0).then_some(b),
                coalesce: c & 2 != 0,
            },
            kind::CREATE_SQ => Self::CreateSubmissionQueue {
                qid: a,
                cqid: b,
                base: q0,
                size: d,
                page_shift: u8::try_from(c).ok()?,
            },
            kind::DELETE_CQ => Self::DeleteCompletionQueue { qid: a },
            kind::DELETE_SQ => Self::DeleteSubmissionQueue { qid: a },
            kind::ABORT => Self::Abort { sqid: a, cid: b },
            kind::SET_DOORBELL_BUFFER => {
                Self::SetDoorbellBuffer(DoorbellBuffer { shadow: q0, event_idx: q1 })
            }
            kind::CLEAR_DOORBELL_BUFFER => Self::ClearDoorbellBuffer,
            kind::SET_NAMESPACE => {
                let (block_shift, read_only) = (u8::try_from(a).ok()?, b & 1 != 0);
                Self::SetNamespace {
                    nsid: d,
                    namespace: Namespace { size_blocks: q0, block_shift, read_only },
                }
            }
            kind::REMOVE_NAMESPACE => Self::RemoveNamespace { nsid: d },
            kind::SET_WRITE_CACHE => Self::SetWriteCache { enabled: a & 1 != 0 },
            kind::SET_COALESCING => {
                let (threshold_z, time_100us) = (u8::try_from(a).ok()?, u8::try_from(b).ok()?);
                Self::SetCoalescing(Coalescing { threshold_z, time_100us })
            }
            kind::SET_VECTOR_COALESCING => Self::SetVectorCoalescing { vector: a, enabled: b & 1 != 0 },
            kind::REPORT_STATISTICS => Self::ReportStatistics,
            kind::RESET => Self::Reset,
            _ => return None,
        })
    }
}

impl GroupMessage {
    /// The message as numbers.
    #[must_use]
    pub fn to_words(&self) -> MessageWords {
        let mut words = MessageWords::default();
        words.kind = match *self {
            Self::Reply(GroupReply::Done) => kind::DONE,
            Self::Reply(GroupReply::Failed(status)) => {
                words.a = status.0;
                kind::FAILED
            }
            Self::Reply(GroupReply::Abort { aborted }) => {
                words.a = aborted.into();
                kind::ABORT_REPLY
            }
            Self::Reply(GroupReply::Statistics(statistics)) => {
                words.q = statistics.to_words();
                kind::STATISTICS
            }
            Self::Reply(GroupReply::ResetDone) => kind::RESET_DONE,
            Self::Event(GroupEvent::InvalidDoorbell { qid, completion, value }) => {
                (words.a, words.b, words.d) = (qid, completion.into(), value);
                kind::INVALID_DOORBELL
            }
            Self::Event(GroupEvent::CommandError(CommandError { sqid, cid, status, lba, nsid })) => {
                (words.a, words.b, words.c, words.d) = (sqid, cid, status.0, nsid);
                words.q = [lba, 0, 0, 0, 0, 0];
                kind::COMMAND_ERROR
            }
            Self::Event(GroupEvent::Fatal { qid }) => {
                words.a = qid;
                kind::FATAL
            }
        };
        words
    }

    /// The message that these numbers are; `None` where they are none.
    #[must_use]
    pub fn from_words(words: &MessageWords) -> Option<Self> {
        let MessageWords { kind, a, b, c, d, q } = *words;
        Some(match kind {
            kind::DONE => Self::Reply(GroupReply::Done),
            kind::FAILED => Self::Reply(GroupReply::Failed(Status(a))),
            kind::ABORT_REPLY => Self::Reply(GroupReply::Abort { aborted: a & 1 != 0 }),
            kind::STATISTICS => Self::Reply(GroupReply::Statistics(GroupStatistics::from_words(q))),
            kind::RESET_DONE => Self::Reply(GroupReply::ResetDone),
            kind::INVALID_DOORBELL => {
                Self::Event(GroupEvent::InvalidDoorbell { qid: a, completion: b & 1 != 0, value: d })
            }
            kind::COMMAND_ERROR => {
                let ([lba, ..], status) = (q, Status(c));
                Self::Event(GroupEvent::CommandError(CommandError { sqid: a, cid: b, status, lba, nsid: d }))
            }
            kind::FATAL => Self::Event(GroupEvent::Fatal { qid: a }),
            _ => return None,
        })
    }
}

impl GroupStatistics {
    /// The counters in the order of the fields.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 6] {
        let Self {
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            media_errors,
            error_log_entries,
        } = *self;
        [bytes_read, bytes_written, read_commands, write_commands, media_errors, error_log_entries]
    }

    /// The inverse of [`GroupStatistics::to_words`].
    #[must_use]
    pub const fn from_words(words: [u64; 6]) -> Self {
        let [bytes_read, bytes_written, read_commands, write_commands, media_errors, error_log_entries] =
            words;
        Self { bytes_read, bytes_written, read_commands, write_commands, media_errors, error_log_entries }
    }
}
