//! Identify data structures (NVM Express Base Specification 2.0, section 5.17.2; NVM Command Set
//! Specification 1.0, section 4.1.5). Each structure is one piece of a 4096-byte page; what lies between the
//! pieces is reserved and reads 0.

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: u32 = 4096;

/// Controller or Namespace Structure (CNS, Figure 274).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cns(pub u8);

impl Cns {
    /// Identify Namespace data structure.
    pub const NAMESPACE: Self = Self(0x00);
    /// Identify Controller data structure.
    pub const CONTROLLER: Self = Self(0x01);
    /// Active Namespace ID list.
    pub const ACTIVE_NAMESPACES: Self = Self(0x02);
    /// Namespace Identification Descriptor list.
    pub const NAMESPACE_DESCRIPTORS: Self = Self(0x03);
    /// I/O Command Set specific Identify Namespace data structure.
    pub const COMMAND_SET_NAMESPACE: Self = Self(0x05);
    /// I/O Command Set specific Identify Controller data structure.
    pub const COMMAND_SET_CONTROLLER: Self = Self(0x06);
    /// Active Namespace ID list of one I/O Command Set.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: Self = Self(0x07);
    /// I/O Command Set Independent Identify Namespace data structure.
    pub const INDEPENDENT_NAMESPACE: Self = Self(0x08);
}

/// Identify Controller, bytes 0 to 133: Controller Capabilities and Features (Figure 275).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControllerCapabilities {
    /// PCI Vendor ID (VID).
    pub vid: U16,
    /// PCI Subsystem Vendor ID (SSVID).
    pub ssvid: U16,
    /// Serial Number (SN), ASCII padded with spaces.
    pub sn: [u8; 20],
    /// Model Number (MN), ASCII padded with spaces.
    pub mn: [u8; 40],
    /// Firmware Revision (FR), ASCII padded with spaces.
    pub fr: [u8; 8],
    /// Recommended Arbitration Burst (RAB), a power of two.
    pub rab: u8,
    /// IEEE OUI Identifier (IEEE), least significant byte first.
    pub ieee: [u8; 3],
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
    pub cmic: u8,
    /// Maximum Data Transfer Size (MDTS), a power of two in units of the minimum memory page size.
    pub mdts: u8,
    /// Controller ID (CNTLID).
    pub cntlid: U16,
    /// Version (VER).
    pub ver: U32,
    /// RTD3 Resume Latency (RTD3R), in microseconds.
    pub rtd3r: U32,
    /// RTD3 Entry Latency (RTD3E), in microseconds.
    pub rtd3e: U32,
    /// Optional Asynchronous Events Supported (OAES).
    pub oaes: U32,
    /// Controller Attributes (CTRATT).
    pub ctratt: U32,
    /// Read Recovery Levels Supported (RRLS).
    pub rrls: U16,
    pub(crate) reserved_102: [u8; 9],
    /// Controller Type (CNTRLTYPE): 1 is an I/O controller.
    pub cntrltype: u8,
    /// FRU Globally Unique Identifier (FGUID).
    pub fguid: [u8; 16],
    /// Command Retry Delay Times 1 to 3 (CRDT), in units of 100 ms.
    pub crdt: [U16; 3],
}

const _: () = assert!(size_of::<ControllerCapabilities>() == 134);

/// Identify Controller, bytes 256 to 357: Admin Command Set Attributes (Figure 275).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AdminAttributes {
    /// Optional Admin Command Support (OACS).
    pub oacs: U16,
    /// Abort Command Limit (ACL), 0's based.
    pub acl_z: u8,
    /// Asynchronous Event Request Limit (AERL), 0's based.
    pub aerl_z: u8,
    /// Firmware Updates (FRMW): bit 0 slot 1 is read only, bits 3:1 number of slots.
    pub frmw: u8,
    /// Log Page Attributes (LPA).
    pub lpa: u8,
    /// Error Log Page Entries (ELPE), 0's based.
    pub elpe_z: u8,
    /// Number of Power States Support (NPSS), 0's based.
    pub npss_z: u8,
    /// Admin Vendor Specific Command Configuration (AVSCC).
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes (APSTA).
    pub apsta: u8,
    /// Warning Composite Temperature Threshold (WCTEMP), in kelvins.
    pub wctemp: U16,
    /// Critical Composite Temperature Threshold (CCTEMP), in kelvins.
    pub cctemp: U16,
    /// Maximum Time for Firmware Activation (MTFA), in units of 100 ms.
    pub mtfa: U16,
    /// Host Memory Buffer Preferred Size (HMPRE).
    pub hmpre: U32,
    /// Host Memory Buffer Minimum Size (HMMIN).
    pub hmmin: U32,
    /// Total NVM Capacity (TNVMCAP), in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM Capacity (UNVMCAP), in bytes.
    pub unvmcap: U128,
    /// Replay Protected Memory Block Support (RPMBS).
    pub rpmbs: U32,
    /// Extended Device Self-test Time (EDSTT), in minutes.
    pub edstt: U16,
    /// Device Self-test Options (DSTO).
    pub dsto: u8,
    /// Firmware Update Granularity (FWUG).
    pub fwug: u8,
    /// Keep Alive Support (KAS).
    pub kas: U16,
    /// Host Controlled Thermal Management Attributes (HCTMA).
    pub hctma: U16,
    /// Minimum Thermal Management Temperature (MNTMT).
    pub mntmt: U16,
    /// Maximum Thermal Management Temperature (MXTMT).
    pub mxtmt: U16,
    /// Sanitize Capabilities (SANICAP).
    pub sanicap: U32,
    /// Host Memory Buffer, NVM Sets, Endurance Groups, Asymmetric Namespace Access, Persistent Event Log and
    /// Domain fields (bytes 332 to 357); none of these is supported.
    pub unsupported_332: [u8; 26],
}

