//! What the controller and its queue groups say to each other. The host carries these values, in order.
//!
//! To one group at most one [`GroupRequest`] is under way at a time, with one exception: a
//! [`GroupRequest::Reset`] may overtake any other, whose reply then never comes.

mod words;

use crate::namespace::Namespace;
use crate::spec::status::Status;

pub use words::MessageWords;
pub(crate) use words::kind;

/// Guest addresses of the two pages of Doorbell Buffer Config (NVM Express Base Specification 2.0,
/// section 5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DoorbellBuffer {
    /// The Shadow Doorbell buffer (PRP1): the driver writes, the controller reads.
    pub shadow: u64,
    /// The EventIdx buffer (PRP2): the controller writes, the driver reads.
    pub event_idx: u64,
}

/// What the controller asks of a group. Every request has exactly one [`GroupReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum GroupRequest {
    /// Create I/O Completion Queue. The controller has checked the identifier, the size and the memory.
    CreateCompletionQueue {
        /// Queue identifier, from 1.
        qid: u16,
        /// Guest address of the ring.
        base: u64,
        /// Entries, 2 to 65,536.
        size: u32,
        /// Interrupt vector, or `None` where the queue's interrupts are disabled (IEN 0).
        vector: Option<u16>,
        /// Whether the vector takes part in interrupt coalescing.
        coalesce: bool,
    },
    /// Create I/O Submission Queue on one of this group's completion queues.
    CreateSubmissionQueue {
        /// Queue identifier, from 1.
        qid: u16,
        /// The completion queue that takes its completions.
        cqid: u16,
        /// Guest address of the ring.
        base: u64,
        /// Entries, 2 to 65,536.
        size: u32,
        /// Memory page size as a power of two (CC.MPS + 12), which PRP entries count in.
        page_shift: u8,
    },
    /// Delete I/O Completion Queue; the controller has checked that no submission queue uses it.
    DeleteCompletionQueue {
        /// Queue identifier.
        qid: u16,
    },
    /// Delete I/O Submission Queue; replied to once its commands have completed.
    DeleteSubmissionQueue {
        /// Queue identifier.
        qid: u16,
    },
    /// Abort; replied to with [`GroupReply::Abort`] once the fate of the command is known.
    Abort {
        /// Submission queue of the command.
        sqid: u16,
        /// Its command identifier.
        cid: u16,
    },
    /// Doorbell Buffer Config: seed both pages with the present positions and use them from now on.
    SetDoorbellBuffer(DoorbellBuffer),
    /// Give up the shadow doorbells (their memory was unmapped) and go back to the registers.
    ClearDoorbellBuffer,
    /// A namespace came into being or changed its shape.
    SetNamespace {
        /// Namespace identifier, from 1.
        nsid: u32,
        /// Its shape.
        namespace: Namespace,
    },
    /// A namespace goes away; replied to once its commands have completed.
    RemoveNamespace {
        /// Namespace identifier, from 1.
        nsid: u32,
    },
    /// Volatile Write Cache Enable (WCE): while it is off every write is made durable before it completes.
    SetWriteCache {
        /// WCE.
        enabled: bool,
    },
    /// Interrupt Coalescing (feature 08h) and, by vector, Interrupt Vector Configuration (09h).
    SetCoalescing(Coalescing),
    /// Interrupt Vector Configuration (09h): Coalescing Disable for one vector.
    SetVectorCoalescing {
        /// The interrupt vector.
        vector: u16,
        /// Whether it takes part in coalescing.
        enabled: bool,
    },
    /// Report [`GroupStatistics`] since the group came into being.
    ReportStatistics,
    /// Forget every queue, the doorbell buffer and all commands; replied to once no command can touch guest
    /// memory any more. Settings return to their defaults, namespaces stay.
    Reset,
}

/// Interrupt Coalescing (NVM Express Base Specification 2.0, section 5.27.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Coalescing {
    /// Aggregation Threshold (THR), 0's based: completion entries an interrupt stands for.
    pub threshold_z: u8,
    /// Aggregation Time (TIME), in units of 100 microseconds; 0 switches coalescing off.
    pub time_100us: u8,
}

/// The answer to a [`GroupRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum GroupReply {
    /// Done.
    Done,
    /// Not done, and nothing changed.
    Failed(Status),
    /// The answer to [`GroupRequest::Abort`].
    Abort {
        /// Whether the command was aborted (it has then completed with Command Abort Requested).
        aborted: bool,
    },
    /// The answer to [`GroupRequest::ReportStatistics`].
    Statistics(GroupStatistics),
    /// The answer to [`GroupRequest::Reset`].
    ResetDone,
}

/// What a group tells the controller unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum GroupEvent {
    /// A doorbell held a value its queue can't have (Asynchronous Event Information 01h, Invalid Doorbell
    /// Write Value). The value was dropped.
    InvalidDoorbell {
        /// Queue identifier.
        qid: u16,
        /// Whether it is the completion queue's head doorbell.
        completion: bool,
        /// The value.
        value: u32,
    },
    /// A command failed in a way that belongs in the Error Information log.
    CommandError(CommandError),
    /// A queue can't be read or written: Controller Fatal Status.
    Fatal {
        /// Queue identifier.
        qid: u16,
    },
}

/// What the Error Information log keeps of a failed command (NVM Express Base Specification 2.0,
/// section 5.16.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CommandError {
    /// Submission Queue ID.
    pub sqid: u16,
    /// Command ID.
    pub cid: u16,
    /// Status Field.
    pub status: Status,
    /// First logical block of the command.
    pub lba: u64,
    /// Namespace identifier.
    pub nsid: u32,
}

/// A message from a group to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum GroupMessage {
    /// The answer to the request under way.
    Reply(GroupReply),
    /// Something that happened.
    Event(GroupEvent),
}

/// Counters of a group since it came into being, over resets; they feed the SMART log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupStatistics {
    /// Bytes of user data that completed Read, Compare and Verify commands read.
    pub bytes_read: u64,
    /// Bytes of user data that completed Write commands wrote.
    pub bytes_written: u64,
    /// Completed Read, Compare and Verify commands.
    pub read_commands: u64,
    /// Completed Write commands.
    pub write_commands: u64,
    /// Commands that ended with a media or data integrity error.
    pub media_errors: u64,
    /// Commands that put an entry into the Error Information log.
    pub error_log_entries: u64,
}
