//! Layout of a controller's state.

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::group::{DoorbellBufferRecord, RingRecord, StatisticsRecord};

/// The fixed part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControllerRecord {
    /// What the host decided, as the guest knows it.
    pub config: ConfigRecord,
    /// The registers.
    pub registers: RegistersRecord,
    /// 0 disabled, 1 enabling, 2 running, 3 failed, 4 resetting.
    pub lifecycle: u8,
    /// 0 none, 1 quiescing, 2 likewise after an abrupt shutdown, 3 a flush is due, 4 likewise after an abrupt
    /// shutdown, 5 flushing, 6 complete.
    pub shutdown: u8,
    /// Flag: the host has been asked to flush and hasn't answered.
    pub flush_under_way: u8,
    /// Memory page size as a power of two.
    pub page_shift: u8,
    /// Flag: an interrupt is owed.
    pub interrupt_due: u8,
    /// Flag: shadow doorbells are in use.
    pub has_doorbell_buffer: u8,
    /// 0.
    pub reserved: U16,
    /// The shadow doorbells in use.
    pub doorbell_buffer: DoorbellBufferRecord,
    /// While running: the admin queue.
    pub admin: AdminQueueRecord,
    /// The admin command that waits for groups.
    pub pending: PendingRecord,
    /// The features.
    pub features: FeaturesRecord,
    /// Asynchronous events.
    pub events: EventsRecord,
    /// SMART counters.
    pub smart: SmartRecord,
    /// Entries ever put into the error log.
    pub error_count: U64,
    /// Groups, a bit each, that are still to be sent a reset.
    pub reset_due: U64,
    /// Groups that are still to give up their doorbell buffers.
    pub clear_due: U64,
    /// Groups that are still to be sent the pending command.
    pub command_due: U64,
    /// Groups that have it and haven't answered.
    pub command_sent: U64,
    /// Highest namespace identifier (NN).
    pub highest_nsid: U16,
    /// Namespaces.
    pub namespaces: U16,
    /// Entries that the error log can have (ELPE + 1).
    pub error_capacity: U16,
    /// Entries that it has.
    pub errors: U16,
}

const _: () = assert!(size_of::<ControllerRecord>() == 768);

/// [`ControllerConfig`](crate::controller::ControllerConfig), in the same order and units.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConfigRecord {
    /// Queue groups.
    pub groups: U16,
    /// I/O queue pairs.
    pub io_queues: U16,
    /// Entries that an I/O queue may have.
    pub max_queue_entries: U32,
    /// Maximum Data Transfer Size, in bytes.
    pub mdts_bytes: U32,
    /// Interrupt vectors.
    pub vectors: U16,
    /// Smallest memory page as a power of two.
    pub page_shift_min: u8,
    /// Largest memory page as a power of two.
    pub page_shift_max: u8,
    /// CAP.TO.
    pub timeout_500ms: u8,
    /// Flag: Doorbell Buffer Config is offered.
    pub doorbell_buffer: u8,
    /// Flag: SGLs are offered.
    pub sgl: u8,
    /// Flag: there is a volatile write cache.
    pub write_cache: u8,
    /// Controller ID.
    pub controller_id: U16,
    /// PCI Vendor ID.
    pub vendor_id: U16,
    /// PCI Subsystem Vendor ID.
    pub subsystem_vendor_id: U16,
    /// IEEE OUI.
    pub ieee_oui: [u8; 3],
    /// Serial Number, padded with spaces.
    pub serial: [u8; 20],
    /// Its length without padding.
    pub serial_len: u8,
    /// Model Number, padded with spaces.
    pub model: [u8; 40],
    /// Its length without padding.
    pub model_len: u8,
    /// Firmware Revision, padded with spaces.
    pub firmware: [u8; 8],
    /// Its length without padding.
    pub firmware_len: u8,
    /// NVMe Qualified Name, padded with spaces.
    pub subsystem_nqn: [u8; 223],
    /// Its length without padding.
    pub subsystem_nqn_len: u8,
}

