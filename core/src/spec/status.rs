//! Status codes (NVM Express Base Specification 2.0, section 4.2.3; NVM Command Set Specification 1.0,
//! section 4.1.1).

use core::fmt;

/// The Status Field of a completion queue entry without the Phase Tag: SC in bits 7:0, SCT in 10:8, CRD in
/// 12:11, More (M) in 13, Do Not Retry (DNR) in 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $sct:literal, $sc:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self::new($sct, $sc);)*
        }
        impl fmt::Debug for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = match (self.code_type(), self.code()) {
                    $(($sct, $sc) => stringify!($name),)*
                    _ => "",
                };
                write!(f, "{name}({}/{:#04x}{})", self.code_type(), self.code(), if self.is_dnr() { " DNR" } else { "" })
            }
        }
    };
}

#[cfg(feature = "defmt")]
impl defmt::Format for Status {
    fn format(&self, f: defmt::Formatter<'_>) {
        let dnr = if self.is_dnr() { " DNR" } else { "" };
        defmt::write!(f, "{=u8}/{=u8:#04x}{=str}", self.code_type(), self.code(), dnr);
    }
}

statuses! {
    // Generic Command Status.
    /// Successful Completion.
    SUCCESS = 0, 0x00;
    /// Invalid Command Opcode.
    INVALID_OPCODE = 0, 0x01;
    /// Invalid Field in Command.
    INVALID_FIELD = 0, 0x02;
    /// Command ID Conflict.
    COMMAND_ID_CONFLICT = 0, 0x03;
    /// Data Transfer Error.
    DATA_TRANSFER_ERROR = 0, 0x04;
    /// Internal Error.
    INTERNAL_ERROR = 0, 0x06;
    /// Command Abort Requested.
    ABORT_REQUESTED = 0, 0x07;
    /// Command Aborted due to SQ Deletion.
    ABORTED_SQ_DELETION = 0, 0x08;
    /// Invalid Namespace or Format.
    INVALID_NAMESPACE = 0, 0x0b;
    /// Command Sequence Error.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c;
    /// Invalid SGL Segment Descriptor.
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0, 0x0d;
    /// Invalid Number of SGL Descriptors.
    INVALID_NUMBER_OF_SGL_DESCRIPTORS = 0, 0x0e;
    /// Data SGL Length Invalid.
    DATA_SGL_LENGTH_INVALID = 0, 0x0f;
    /// Metadata SGL Length Invalid.
    METADATA_SGL_LENGTH_INVALID = 0, 0x10;
    /// SGL Descriptor Type Invalid.
    SGL_DESCRIPTOR_TYPE_INVALID = 0, 0x11;
    /// PRP Offset Invalid.
    PRP_OFFSET_INVALID = 0, 0x13;
    /// SGL Offset Invalid.
    SGL_OFFSET_INVALID = 0, 0x16;
    /// Sanitize In Progress.
    SANITIZE_IN_PROGRESS = 0, 0x1d;
    /// SGL Data Block Granularity Invalid.
    SGL_DATA_BLOCK_GRANULARITY_INVALID = 0, 0x1e;
    /// Namespace is Write Protected.
    NAMESPACE_WRITE_PROTECTED = 0, 0x20;
    /// LBA Out of Range.
    LBA_OUT_OF_RANGE = 0, 0x80;
    /// Capacity Exceeded.
    CAPACITY_EXCEEDED = 0, 0x81;
    /// Namespace Not Ready.
    NAMESPACE_NOT_READY = 0, 0x82;

    // Command Specific Status.
    /// Completion Queue Invalid (Create I/O Submission Queue).
    COMPLETION_QUEUE_INVALID = 1, 0x00;
    /// Invalid Queue Identifier.
    INVALID_QUEUE_IDENTIFIER = 1, 0x01;
    /// Invalid Queue Size.
    INVALID_QUEUE_SIZE = 1, 0x02;
    /// Abort Command Limit Exceeded.
    ABORT_COMMAND_LIMIT_EXCEEDED = 1, 0x03;
    /// Asynchronous Event Request Limit Exceeded.
    AER_LIMIT_EXCEEDED = 1, 0x05;
    /// Invalid Firmware Slot.
    INVALID_FIRMWARE_SLOT = 1, 0x06;
    /// Invalid Interrupt Vector.
    INVALID_INTERRUPT_VECTOR = 1, 0x08;
    /// Invalid Log Page.
    INVALID_LOG_PAGE = 1, 0x09;
    /// Invalid Format.
    INVALID_FORMAT = 1, 0x0a;
    /// Invalid Queue Deletion.
    INVALID_QUEUE_DELETION = 1, 0x0c;
    /// Feature Identifier Not Saveable.
    FEATURE_NOT_SAVEABLE = 1, 0x0d;
    /// Feature Not Changeable.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e;
    /// Feature Not Namespace Specific.
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f;
    /// Conflicting Attributes (NVM command set).
    CONFLICTING_ATTRIBUTES = 1, 0x80;
    /// Attempted Write to Read Only Range (NVM command set).
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82;

    // Media and Data Integrity Errors.
    /// Write Fault.
    WRITE_FAULT = 2, 0x80;
    /// Unrecovered Read Error.
    UNRECOVERED_READ_ERROR = 2, 0x81;
    /// Compare Failure.
    COMPARE_FAILURE = 2, 0x85;
    /// Deallocated or Unwritten Logical Block.
    DEALLOCATED_OR_UNWRITTEN_BLOCK = 2, 0x87;
}

impl Status {
    /// A status of Status Code Type `sct` (3 bits) and Status Code `sc`, without DNR.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// The same status with Do Not Retry set: the same command would fail the same way again.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | 1 << 14)
    }

    /// The same status with More set: the Error Information log has more on it.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | 1 << 13)
    }

    /// Whether Do Not Retry is set.
    #[must_use]
    pub const fn is_dnr(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Whether this is Successful Completion.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Status Code Type (SCT).
    #[must_use]
    pub const fn code_type(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status Code (SC).
    #[must_use]
    pub const fn code(self) -> u8 {
        (self.0 & 0xff) as u8
    }
}