const _: () = assert!(size_of::<AdminAttributes>() == 102);

/// Identify Controller, bytes 512 to 543: NVM Command Set Attributes (Figure 275).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmAttributes {
    /// Submission Queue Entry Size (SQES): required in bits 3:0, maximum in bits 7:4, powers of two.
    pub sqes: u8,
    /// Completion Queue Entry Size (CQES), likewise.
    pub cqes: u8,
    /// Maximum Outstanding Commands (MAXCMD).
    pub maxcmd: U16,
    /// Number of Namespaces (NN): the highest namespace identifier.
    pub nn: U32,
    /// Optional NVM Command Support (ONCS).
    pub oncs: U16,
    /// Fused Operation Support (FUSES).
    pub fuses: U16,
    /// Format NVM Attributes (FNA).
    pub fna: u8,
    /// Volatile Write Cache (VWC): bit 0 present, bits 2:1 behaviour of Flush with NSID FFFFFFFFh.
    pub vwc: u8,
    /// Atomic Write Unit Normal (AWUN), 0's based logical blocks.
    pub awun_z: U16,
    /// Atomic Write Unit Power Fail (AWUPF), 0's based logical blocks.
    pub awupf_z: U16,
    /// NVM Vendor Specific Command Configuration (NVSCC).
    pub nvscc: u8,
    /// Namespace Write Protection Capabilities (NWPC).
    pub nwpc: u8,
    /// Atomic Compare & Write Unit (ACWU), 0's based logical blocks.
    pub acwu_z: U16,
    /// Copy Descriptor Formats Supported (CDFS).
    pub cdfs: U16,
    /// SGL Support (SGLS).
    pub sgls: U32,
    /// Maximum Number of Allowed Namespaces (MNAN).
    pub mnan: U32,
}

const _: () = assert!(size_of::<NvmAttributes>() == 32);

/// First byte of [`AdminAttributes`].
pub const ADMIN_ATTRIBUTES_OFFSET: u64 = 256;
/// First byte of [`NvmAttributes`].
pub const NVM_ATTRIBUTES_OFFSET: u64 = 512;
/// First byte of the NVM Subsystem NVMe Qualified Name (SUBNQN), 256 bytes.
pub const SUBNQN_OFFSET: u64 = 768;
/// First byte of the Power State Descriptors, 32 bytes each.
pub const POWER_STATES_OFFSET: u64 = 2048;

/// SGLS bits 1:0: SGLs supported, without alignment or granularity requirement.
pub const SGLS_SUPPORTED: u32 = 1;
/// SGLS bit 16: SGL Bit Bucket descriptor supported.
pub const SGLS_BIT_BUCKET: u32 = 1 << 16;