/// The registers that don't follow from the rest.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegistersRecord {
    /// Interrupt mask.
    pub interrupt_mask: U32,
    /// Controller Configuration (CC).
    pub cc: U32,
    /// Admin Queue Attributes (AQA).
    pub aqa: U32,
    /// Flag: CSTS.RDY.
    pub rdy: u8,
    /// Flag: CSTS.CFS.
    pub cfs: u8,
    /// Flag: CSTS.NSSRO.
    pub nssro: u8,
    /// 0.
    pub reserved: u8,
    /// Admin Submission Queue Base Address (ASQ).
    pub asq: U64,
    /// Admin Completion Queue Base Address (ACQ).
    pub acq: U64,
}

/// The admin queue pair.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AdminQueueRecord {
    /// The submission queue.
    pub submission: RingRecord,
    /// The completion queue.
    pub completion: RingRecord,
    /// Flag: the Phase Tag of the next entry.
    pub phase: u8,
    /// 0.
    pub reserved: [u8; 3],
}

/// The admin command that waits for groups.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PendingRecord {
    /// Flag: there is one.
    pub is_there: u8,
    /// Flag: it has failed.
    pub has_failed: u8,
    /// Status Field of the failure.
    pub status: U16,
    /// Flag: a group has aborted the command.
    pub aborted: u8,
    /// 0.
    pub reserved: [u8; 3],
    /// Its submission queue entry.
    pub command: [u8; 64],
    /// What the groups are asked.
    pub request: RequestRecord,
}

/// A request to queue groups.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestRecord {
    /// 1 create completion queue, 2 create submission queue, 3 delete completion queue, 4 delete submission
    /// queue, 5 Abort, 6 Doorbell Buffer Config, 7 write cache, 8 coalescing, 9 coalescing of a vector,
    /// 10 report statistics.
    pub kind: u8,
    /// Flag. 1: the vector is coalesced; 7, 9: enabled.
    pub flag: u8,
    /// 1 to 4: queue identifier; 5: submission queue.
    pub qid: U16,
    /// 1, 9: vector; 2: completion queue; 5: command identifier.
    pub other: U16,
    /// 1: flag, there is a vector; 2: memory page size as a power of two; 8: threshold, 0's based.
    pub low: u8,
    /// 8: time in units of 100 microseconds.
    pub high: u8,
    /// 1, 2: entries.
    pub size: U32,
    /// 1, 2: guest address of the ring; 6: of the Shadow Doorbell buffer.
    pub base: U64,
    /// 6: guest address of the EventIdx buffer.
    pub second: U64,
}

/// Values of features, as in their dwords.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FeaturesRecord {
    /// Arbitration.
    pub arbitration: U32,
    /// Power Management.
    pub power: U32,
    /// Over temperature threshold, in kelvins.
    pub over_temperature: U16,
    /// Under temperature threshold, in kelvins.
    pub under_temperature: U16,
    /// Flag: volatile write cache enabled.
    pub write_cache: u8,
    /// Aggregation Threshold, 0's based.
    pub threshold_z: u8,
    /// Aggregation Time, in units of 100 microseconds.
    pub time_100us: u8,
    /// 0.
    pub reserved: u8,
    /// Number of Queues.
    pub queues: U32,
    /// Write Atomicity.
    pub write_atomicity: U32,
    /// Asynchronous Event Configuration.
    pub events: U32,
    /// Vectors whose coalescing is disabled, a bit each.
    pub uncoalesced: U128,
}

/// A place for an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EventRequestRecord {
    /// 0 none, 1 held, 2 aborted and its completion waits for room.
    pub kind: u8,
    /// 0.
    pub reserved: u8,
    /// Command identifier.
    pub cid: U16,
}

/// Asynchronous events.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EventsRecord {
    /// The held requests.
    pub requests: [EventRequestRecord; 4],
    /// Events that haven't been told: bit 0 Invalid Doorbell Register, 1 Invalid Doorbell Value, 2 Temperature
    /// Threshold, 3 Namespace Attribute Changed.
    pub pending: u8,
    /// Event types that were told and not cleared yet, a bit each.
    pub masked: u8,
    /// 0.
    pub reserved: U16,
}

