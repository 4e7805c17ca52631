//! Layout of a configuration space's state.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The whole of it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConfigSpaceRecord {
    /// Vendor ID.
    pub vendor_id: U16,
    /// Device ID.
    pub device_id: U16,
    /// Subsystem Vendor ID.
    pub subsystem_vendor_id: U16,
    /// Subsystem ID.
    pub subsystem_id: U16,
    /// Bytes of BAR 0.
    pub bar0_bytes: U64,
    /// Entries of the MSI-X table.
    pub vectors: U16,
    /// Revision ID.
    pub revision_id: u8,
    /// 0.
    pub reserved: u8,
    /// The first 160 bytes of configuration space; the others are 0.
    pub dwords: [U32; 40],
}

const _: () = assert!(size_of::<ConfigSpaceRecord>() == 180);
