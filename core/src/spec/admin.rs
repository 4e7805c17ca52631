//! Admin commands (NVM Express Base Specification 2.0, section 5): opcodes and command dwords.

use bitfield_struct::bitfield;

/// An admin command opcode (Figure 138).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdminOpcode(pub u8);

impl AdminOpcode {
    /// Delete I/O Submission Queue.
    pub const DELETE_SUBMISSION_QUEUE: Self = Self(0x00);
    /// Create I/O Submission Queue.
    pub const CREATE_SUBMISSION_QUEUE: Self = Self(0x01);
    /// Get Log Page.
    pub const GET_LOG_PAGE: Self = Self(0x02);
    /// Delete I/O Completion Queue.
    pub const DELETE_COMPLETION_QUEUE: Self = Self(0x04);
    /// Create I/O Completion Queue.
    pub const CREATE_COMPLETION_QUEUE: Self = Self(0x05);
    /// Identify.
    pub const IDENTIFY: Self = Self(0x06);
    /// Abort.
    pub const ABORT: Self = Self(0x08);
    /// Set Features.
    pub const SET_FEATURES: Self = Self(0x09);
    /// Get Features.
    pub const GET_FEATURES: Self = Self(0x0a);
    /// Asynchronous Event Request.
    pub const ASYNCHRONOUS_EVENT_REQUEST: Self = Self(0x0c);
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: Self = Self(0x0d);
    /// Firmware Commit.
    pub const FIRMWARE_COMMIT: Self = Self(0x10);
    /// Device Self-test.
    pub const DEVICE_SELF_TEST: Self = Self(0x14);
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: Self = Self(0x15);
    /// Keep Alive.
    pub const KEEP_ALIVE: Self = Self(0x18);
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER_CONFIG: Self = Self(0x7c);
    /// Format NVM.
    pub const FORMAT_NVM: Self = Self(0x80);
    /// Sanitize.
    pub const SANITIZE: Self = Self(0x84);
}

/// NSID that stands for every namespace.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Command Dword 10 of Create I/O Completion Queue and Create I/O Submission Queue (Figures 149, 152).
#[bitfield(u32)]
pub struct CreateQueueDword10 {
    /// Queue Identifier (QID).
    pub qid: u16,
    /// Queue Size (QSIZE), 0's based.
    pub qsize_z: u16,
}

/// Command Dword 11 of Create I/O Completion Queue (Figure 150).
#[bitfield(u32)]
pub struct CreateCompletionQueueDword11 {
    /// Physically Contiguous (PC).
    pub pc: bool,
    /// Interrupts Enabled (IEN).
    pub ien: bool,
    #[bits(14)]
    __: u16,
    /// Interrupt Vector (IV).
    pub iv: u16,
}

/// Command Dword 11 of Create I/O Submission Queue (Figure 153).
#[bitfield(u32)]
pub struct CreateSubmissionQueueDword11 {
    /// Physically Contiguous (PC).
    pub pc: bool,
    /// Queue Priority (QPRIO); only used with weighted round robin.
    #[bits(2)]
    pub qprio: u8,
    #[bits(13)]
    __: u16,
    /// Completion Queue Identifier (CQID).
    pub cqid: u16,
}

/// Command Dword 10 of Abort (Figure 141).
#[bitfield(u32)]
pub struct AbortDword10 {
    /// Submission Queue Identifier (SQID).
    pub sqid: u16,
    /// Command Identifier (CID).
    pub cid: u16,
}

/// Command Dword 10 of Get Log Page (Figure 197).
#[bitfield(u32)]
pub struct GetLogPageDword10 {
    /// Log Page Identifier (LID).
    pub lid: u8,
    /// Log Specific Field (LSP).
    #[bits(7)]
    pub lsp: u8,
    /// Retain Asynchronous Event (RAE).
    pub rae: bool,
    /// Number of Dwords Lower (NUMDL), 0's based together with NUMDU.
    pub numdl: u16,
}

/// Command Dword 10 of Identify (Figure 273).
#[bitfield(u32)]
pub struct IdentifyDword10 {
    /// Controller or Namespace Structure (CNS).
    pub cns: u8,
    __: u8,
    /// Controller Identifier (CNTID).
    pub cntid: u16,
}

/// Command Dword 10 of Set Features (Figure 316).
#[bitfield(u32)]
pub struct SetFeaturesDword10 {
    /// Feature Identifier (FID).
    pub fid: u8,
    #[bits(23)]
    __: u32,
    /// Save (SV).
    pub sv: bool,
}

/// Command Dword 10 of Get Features (Figure 191).
#[bitfield(u32)]
pub struct GetFeaturesDword10 {
    /// Feature Identifier (FID).
    pub fid: u8,
    /// Select (SEL): 0 current, 1 default, 2 saved, 3 supported capabilities.
    #[bits(3)]
    pub sel: u8,
    #[bits(21)]
    __: u32,
}

/// Dword 0 of the completion of Asynchronous Event Request (Figure 145).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsynchronousEvent {
    /// Asynchronous Event Type (AET): 0 error, 1 SMART / health, 2 notice.
    #[bits(3)]
    pub aet: u8,
    #[bits(5)]
    __: u8,
    /// Asynchronous Event Information (AEI).
    pub aei: u8,
    /// Log Page Identifier (LID) of the page that tells more.
    pub lid: u8,
    __: u8,
}
