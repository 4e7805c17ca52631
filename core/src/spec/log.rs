//! Log pages (NVM Express Base Specification 2.0, section 5.16.1).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A Log Page Identifier (LID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogId(pub u8);

impl LogId {
    /// Supported Log Pages.
    pub const SUPPORTED_LOG_PAGES: Self = Self(0x00);
    /// Error Information.
    pub const ERROR_INFORMATION: Self = Self(0x01);
    /// SMART / Health Information.
    pub const SMART: Self = Self(0x02);
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: Self = Self(0x03);
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: Self = Self(0x04);
    /// Commands Supported and Effects.
    pub const COMMAND_EFFECTS: Self = Self(0x05);
    /// Feature Identifiers Supported and Effects.
    pub const FEATURE_EFFECTS: Self = Self(0x12);
}

/// Error Information Log Entry (Figure 205).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorInformationEntry {
    /// Error Count, from 1; 0 marks an entry that holds nothing.
    pub error_count: U64,
    /// Submission Queue ID (SQID).
    pub sqid: U16,
    /// Command ID (CID), FFFFh where the error belongs to no command.
    pub cid: U16,
    /// Status Info: Status Field in bits 15:1, Phase Tag in bit 0.
    pub status: U16,
    /// Parameter Error Location, FFFFh where there is none.
    pub parameter_error_location: U16,
    /// LBA.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor Specific Information Available.
    pub vendor_specific: u8,
    /// Transport Type (TRTYPE): 0 for PCIe.
    pub transport_type: u8,
    pub(crate) reserved_30: [u8; 2],
    /// Command Specific Information.
    pub command_specific: U64,
    /// Transport Type Specific Information.
    pub transport_specific: U16,
    pub(crate) reserved_42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorInformationEntry>() == 64);

/// SMART / Health Information, bytes 0 to 231 (Figure 207); the rest of its 512 bytes is reserved.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartInformation {
    /// Critical Warning: bit 0 spare, 1 temperature, 2 reliability, 3 read only, 4 backup, 5 PMR.
    pub critical_warning: u8,
    /// Composite Temperature, in kelvins.
    pub composite_temperature: U16,
    /// Available Spare, in percent.
    pub available_spare: u8,
    /// Available Spare Threshold, in percent.
    pub available_spare_threshold: u8,
    /// Percentage Used.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_critical_warning: u8,
    pub(crate) reserved_7: [u8; 25],
    /// Data Units Read: thousands of 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written, likewise.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_read_commands: U128,
    /// Host Write Commands.
    pub host_write_commands: U128,
    /// Controller Busy Time, in minutes.
    pub controller_busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries over the life of the controller.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time, in minutes.
    pub warning_temperature_time: U32,
    /// Critical Composite Temperature Time, in minutes.
    pub critical_temperature_time: U32,
    /// Temperature Sensors 1 to 8, in kelvins; 0 where there is none.
    pub temperature_sensor: [U16; 8],
    /// Thermal Management Temperature 1 and 2: transition counts and total times.
    pub thermal_management: [U32; 4],
}

const _: () = assert!(size_of::<SmartInformation>() == 232);

/// Bytes of the SMART / Health Information log page.
pub const SMART_BYTES: u64 = 512;
/// Bytes of the Firmware Slot Information log page.
pub const FIRMWARE_SLOT_BYTES: u64 = 512;
/// Bytes of the Changed Namespace List log page.
pub const CHANGED_NAMESPACES_BYTES: u64 = 4096;
/// Bytes of the Commands Supported and Effects log page.
pub const COMMAND_EFFECTS_BYTES: u64 = 4096;
/// Bytes of the Supported Log Pages log page and of Feature Identifiers Supported and Effects.
pub const IDENTIFIER_LIST_BYTES: u64 = 1024;

/// A dword of Commands Supported and Effects (Figure 211) or of Feature Identifiers Supported and Effects
/// (Figure 269), which share their low bits.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Effects {
    /// Command or Feature Supported (CSUPP, FSUPP).
    pub supported: bool,
    /// Logical Block Content Change (LBCC), or User Data Content Change (UDCC).
    pub content_change: bool,
    /// Namespace Capability Change (NCC).
    pub namespace_capability_change: bool,
    /// Namespace Inventory Change (NIC).
    pub namespace_inventory_change: bool,
    /// Controller Capability Change (CCC).
    pub controller_capability_change: bool,
    #[bits(11)]
    __: u16,
    /// Command Submission and Execution (CSE); reserved for features.
    #[bits(3)]
    pub submission: u8,
    /// UUID Selection Supported.
    pub uuid_selection: bool,
    /// Scope bit 0: namespace.
    pub namespace_scope: bool,
    /// Scope bit 1: controller.
    pub controller_scope: bool,
    #[bits(10)]
    __: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        assert_eq!(offset_of!(ErrorInformationEntry, sqid), 8);
        assert_eq!(offset_of!(ErrorInformationEntry, status), 12);
        assert_eq!(offset_of!(ErrorInformationEntry, lba), 16);
        assert_eq!(offset_of!(ErrorInformationEntry, nsid), 24);
        assert_eq!(offset_of!(ErrorInformationEntry, command_specific), 32);
        assert_eq!(offset_of!(SmartInformation, composite_temperature), 1);
        assert_eq!(offset_of!(SmartInformation, available_spare), 3);
        assert_eq!(offset_of!(SmartInformation, data_units_read), 32);
        assert_eq!(offset_of!(SmartInformation, host_read_commands), 64);
        assert_eq!(offset_of!(SmartInformation, power_cycles), 112);
        assert_eq!(offset_of!(SmartInformation, unsafe_shutdowns), 144);
        assert_eq!(offset_of!(SmartInformation, error_log_entries), 176);
        assert_eq!(offset_of!(SmartInformation, temperature_sensor), 200);
        assert_eq!(Effects::new().with_submission(1).into_bits(), 1 << 16);
        assert_eq!(Effects::new().with_namespace_scope(true).into_bits(), 1 << 20);
    }
}
