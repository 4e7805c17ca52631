//! What the host tells the controller once, and what the controller shows.

use doorbell_core::controller::{
    Ascii, ControllerConfig, HostRequest, NamespaceChange, NamespaceConfig, NamespaceError, ResetKind,
    SmartCounters,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::message::MessageRecord;

/// [`ControllerConfig`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are ControllerConfig's")]
pub struct ConfigRecord {
    pub max_queue_entries: U32,
    pub mdts_bytes: U32,
    pub groups: U16,
    pub io_queues: U16,
    pub vectors: U16,
    pub controller_id: U16,
    pub vendor_id: U16,
    pub subsystem_vendor_id: U16,
    pub page_shift_min: u8,
    pub page_shift_max: u8,
    pub timeout_500ms: u8,
    /// Bit 0: doorbell buffer; 1: SGL; 2: write cache.
    pub flags: u8,
    pub ieee_oui: [u8; 3],
    pub serial_bytes: u8,
    pub model_bytes: u8,
    pub firmware_bytes: u8,
    pub subsystem_nqn_bytes: u8,
    pub reserved: u8,
    pub serial: [u8; 20],
    pub model: [u8; 40],
    pub firmware: [u8; 8],
    pub subsystem_nqn: [u8; 223],
    pub reserved_end: u8,
}

const _: () = assert!(size_of::<ConfigRecord>() == 324);

impl ConfigRecord {
    /// The record of this configuration.
    #[must_use]
    pub fn encode(config: &ControllerConfig) -> Self {
        let flags =
            u8::from(config.doorbell_buffer) | u8::from(config.sgl) << 1 | u8::from(config.write_cache) << 2;
        Self {
            max_queue_entries: U32::new(config.max_queue_entries),
            mdts_bytes: U32::new(config.mdts_bytes),
            groups: U16::new(config.groups),
            io_queues: U16::new(config.io_queues),
            vectors: U16::new(config.vectors),
            controller_id: U16::new(config.controller_id),
            vendor_id: U16::new(config.vendor_id),
            subsystem_vendor_id: U16::new(config.subsystem_vendor_id),
            page_shift_min: config.page_shift_min,
            page_shift_max: config.page_shift_max,
            timeout_500ms: config.timeout_500ms,
            flags,
            ieee_oui: config.ieee_oui,
            serial_bytes: length(config.serial.as_bytes()),
            model_bytes: length(config.model.as_bytes()),
            firmware_bytes: length(config.firmware.as_bytes()),
            subsystem_nqn_bytes: length(config.subsystem_nqn.as_bytes()),
            reserved: 0,
            serial: padded(config.serial.as_bytes()),
            model: padded(config.model.as_bytes()),
            firmware: padded(config.firmware.as_bytes()),
            subsystem_nqn: padded(config.subsystem_nqn.as_bytes()),
            reserved_end: 0,
        }
    }

    /// The configuration of the record.
    #[must_use]
    pub fn decode(&self) -> ControllerConfig {
        ControllerConfig {
            groups: self.groups.get(),
            io_queues: self.io_queues.get(),
            max_queue_entries: self.max_queue_entries.get(),
            mdts_bytes: self.mdts_bytes.get(),
            vectors: self.vectors.get(),
            page_shift_min: self.page_shift_min,
            page_shift_max: self.page_shift_max,
            timeout_500ms: self.timeout_500ms,
            doorbell_buffer: self.flags & 1 != 0,
            sgl: self.flags & 2 != 0,
            write_cache: self.flags & 4 != 0,
            controller_id: self.controller_id.get(),
            vendor_id: self.vendor_id.get(),
            subsystem_vendor_id: self.subsystem_vendor_id.get(),
            ieee_oui: self.ieee_oui,
            serial: Ascii::from_bytes(text(&self.serial, self.serial_bytes)),
            model: Ascii::from_bytes(text(&self.model, self.model_bytes)),
            firmware: Ascii::from_bytes(text(&self.firmware, self.firmware_bytes)),
            subsystem_nqn: Ascii::from_bytes(text(&self.subsystem_nqn, self.subsystem_nqn_bytes)),
        }
    }
}

fn length(text: &[u8]) -> u8 {
    u8::try_from(text.len()).unwrap_or(u8::MAX)
}

fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    for (place, byte) in bytes.iter_mut().zip(text) {
        *place = *byte;
    }
    bytes
}

