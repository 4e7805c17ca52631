//! Features (NVM Express Base Specification 2.0, section 5.27.1; NVM Command Set Specification 1.0,
//! section 4.1.3): identifiers and the dwords of Set Features and Get Features.

use bitfield_struct::bitfield;

/// A Feature Identifier (FID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FeatureId(pub u8);

impl FeatureId {
    /// Arbitration.
    pub const ARBITRATION: Self = Self(0x01);
    /// Power Management.
    pub const POWER_MANAGEMENT: Self = Self(0x02);
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: Self = Self(0x04);
    /// Error Recovery.
    pub const ERROR_RECOVERY: Self = Self(0x05);
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: Self = Self(0x06);
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: Self = Self(0x07);
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: Self = Self(0x08);
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR_CONFIGURATION: Self = Self(0x09);
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: Self = Self(0x0a);
    /// Asynchronous Event Configuration.
    pub const ASYNCHRONOUS_EVENT_CONFIGURATION: Self = Self(0x0b);
    /// Timestamp.
    pub const TIMESTAMP: Self = Self(0x0e);
    /// Keep Alive Timer.
    pub const KEEP_ALIVE_TIMER: Self = Self(0x0f);
}

/// Select (SEL) of Get Features: current value.
pub const SELECT_CURRENT: u8 = 0;
/// Select: default value.
pub const SELECT_DEFAULT: u8 = 1;
/// Select: saved value.
pub const SELECT_SAVED: u8 = 2;
/// Select: supported capabilities.
pub const SELECT_CAPABILITIES: u8 = 3;

/// Power Management (section 5.27.1.2).
#[bitfield(u32)]
pub struct PowerManagement {
    /// Power State (PS).
    #[bits(5)]
    pub ps: u8,
    /// Workload Hint (WH).
    #[bits(3)]
    pub wh: u8,
    #[bits(24)]
    __: u32,
}

/// Temperature Threshold (section 5.27.1.3).
#[bitfield(u32)]
pub struct TemperatureThreshold {
    /// Temperature Threshold (TMPTH), in kelvins.
    pub tmpth: u16,
    /// Threshold Temperature Select (TMPSEL): 0 is the composite temperature, Fh all of them.
    #[bits(4)]
    pub tmpsel: u8,
    /// Threshold Type Select (THSEL): 0 over, 1 under.
    #[bits(2)]
    pub thsel: u8,
    #[bits(10)]
    __: u16,
}

/// Error Recovery (NVM Command Set Specification 1.0, section 4.1.3.2).
#[bitfield(u32)]
pub struct ErrorRecovery {
    /// Time Limited Error Recovery (TLER), in units of 100 ms.
    pub tler: u16,
    /// Deallocated or Unwritten Logical Block Error Enable (DULBE).
    pub dulbe: bool,
    #[bits(15)]
    __: u16,
}

/// Number of Queues (section 5.27.1.5): requested in command dword 11, allocated in completion dword 0.
#[bitfield(u32)]
pub struct NumberOfQueues {
    /// Number of I/O Submission Queues (NSQR, NSQA), 0's based.
    pub submission_z: u16,
    /// Number of I/O Completion Queues (NCQR, NCQA), 0's based.
    pub completion_z: u16,
}

/// Interrupt Coalescing (section 5.27.1.6).
#[bitfield(u32)]
pub struct InterruptCoalescing {
    /// Aggregation Threshold (THR), 0's based.
    pub thr_z: u8,
    /// Aggregation Time (TIME), in units of 100 microseconds.
    pub time: u8,
    __: u16,
}

/// Interrupt Vector Configuration (section 5.27.1.7).
#[bitfield(u32)]
pub struct InterruptVectorConfiguration {
    /// Interrupt Vector (IV).
    pub iv: u16,
    /// Coalescing Disable (CD).
    pub cd: bool,
    #[bits(15)]
    __: u16,
}

/// Asynchronous Event Configuration (section 5.27.1.8), bits 7:0: SMART / Health Critical Warnings.
pub const EVENT_CRITICAL_WARNINGS: u32 = 0xff;
/// Asynchronous Event Configuration, bit 8: Namespace Attribute Notices.
pub const EVENT_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
