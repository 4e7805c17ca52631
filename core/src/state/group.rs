//! Layout of a queue group's state, and of what the controller's has in common with it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::StateError;
use crate::message::{DoorbellBuffer, GroupStatistics};

/// The fixed part.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QueueGroupRecord {
    /// Maximum Data Transfer Size, in bytes.
    pub mdts_bytes: U32,
    /// Whose turn it is: a position in the order of submission queues; past its end means its start.
    pub turn: U16,
    /// Commands that this queue has taken in its turn, below 32.
    pub burst: U16,
    /// Memory page size as a power of two; 0 before the first queue.
    pub page_shift: u8,
    /// Flag: the volatile write cache is off.
    pub write_through: u8,
    /// Aggregation Threshold, 0's based.
    pub threshold_z: u8,
    /// Aggregation Time, in units of 100 microseconds.
    pub time_100us: u8,
    /// Flag: a reset waits for the commands in flight.
    pub resetting: u8,
    /// The request whose reply waits: 0 none, 1 Delete I/O Submission Queue, 2 the removal of a namespace,
    /// 3 Abort, 4 Abort that the host has been told of.
    pub pending: u8,
    /// Of that request: the queue's place, the namespace's index (identifier minus 1), or the command's slot.
    pub pending_index: U16,
    /// Flag: there is a fatal event to tell.
    pub has_fatal: u8,
    /// Flag: shadow doorbells are in use.
    pub has_doorbell_buffer: u8,
    /// Queue of the fatal event.
    pub fatal_qid: U16,
    /// The shadow doorbells in use.
    pub doorbell_buffer: DoorbellBufferRecord,
    /// The reply that hasn't been taken.
    pub reply: ReplyRecord,
    /// Events that were dropped.
    pub dropped_events: U64,
    /// Sums since the group came into being.
    pub statistics: StatisticsRecord,
    /// Submission queues.
    pub submission_queues: U16,
    /// Completion queues.
    pub completion_queues: U16,
    /// Namespaces.
    pub namespaces: U16,
    /// Waiting events.
    pub events: U16,
    /// Slots of the command table that were ever used.
    pub used_slots: U16,
    /// Commands in flight.
    pub commands: U16,
}

const _: () = assert!(size_of::<QueueGroupRecord>() == 156);

/// A [`DoorbellBuffer`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DoorbellBufferRecord {
    /// Guest address of the Shadow Doorbell buffer.
    pub shadow: U64,
    /// Guest address of the EventIdx buffer.
    pub event_idx: U64,
}

/// [`GroupStatistics`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StatisticsRecord {
    /// Bytes read.
    pub bytes_read: U64,
    /// Bytes written.
    pub bytes_written: U64,
    /// Completed Read, Compare and Verify commands.
    pub read_commands: U64,
    /// Completed Write commands.
    pub write_commands: U64,
    /// Media and data integrity errors.
    pub media_errors: U64,
    /// Errors worth a log entry.
    pub error_log_entries: U64,
}

/// A reply of the group.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReplyRecord {
    /// 0 none, 1 done, 2 failed, 3 Abort, 4 statistics, 5 reset done.
    pub kind: u8,
    /// Abort: flag, the command was aborted.
    pub aborted: u8,
    /// Failed: the Status Field.
    pub status: U16,
    /// Statistics.
    pub statistics: StatisticsRecord,
}

/// A ring and its doorbell.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingRecord {
    /// Guest address.
    pub base: U64,
    /// Entries, 2 to 65,536.
    pub size: U32,
    /// Head, below the size.
    pub head: U32,
    /// Tail, below the size.
    pub tail: U32,
    /// The register's value when it was looked at last; DB0FF5EDh where it has been marked as taken.
    pub register: U32,
    /// Entries that the register is known to lag behind the position; the size where that is unknown.
    pub lag: U32,
    /// Where shadow doorbells are in use: what the shadow held when it was looked at or stored into last.
    pub seen: U32,
    /// Where shadow doorbells are in use: what EventIdx holds.
    pub published: U32,
}

const _: () = assert!(size_of::<RingRecord>() == 36);

/// A submission queue.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubmissionRecord {
    /// Its place in the group's table.
    pub place: U16,
    /// Queue identifier.
    pub qid: U16,
    /// Place of its completion queue.
    pub completion: U16,
    /// Flag: nothing more is fetched.
    pub stopped: u8,
    /// 0.
    pub reserved: u8,
    /// The ring.
    pub ring: RingRecord,
    /// Completed commands.
    pub commands: U64,
    /// Commands that failed.
    pub errors: U64,
    /// Bytes read.
    pub bytes_read: U64,
    /// Bytes written.
    pub bytes_written: U64,
    /// Looks at the tail doorbell.
    pub doorbell_reads: U64,
    /// Times the queue was armed and nothing had moved.
    pub rearms_won: U64,
    /// Times the queue was armed and the driver had moved meanwhile.
    pub rearms_lost: U64,
    /// Times a command waited for an entry of the completion queue.
    pub cq_full: U64,
}