/// Identify Namespace, bytes 0 to 131 (NVM Command Set Specification 1.0, Figure 97), with one LBA format.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size (NSZE), in logical blocks.
    pub nsze: U64,
    /// Namespace Capacity (NCAP), in logical blocks.
    pub ncap: U64,
    /// Namespace Utilization (NUSE), in logical blocks.
    pub nuse: U64,
    /// Namespace Features (NSFEAT).
    pub nsfeat: u8,
    /// Number of LBA Formats (NLBAF), 0's based.
    pub nlbaf_z: u8,
    /// Formatted LBA Size (FLBAS).
    pub flbas: u8,
    /// Metadata Capabilities (MC).
    pub mc: u8,
    /// End-to-end Data Protection Capabilities (DPC).
    pub dpc: u8,
    /// End-to-end Data Protection Type Settings (DPS).
    pub dps: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
    pub nmic: u8,
    /// Reservation Capabilities (RESCAP).
    pub rescap: u8,
    /// Format Progress Indicator (FPI).
    pub fpi: u8,
    /// Deallocate Logical Block Features (DLFEAT): bits 2:0 what deallocated blocks read as (1: zeroes), bit 3
    /// Write Zeroes may deallocate.
    pub dlfeat: u8,
    /// Namespace Atomic Write Unit Normal and Power Fail, Compare & Write (NAWUN, NAWUPF, NACWU), boundaries
    /// (NABSN, NABO, NABSPF) and Optimal I/O Boundary (NOIOB): bytes 34 to 47.
    pub atomicity: [U16; 7],
    /// NVM Capacity (NVMCAP), in bytes.
    pub nvmcap: U128,
    /// Preferred write and deallocate granularity and alignment (NPWG, NPWA, NPDG, NPDA), Optimal Write Size
    /// (NOWS), 0's based logical blocks.
    pub preferred_z: [U16; 5],
    pub(crate) reserved_74: [u8; 18],
    /// ANA Group Identifier (ANAGRPID).
    pub anagrpid: U32,
    pub(crate) reserved_96: [u8; 3],
    /// Namespace Attributes (NSATTR): bit 0 write protected.
    pub nsattr: u8,
    /// NVM Set Identifier (NVMSETID).
    pub nvmsetid: U16,
    /// Endurance Group Identifier (ENDGID).
    pub endgid: U16,
    /// Namespace Globally Unique Identifier (NGUID), big-endian; 0 where there is none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier (EUI64), big-endian; 0 where there is none.
    pub eui64: [u8; 8],
    /// LBA Format 0: Metadata Size (MS).
    pub lbaf0_ms: U16,
    /// LBA Format 0: LBA Data Size (LBADS), a power of two.
    pub lbaf0_lbads: u8,
    /// LBA Format 0: Relative Performance (RP).
    pub lbaf0_rp: u8,
}

const _: () = assert!(size_of::<IdentifyNamespace>() == 132);

/// I/O Command Set Independent Identify Namespace, bytes 0 to 14 (Figure 280).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Common Namespace Features (NSFEAT).
    pub nsfeat: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
    pub nmic: u8,
    /// Reservation Capabilities (RESCAP).
    pub rescap: u8,
    /// Format Progress Indicator (FPI).
    pub fpi: u8,
    /// ANA Group Identifier (ANAGRPID).
    pub anagrpid: U32,
    /// Namespace Attributes (NSATTR): bit 0 write protected.
    pub nsattr: u8,
    pub(crate) reserved_9: u8,
    /// NVM Set Identifier (NVMSETID).
    pub nvmsetid: U16,
    /// Endurance Group Identifier (ENDGID).
    pub endgid: U16,
    /// Namespace Status (NSTAT): bit 0 ready.
    pub nstat: u8,
}

const _: () = assert!(size_of::<IndependentNamespace>() == 15);

/// Namespace Identifier Type (NIDT, Figure 277): IEEE Extended Unique Identifier, 8 bytes.
pub const NIDT_EUI64: u8 = 1;
/// NIDT: Namespace Globally Unique Identifier, 16 bytes.
pub const NIDT_NGUID: u8 = 2;
/// NIDT: Namespace UUID, 16 bytes.
pub const NIDT_UUID: u8 = 3;
/// NIDT: Command Set Identifier, 1 byte.
pub const NIDT_CSI: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        assert_eq!(offset_of!(ControllerCapabilities, rab), 72);
        assert_eq!(offset_of!(ControllerCapabilities, mdts), 77);
        assert_eq!(offset_of!(ControllerCapabilities, ver), 80);
        assert_eq!(offset_of!(ControllerCapabilities, oaes), 92);
        assert_eq!(offset_of!(ControllerCapabilities, cntrltype), 111);
        assert_eq!(offset_of!(ControllerCapabilities, crdt), 128);
        assert_eq!(256 + offset_of!(AdminAttributes, aerl_z), 259);
        assert_eq!(256 + offset_of!(AdminAttributes, lpa), 261);
        assert_eq!(256 + offset_of!(AdminAttributes, wctemp), 266);
        assert_eq!(256 + offset_of!(AdminAttributes, tnvmcap), 280);
        assert_eq!(256 + offset_of!(AdminAttributes, kas), 320);
        assert_eq!(256 + offset_of!(AdminAttributes, sanicap), 328);
        assert_eq!(512 + offset_of!(NvmAttributes, nn), 516);
        assert_eq!(512 + offset_of!(NvmAttributes, oncs), 520);
        assert_eq!(512 + offset_of!(NvmAttributes, vwc), 525);
        assert_eq!(512 + offset_of!(NvmAttributes, sgls), 536);
        assert_eq!(offset_of!(IdentifyNamespace, nlbaf_z), 25);
        assert_eq!(offset_of!(IdentifyNamespace, dlfeat), 33);
        assert_eq!(offset_of!(IdentifyNamespace, nvmcap), 48);
        assert_eq!(offset_of!(IdentifyNamespace, nsattr), 99);
        assert_eq!(offset_of!(IdentifyNamespace, nguid), 104);
        assert_eq!(offset_of!(IdentifyNamespace, eui64), 120);
        assert_eq!(offset_of!(IdentifyNamespace, lbaf0_lbads), 130);
        assert_eq!(offset_of!(IndependentNamespace, nstat), 14);
    }
}