fn text(bytes: &[u8], len: u8) -> &[u8] {
    bytes.get(..usize::from(len)).unwrap_or(bytes)
}

/// [`NamespaceConfig`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are NamespaceConfig's")]
pub struct NamespaceRecord {
    pub size_blocks: U64,
    pub block_bytes: U32,
    /// Bit 0: read-only; 1: deallocated blocks read as zeroes.
    pub flags: U32,
    pub uuid: [u8; 16],
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
}

const _: () = assert!(size_of::<NamespaceRecord>() == 56);

impl NamespaceRecord {
    /// The record of this namespace.
    #[must_use]
    pub fn encode(config: &NamespaceConfig) -> Self {
        Self {
            size_blocks: U64::new(config.size_blocks),
            block_bytes: U32::new(config.block_bytes),
            flags: U32::new(u32::from(config.read_only) | u32::from(config.deallocated_reads_zero) << 1),
            uuid: config.uuid,
            nguid: config.nguid,
            eui64: config.eui64,
        }
    }

    /// The namespace of the record.
    #[must_use]
    pub fn decode(&self) -> NamespaceConfig {
        NamespaceConfig {
            size_blocks: self.size_blocks.get(),
            block_bytes: self.block_bytes.get(),
            read_only: self.flags.get() & 1 != 0,
            deallocated_reads_zero: self.flags.get() & 2 != 0,
            uuid: self.uuid,
            nguid: self.nguid,
            eui64: self.eui64,
        }
    }
}

/// The number that `namespace_add` and its like return for an error.
#[must_use]
pub fn namespace_error_code(error: NamespaceError) -> u32 {
    match error {
        NamespaceError::InvalidNsid => 1,
        NamespaceError::InUse => 2,
        NamespaceError::Full => 3,
        NamespaceError::NotFound => 4,
        NamespaceError::InvalidBlockSize => 5,
        NamespaceError::InvalidSize => 6,
        NamespaceError::NoIdentifier => 7,
        NamespaceError::DuplicateIdentifier => 8,
    }
}

/// The inverse of [`namespace_error_code`].
#[must_use]
pub fn namespace_error(code: u32) -> Option<NamespaceError> {
    Some(match code {
        1 => NamespaceError::InvalidNsid,
        2 => NamespaceError::InUse,
        3 => NamespaceError::Full,
        4 => NamespaceError::NotFound,
        5 => NamespaceError::InvalidBlockSize,
        6 => NamespaceError::InvalidSize,
        7 => NamespaceError::NoIdentifier,
        8 => NamespaceError::DuplicateIdentifier,
        _ => return None,
    })
}

/// The argument of `controller_reset`.
#[must_use]
pub fn reset_kind_code(kind: ResetKind) -> u32 {
    match kind {
        ResetKind::Flr => 0,
        ResetKind::Nssr => 1,
        ResetKind::D3hot => 2,
        ResetKind::Disconnect => 3,
    }
}

/// The inverse of [`reset_kind_code`].
#[must_use]
pub fn reset_kind(code: u32) -> ResetKind {
    match code {
        0 => ResetKind::Flr,
        1 => ResetKind::Nssr,
        2 => ResetKind::D3hot,
        _ => ResetKind::Disconnect,
    }
}

/// [`SmartCounters`], in the order of its fields.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CountersRecord(pub [U64; 10]);