/// Bytes of a [`SubmissionRecord`].
pub const SUBMISSION_BYTES: usize = 108;
const _: () = assert!(size_of::<SubmissionRecord>() == SUBMISSION_BYTES);

/// A completion queue.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CompletionRecord {
    /// Its place in the group's table.
    pub place: U16,
    /// Queue identifier.
    pub qid: U16,
    /// Interrupt vector.
    pub vector: U16,
    /// Flag: there is a vector.
    pub has_vector: u8,
    /// Flag: the vector takes part in coalescing.
    pub coalesce: u8,
    /// Flag: the Phase Tag of the next entry.
    pub phase: u8,
    /// Flag: the time of the first entry without an interrupt is known.
    pub is_waiting: u8,
    /// 0.
    pub reserved: U16,
    /// The ring.
    pub ring: RingRecord,
    /// Entries that no interrupt has told of; not 0 means that an interrupt is owed.
    pub unannounced: U32,
    /// When the first of them was seen, in nanoseconds of the host's clock.
    pub since_ns: U64,
    /// Interrupts so far.
    pub interrupts: U64,
}

/// Bytes of a [`CompletionRecord`].
pub const COMPLETION_BYTES: usize = 68;
const _: () = assert!(size_of::<CompletionRecord>() == COMPLETION_BYTES);

/// A namespace.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NamespaceRecord {
    /// Namespace identifier minus 1.
    pub index: U16,
    /// Logical block size as a power of two, 9 or 12.
    pub block_shift: u8,
    /// Flag: writes are refused.
    pub read_only: u8,
    /// Size in logical blocks.
    pub size_blocks: U64,
}

/// Bytes of a [`NamespaceRecord`].
pub const NAMESPACE_BYTES: usize = 12;
const _: () = assert!(size_of::<NamespaceRecord>() == NAMESPACE_BYTES);

/// An event that the controller hasn't been told.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EventRecord {
    /// 1 invalid doorbell, 2 command error, 3 fatal.
    pub kind: u8,
    /// Invalid doorbell: flag, a completion queue's.
    pub completion: u8,
    /// Queue identifier.
    pub qid: U16,
    /// Command error: command identifier.
    pub cid: U16,
    /// Command error: Status Field.
    pub status: U16,
    /// Invalid doorbell: the value. Command error: namespace identifier.
    pub value: U32,
    /// Command error: first logical block.
    pub lba: U64,
}

/// Bytes of an [`EventRecord`].
pub const EVENT_BYTES: usize = 20;
const _: () = assert!(size_of::<EventRecord>() == EVENT_BYTES);

/// A command in flight.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandRecord {
    /// Its slot.
    pub slot: U16,
    /// Place of its submission queue (of no meaning while a reset waits).
    pub submission: U16,
    /// Command identifier.
    pub cid: U16,
    /// 1 Read, Compare or Verify, 2 Write, 3 Flush of every namespace, 4 anything else.
    pub kind: u8,
    /// 0.
    pub reserved: u8,
    /// Namespace identifier; 0 for a Flush of every namespace.
    pub nsid: U32,
    /// Bytes of user data, a multiple of 512.
    pub bytes: U32,
    /// First logical block.
    pub lba: U64,
}

/// Bytes of a [`CommandRecord`].
pub const COMMAND_BYTES: usize = 24;
const _: () = assert!(size_of::<CommandRecord>() == COMMAND_BYTES);

impl DoorbellBufferRecord {
    pub(crate) fn new(buffer: Option<DoorbellBuffer>) -> Self {
        let Some(DoorbellBuffer { shadow, event_idx }) = buffer else { return Self::default() };
        Self { shadow: shadow.into(), event_idx: event_idx.into() }
    }

    /// The buffer, whose entries have to be accessible as dwords.
    pub(crate) fn restore(&self) -> Result<DoorbellBuffer, StateError> {
        let (shadow, event_idx) = (self.shadow.get(), self.event_idx.get());
        super::ensure((shadow | event_idx) & 3 == 0, "a doorbell buffer's alignment")?;
        super::ensure(shadow.max(event_idx) <= LAST_PAGE, "a doorbell buffer at the end of memory")?;
        Ok(DoorbellBuffer { shadow, event_idx })
    }
}

/// The last address that a page, and so a doorbell buffer, can begin at.
const LAST_PAGE: u64 = u64::MAX - 4095;

impl StatisticsRecord {
    pub(crate) fn new(statistics: GroupStatistics) -> Self {
        let GroupStatistics {
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            media_errors,
            error_log_entries,
        } = statistics;
        Self {
            bytes_read: bytes_read.into(),
            bytes_written: bytes_written.into(),
            read_commands: read_commands.into(),
            write_commands: write_commands.into(),
            media_errors: media_errors.into(),
            error_log_entries: error_log_entries.into(),
        }
    }

    pub(crate) fn restore(&self) -> GroupStatistics {
        GroupStatistics {
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            read_commands: self.read_commands.get(),
            write_commands: self.write_commands.get(),
            media_errors: self.media_errors.get(),
            error_log_entries: self.error_log_entries.get(),
        }
    }
}
