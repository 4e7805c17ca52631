//! Guest memory as the core sees it: what a PCI device can do by DMA, and nothing more.
//!
//! The core never holds a reference into guest memory. It copies bytes out once, parses the copy and forgets
//! where it came from; so a guest that changes memory behind the device's back can't make two reads differ.

use crate::sync::{Ordering, fence};

/// An access that doesn't lie wholly inside memory the device may use that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DmaError;

impl core::fmt::Display for DmaError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the address range is not guest memory that the device may access that way")
    }
}

impl core::error::Error for DmaError {}

/// What an access does to guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Access {
    /// The device reads.
    Read,
    /// The device writes.
    Write,
}

/// Guest memory, addressed as the guest's driver addresses it for DMA.
///
/// Addresses and lengths are bytes. No implementation may panic or block without bound whatever the address;
/// a range that wraps, lies outside RAM or inside the device's own BAR is a [`DmaError`] and moves nothing
/// visible. 32-bit values are little-endian in guest memory and native here.
pub trait DmaMemory {
    /// Copies `buffer.len()` bytes out of guest memory.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError>;

    /// Copies `bytes` into guest memory.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError>;

    /// Loads a naturally aligned dword in one access, with no ordering of its own (relaxed).
    fn load_u32(&self, address: u64) -> Result<u32, DmaError>;

    /// Stores a naturally aligned dword in one access, with no ordering of its own (relaxed).
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError>;

    /// Replaces the naturally aligned dword at `address` by `new` if it still is `current`; returns what was
    /// there. Relaxed. A host whose memory has no such operation may do a load and a store, and then loses
    /// only to a driver that writes the same doorbell by register and by shadow from two processors at once.
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError>;

    /// Whether the whole range can be accessed that way.
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError>;

    /// Writes a 16-byte completion queue entry so that its last dword, which carries the Phase Tag, becomes
    /// visible last (NVM Express Base Specification 2.0, section 4.2.1). `entry` is dwords 0 to 3.
    ///
    /// The release fence pairs with the read barrier that a driver has between reading the Phase Tag and
    /// reading the rest of the entry; it also orders the command's data before the entry.
    fn publish(&self, address: u64, entry: [u32; 4]) -> Result<(), DmaError> {
        let [dword0, dword1, dword2, dword3] = entry;
        self.store_u32(address, dword0)?;
        self.store_u32(address.wrapping_add(4), dword1)?;
        self.store_u32(address.wrapping_add(8), dword2)?;
        fence(Ordering::Release);
        self.store_u32(address.wrapping_add(12), dword3)
    }
}

impl<M: DmaMemory + ?Sized> DmaMemory for &M {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        (**self).read(address, buffer)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        (**self).write(address, bytes)
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        (**self).load_u32(address)
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        (**self).store_u32(address, value)
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        (**self).compare_exchange_u32(address, current, new)
    }
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        (**self).check(address, len_bytes, access)
    }
    fn publish(&self, address: u64, entry: [u32; 4]) -> Result<(), DmaError> {
        (**self).publish(address, entry)
    }
}