impl CountersRecord {
    /// The record of these counters.
    #[must_use]
    pub fn encode(counters: &SmartCounters) -> Self {
        let words = [
            counters.bytes_read,
            counters.bytes_written,
            counters.read_commands,
            counters.write_commands,
            counters.busy_ns,
            counters.power_cycles,
            counters.power_on_ns,
            counters.unsafe_shutdowns,
            counters.media_errors,
            counters.error_log_entries,
        ];
        Self(words.map(U64::new))
    }

    /// The counters of the record.
    #[must_use]
    pub fn decode(&self) -> SmartCounters {
        let [
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            busy_ns,
            power_cycles,
            power_on_ns,
            unsafe_shutdowns,
            media_errors,
            error_log_entries,
        ] = self.0.map(U64::get);
        SmartCounters {
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            busy_ns,
            power_cycles,
            power_on_ns,
            unsafe_shutdowns,
            media_errors,
            error_log_entries,
        }
    }
}

/// What every controller call leaves.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StateRecord {
    /// [`StateRecord::READY`] and its like.
    pub flags: U32,
    /// Interrupt mask.
    pub interrupt_mask: U32,
    /// Shadow doorbells in use.
    pub shadow: U64,
    /// Their EventIdx buffer.
    pub event_idx: U64,
    /// Records that `controller_poll` has left.
    pub outputs: U32,
    /// 0.
    pub reserved: U32,
}

const _: () = assert!(size_of::<StateRecord>() == 32);

impl StateRecord {
    /// CSTS.RDY.
    pub const READY: u32 = 1;
    /// The admin completion queue asserts the pin.
    pub const LEVEL: u32 = 2;
    /// Nothing of an earlier life can touch guest memory any more.
    pub const QUIESCED: u32 = 4;
    /// Shadow doorbells are in use.
    pub const DOORBELL_BUFFER: u32 = 8;
}

/// What `controller_poll` asks of the host, other than requests to groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOutput {
    /// Raise this vector.
    Interrupt(u16),
    /// Carry this out.
    Request(HostRequest),
    /// Know this.
    Namespace(NamespaceChange),
}

mod kind {
    pub(super) const INTERRUPT: u16 = 64;
    pub(super) const FLUSH_ALL: u16 = 65;
    pub(super) const ADDED: u16 = 66;
    pub(super) const RESIZED: u16 = 67;
    pub(super) const REMOVED: u16 = 68;
}

impl HostOutput {
    /// The record of this output.
    #[must_use]
    pub fn encode(&self) -> MessageRecord {
        let (kind, a, d) = match *self {
            Self::Interrupt(vector) => (kind::INTERRUPT, vector, 0),
            Self::Request(HostRequest::FlushAll { abrupt }) => (kind::FLUSH_ALL, u16::from(abrupt), 0),
            Self::Namespace(NamespaceChange::Added { nsid }) => (kind::ADDED, 0, nsid),
            Self::Namespace(NamespaceChange::Resized { nsid }) => (kind::RESIZED, 0, nsid),
            Self::Namespace(NamespaceChange::Removed { nsid }) => (kind::REMOVED, 0, nsid),
        };
        MessageRecord { a: U16::new(a), d: U32::new(d), ..MessageRecord::of_kind(kind) }
    }

    /// The output of a record; `None` where it is none of these.
    #[must_use]
    pub fn decode(record: &MessageRecord) -> Option<Self> {
        let nsid = record.d.get();
        Some(match record.kind.get() {
            kind::INTERRUPT => Self::Interrupt(record.a.get()),
            kind::FLUSH_ALL => Self::Request(HostRequest::FlushAll { abrupt: record.a.get() & 1 != 0 }),
            kind::ADDED => Self::Namespace(NamespaceChange::Added { nsid }),
            kind::RESIZED => Self::Namespace(NamespaceChange::Resized { nsid }),
            kind::REMOVED => Self::Namespace(NamespaceChange::Removed { nsid }),
            _ => return None,
        })
    }
}
