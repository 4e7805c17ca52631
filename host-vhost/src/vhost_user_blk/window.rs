//! A range of memory that is shared with the frontend, with bounds: the only way to rings and to the in-flight
//! region.
#![expect(unsafe_code, reason = "reads and writes memory that a guest changes meanwhile")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::memory::{HostPointer, MemoryMap, Region};

/// See the module. The region, and with it its mapping, lives as long as the window.
#[derive(Debug)]
pub(super) struct Window {
    base: HostPointer,
    len_bytes: usize,
    region: Arc<Region>,
}

impl Window {
    /// The range of guest memory, which has to lie in one region that is readable and writable.
    pub(super) fn of_guest(map: &MemoryMap, address: u64, len_bytes: usize) -> Option<Self> {
        let region = map.find(address)?;
        Self::of_region(region, address - region.iova(), len_bytes)
    }

    /// A part of a region.
    pub(super) fn of_region(region: &Arc<Region>, offset: u64, len_bytes: usize) -> Option<Self> {
        let rest = region.size().checked_sub(offset)?;
        let rights = region.rights();
        if len_bytes as u64 > rest || !rights.read || !rights.write {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: the offset lies inside the mapping, which has at least the region's size.
        let base = unsafe { region.host()?.0.add(offset) };
        Some(Self { base: HostPointer(base), len_bytes, region: Arc::clone(region) })
    }

    /// Whether the first byte is aligned.
    pub(super) fn is_aligned(&self, align: usize) -> bool {
        self.base.0.addr().get().is_multiple_of(align)
    }

    /// Whether the file behind it was truncated, so that it is nobody's memory.
    pub(super) fn is_lost(&self) -> bool {
        self.region.host().is_none()
    }

    #[inline]
    pub(super) fn load_u8(&self, offset: usize) -> u8 {
        // SAFETY: `at` has checked bounds and alignment; the region keeps the mapping.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn store_u8(&self, offset: usize, value: u8) {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.store(value, Ordering::Release);
    }

    /// Sets bits, in one atomic access.
    #[inline]
    pub(super) fn or_u8(&self, offset: usize, bits: u8) {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.fetch_or(bits, Ordering::Release);
    }

    /// A little-endian 16-bit field.
    #[inline]
    pub(super) fn load_u16(&self, offset: usize) -> u16 {
        // SAFETY: as above.
        u16::from_le(unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn store_u16(&self, offset: usize, value: u16) {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }.store(value.to_le(), Ordering::Release);
    }

    #[inline]
    pub(super) fn store_u32(&self, offset: usize, value: u32) {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }.store(value.to_le(), Ordering::Release);
    }

    #[inline]
    pub(super) fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: as above.
        u64::from_le(unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn store_u64(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }.store(value.to_le(), Ordering::Release);
    }

    /// Copies 16 bytes, of any alignment.
    #[inline]
    pub(super) fn copy_16(&self, offset: usize) -> [u8; 16] {
        let mut bytes = [0; 16];
        let from = self.at(offset, 16);
        // SAFETY: `at` has checked the bounds; the destination is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), 16) };
        bytes
    }

    /// The address of `width` bytes, which for an atomic has to be aligned: whoever makes a window for
    /// fields checks [`Self::is_aligned`], and the offsets are multiples of the width.
    #[inline]
    fn at(&self, offset: usize, width: usize) -> *mut u8 {
        assert!(width <= self.len_bytes && offset <= self.len_bytes - width, "a field outside its window");
        self.base.0.as_ptr().wrapping_add(offset)
    }
}