/// SMART: the counters of earlier lives, and time.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartRecord {
    /// Bytes read.
    pub bytes_read: U64,
    /// Bytes written.
    pub bytes_written: U64,
    /// Read commands.
    pub read_commands: U64,
    /// Write commands.
    pub write_commands: U64,
    /// Nanoseconds busy.
    pub busy_ns: U64,
    /// Power cycles.
    pub power_cycles: U64,
    /// Nanoseconds powered on.
    pub power_on_ns: U64,
    /// Unsafe shutdowns.
    pub unsafe_shutdowns: U64,
    /// Media errors.
    pub media_errors: U64,
    /// Error log entries.
    pub error_log_entries: U64,
    /// The first time that the controller was told, in nanoseconds of the host's clock.
    pub started_ns: U64,
    /// The last time that it was told.
    pub now_ns: U64,
    /// Composite temperature, in kelvins.
    pub temperature: U16,
    /// Flag: it has been told a time.
    pub has_started: u8,
    /// 0.
    pub reserved: u8,
}

/// What is under way to a group, and what it has reported.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GroupRecord {
    /// 0 nothing, 1 reset, 2 giving up the doorbell buffer, 3 a namespace, 4 the pending command.
    pub under_way: u8,
    /// 0.
    pub reserved: u8,
    /// Of a namespace: its identifier minus 1.
    pub namespace: U16,
    /// The statistics reported last.
    pub statistics: StatisticsRecord,
}

/// Bytes of a [`GroupRecord`].
pub const GROUP_BYTES: usize = 52;
const _: () = assert!(size_of::<GroupRecord>() == GROUP_BYTES);

/// An I/O queue identifier.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QueueRecord {
    /// The completion queue of the submission queue with this identifier; 0 where there is none.
    pub cqid: U16,
    /// Flag: there is a completion queue with this identifier.
    pub has_completion: u8,
    /// 0.
    pub reserved: u8,
}

/// Bytes of a [`QueueRecord`].
pub const QUEUE_BYTES: usize = 4;
const _: () = assert!(size_of::<QueueRecord>() == QUEUE_BYTES);

/// A namespace.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NamespaceRecord {
    /// Namespace identifier minus 1.
    pub index: U16,
    /// 0 being added, 1 active, 2 being resized, 3 being removed, 4 gone, which the host hasn't been told.
    pub state: u8,
    /// What the host hasn't been told: 0 nothing, 1 added, 2 resized, 3 removed.
    pub report: u8,
    /// Flag: writes are refused.
    pub read_only: u8,
    /// Flag: blocks read as zeroes once deallocated.
    pub deallocated_reads_zero: u8,
    /// Time Limited Error Recovery, in units of 100 ms.
    pub time_limit: U16,
    /// Bytes of a logical block, 512 or 4096.
    pub block_bytes: U32,
    /// Size in logical blocks, as the host wants it.
    pub size_blocks: U64,
    /// Size in logical blocks, as the guest sees it.
    pub visible_blocks: U64,
    /// UUID.
    pub uuid: [u8; 16],
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// Groups that are still to be told, a bit each.
    pub due: U64,
    /// Groups that have been told and haven't answered.
    pub sent: U64,
}

/// Bytes of a [`NamespaceRecord`].
pub const NAMESPACE_BYTES: usize = 84;
const _: () = assert!(size_of::<NamespaceRecord>() == NAMESPACE_BYTES);

/// An entry of the error log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorRecord {
    /// Error Count, at least 1.
    pub count: U64,
    /// Submission queue.
    pub sqid: U16,
    /// Command identifier.
    pub cid: U16,
    /// Status Field.
    pub status: U16,
    /// 0.
    pub reserved: U16,
    /// First logical block.
    pub lba: U64,
    /// Namespace identifier.
    pub nsid: U32,
}

/// Bytes of an [`ErrorRecord`].
pub const ERROR_BYTES: usize = 28;
const _: () = assert!(size_of::<ErrorRecord>() == ERROR_BYTES);
