//! Messages between controller and group, and what a group call leaves.

use doorbell_core::group::QueueStatistics;
use doorbell_core::message::{GroupMessage, GroupRequest, GroupStatistics, MessageWords};
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

impl MessageRecord {
    /// A record of this kind with nothing in it.
    #[must_use]
    pub fn of_kind(kind: u16) -> Self {
        Self { kind: U16::new(kind), ..Self::default() }
    }

    /// The record of a request to the group at this index.
    #[must_use]
    pub fn encode_request(group: u16, request: &GroupRequest) -> Self {
        Self::of_words(&request.to_words(), group)
    }

    /// The request that the record describes, and the index of its group.
    #[must_use]
    pub fn decode_request(&self) -> Option<(u16, GroupRequest)> {
        let request = GroupRequest::from_words(&self.words())?;
        Some((u16::try_from(self.group.get()).ok()?, request))
    }

    /// The record of a message to the controller.
    #[must_use]
    pub fn encode_message(message: &GroupMessage) -> Self {
        Self::of_words(&message.to_words(), 0)
    }

    /// The message to the controller that the record describes.
    #[must_use]
    pub fn decode_message(&self) -> Option<GroupMessage> {
        GroupMessage::from_words(&self.words())
    }

    fn of_words(words: &MessageWords, group: u16) -> Self {
        let MessageWords { kind, a, b, c, d, q } = *words;
        let group = U32::new(group.into());
        let (kind, a, b, c) = (U16::new(kind), U16::new(a), U16::new(b), U16::new(c));
        Self { kind, a, b, c, d: U32::new(d), group, q: q.map(U64::new) }
    }

    fn words(&self) -> MessageWords {
        let Self { kind, a, b, c, d, group: _, q } = *self;
        let (kind, a, b, c) = (kind.get(), a.get(), b.get(), c.get());
        MessageWords { kind, a, b, c, d: d.get(), q: q.map(U64::get) }
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
        Self(statistics.to_words().map(U64::new))
    }

    /// The statistics of the record.
    #[must_use]
    pub fn decode(&self) -> GroupStatistics {
        GroupStatistics::from_words(self.0.map(U64::get))
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
