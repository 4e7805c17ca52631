//! Controller properties (NVM Express Base Specification 2.0, section 3.1.3; offsets: Figure 35).

use bitfield_struct::bitfield;

/// Controller Capabilities (CAP), 8 bytes.
pub const CAP: u32 = 0x00;
/// Version (VS).
pub const VS: u32 = 0x08;
/// Interrupt Mask Set (INTMS).
pub const INTMS: u32 = 0x0c;
/// Interrupt Mask Clear (INTMC).
pub const INTMC: u32 = 0x10;
/// Controller Configuration (CC).
pub const CC: u32 = 0x14;
/// Controller Status (CSTS).
pub const CSTS: u32 = 0x1c;
/// NVM Subsystem Reset (NSSR).
pub const NSSR: u32 = 0x20;
/// Admin Queue Attributes (AQA).
pub const AQA: u32 = 0x24;
/// Admin Submission Queue Base Address (ASQ), 8 bytes.
pub const ASQ: u32 = 0x28;
/// Admin Completion Queue Base Address (ACQ), 8 bytes.
pub const ACQ: u32 = 0x30;
/// First byte of the doorbell registers.
pub const DOORBELLS: u32 = 0x1000;

/// What a write to NSSR has to hold to reset the subsystem: "NVMe".
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// Controller Capabilities (section 3.1.3.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Capabilities {
    /// Maximum Queue Entries Supported (MQES), 0's based.
    pub mqes_z: u16,
    /// Contiguous Queues Required (CQR).
    pub cqr: bool,
    /// Arbitration Mechanism Supported (AMS): bit 0 weighted round robin, bit 1 vendor specific.
    #[bits(2)]
    pub ams: u8,
    #[bits(5)]
    __: u8,
    /// Timeout (TO), in units of 500 ms: how long CSTS.RDY may take to follow CC.EN.
    pub to: u8,
    /// Doorbell Stride (DSTRD): 2 to the power of (2 + DSTRD) bytes.
    #[bits(4)]
    pub dstrd: u8,
    /// NVM Subsystem Reset Supported (NSSRS).
    pub nssrs: bool,
    /// Command Sets Supported (CSS): bit 0 is the NVM command set.
    pub css: u8,
    /// Boot Partition Support (BPS).
    pub bps: bool,
    #[bits(2)]
    __: u8,
    /// Memory Page Size Minimum (MPSMIN): 2 to the power of (12 + MPSMIN) bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// Memory Page Size Maximum (MPSMAX), likewise.
    #[bits(4)]
    pub mpsmax: u8,
    /// Persistent Memory Region Supported (PMRS).
    pub pmrs: bool,
    /// Controller Memory Buffer Supported (CMBS).
    pub cmbs: bool,
    #[bits(6)]
    __: u8,
}

/// Controller Configuration (section 3.1.3.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ControllerConfiguration {
    /// Enable (EN).
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// I/O Command Set Selected (CSS): 0 is the NVM command set.
    #[bits(3)]
    pub css: u8,
    /// Memory Page Size (MPS): 2 to the power of (12 + MPS) bytes.
    #[bits(4)]
    pub mps: u8,
    /// Arbitration Mechanism Selected (AMS): 0 is round robin.
    #[bits(3)]
    pub ams: u8,
    /// Shutdown Notification (SHN): 0 none, 1 normal, 2 abrupt.
    #[bits(2)]
    pub shn: u8,
    /// I/O Submission Queue Entry Size (IOSQES), a power of two.
    #[bits(4)]
    pub iosqes: u8,
    /// I/O Completion Queue Entry Size (IOCQES), a power of two.
    #[bits(4)]
    pub iocqes: u8,
    __: u8,
}

/// The bits of CC that a guest can write.
pub const CC_WRITABLE: u32 = 0x00ff_fff1;

/// Controller Status (section 3.1.3.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ControllerStatus {
    /// Ready (RDY).
    pub rdy: bool,
    /// Controller Fatal Status (CFS).
    pub cfs: bool,
    /// Shutdown Status (SHST): 0 normal operation, 1 shutdown processing occurring, 2 complete.
    #[bits(2)]
    pub shst: u8,
    /// NVM Subsystem Reset Occurred (NSSRO); cleared by writing 1.
    pub nssro: bool,
    /// Processing Paused (PP).
    pub pp: bool,
    #[bits(26)]
    __: u32,
}

/// Admin Queue Attributes (section 3.1.3.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AdminQueueAttributes {
    /// Admin Submission Queue Size (ASQS), 0's based.
    #[bits(12)]
    pub asqs_z: u16,
    #[bits(4)]
    __: u8,
    /// Admin Completion Queue Size (ACQS), 0's based.
    #[bits(12)]
    pub acqs_z: u16,
    #[bits(4)]
    __: u8,
}

/// The bits of AQA that a guest can write.
pub const AQA_WRITABLE: u32 = 0x0fff_0fff;

/// The bits of ASQ and ACQ that a guest can write: bits 11:0 are reserved.
pub const BASE_WRITABLE: u64 = !0xfff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        assert_eq!(Capabilities::new().with_mqes_z(0xffff).into_bits(), 0xffff);
        assert_eq!(Capabilities::new().with_cqr(true).into_bits(), 1 << 16);
        assert_eq!(Capabilities::new().with_ams(1).into_bits(), 1 << 17);
        assert_eq!(Capabilities::new().with_to(1).into_bits(), 1 << 24);
        assert_eq!(Capabilities::new().with_dstrd(1).into_bits(), 1 << 32);
        assert_eq!(Capabilities::new().with_nssrs(true).into_bits(), 1 << 36);
        assert_eq!(Capabilities::new().with_css(1).into_bits(), 1 << 37);
        assert_eq!(Capabilities::new().with_mpsmin(1).into_bits(), 1 << 48);
        assert_eq!(Capabilities::new().with_mpsmax(1).into_bits(), 1 << 52);
        assert_eq!(Capabilities::new().with_cmbs(true).into_bits(), 1 << 57);
        // What Linux writes to enable: IOCQES 4, IOSQES 6, EN.
        let cc = ControllerConfiguration::from_bits(0x0046_0001);
        assert_eq!((cc.en(), cc.css(), cc.mps(), cc.ams(), cc.shn()), (true, 0, 0, 0, 0));
        assert_eq!((cc.iosqes(), cc.iocqes()), (6, 4));
        assert_eq!(ControllerConfiguration::from_bits(0x4000).shn(), 1);
        assert_eq!(ControllerStatus::from_bits(0x1b).shst(), 2);
        assert!(ControllerStatus::from_bits(0x10).nssro());
        assert_eq!(AdminQueueAttributes::from_bits(0x001f_003f).asqs_z(), 0x3f);
        assert_eq!(AdminQueueAttributes::from_bits(0x001f_003f).acqs_z(), 0x1f);
    }
}
