//! placeholder
/// Vendor.
pub const VENDOR_ID: u16 = 0x1234;
