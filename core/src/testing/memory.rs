//! Guest memory in the test's own memory.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use crate::memory::{Access, DmaError, DmaMemory};
use crate::sync::{AtomicU32, Ordering};

/// RAM of a guest that isn't there: one or more regions at any guest addresses, shared by threads.
///
/// Dwords are atomic, smaller pieces are merged into their dword atomically, so a test may be driver and
/// controller on two threads. Under `cfg(loom)` the dwords are loom's.
#[derive(Debug, Default)]
pub struct RamMemory {
    regions: Vec<Region>,
    watched: Option<Range<u64>>,
    watched_accesses: AtomicUsize,
}

#[derive(Debug)]
struct Region {
    base: u64,
    dwords: Box<[AtomicU32]>,
    writable: bool,
}

impl RamMemory {
    /// One writable region of zeroes. `base` and `len_bytes` are multiples of 4.
    #[must_use]
    pub fn new(base: u64, len_bytes: u64) -> Self {
        Self::default().with_region(base, len_bytes)
    }

    /// The same memory with one more writable region of zeroes.
    #[must_use]
    pub fn with_region(mut self, base: u64, len_bytes: u64) -> Self {
        self.add_region(base, len_bytes, true);
        self
    }

    /// The same memory with one more region that the device can only read.
    #[must_use]
    pub fn with_read_only_region(mut self, base: u64, len_bytes: u64) -> Self {
        self.add_region(base, len_bytes, false);
        self
    }

    /// Takes away every region that has its base in the range, as a DMA unmap does.
    pub fn remove_regions(&mut self, range: Range<u64>) {
        self.regions.retain(|region| !range.contains(&region.base));
    }

    /// From now on counts the device's accesses that touch this range.
    pub fn watch(&mut self, range: Range<u64>) {
        self.watched = Some(range);
        self.watched_accesses = AtomicUsize::new(0);
    }

    /// How many accesses touched the watched range.
    #[must_use]
    pub fn watched_accesses(&self) -> usize {
        self.watched_accesses.load(Ordering::Relaxed)
    }

    /// Sets every byte of a range, unseen by [`RamMemory::watch`].
    ///
    /// # Panics
    /// Where the range isn't guest memory.
    pub fn fill(&self, address: u64, len_bytes: u64, byte: u8) {
        self.poke(address, &vec![byte; usize::try_from(len_bytes).expect("a length that fits")]);
    }

    /// The bytes of a range, unseen by [`RamMemory::watch`].
    ///
    /// # Panics
    /// Where the range isn't guest memory.
    #[must_use]
    pub fn peek(&self, address: u64, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        let (region, offset) = self.find(address, len_bytes as u64).expect("guest memory");
        region.read(offset, &mut bytes);
        bytes
    }

    /// A little-endian dword, unseen by [`RamMemory::watch`].
    ///
    /// # Panics
    /// Where the address isn't guest memory.
    #[must_use]
    pub fn peek_u32(&self, address: u64) -> u32 {
        u32::from_le_bytes(self.peek(address, 4).try_into().expect("four bytes"))
    }

    /// Writes bytes as the guest's processor does, also into regions that the device can only read.
    ///
    /// # Panics
    /// Where the range isn't guest memory.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        let (region, offset) = self.find(address, bytes.len() as u64).expect("guest memory");
        region.write(offset, bytes);
    }

    /// Adds a region of zeroes. `base` and `len_bytes` are multiples of 4.
    ///
    /// # Panics
    /// Where they are not.
    pub fn add_region(&mut self, base: u64, len_bytes: u64, writable: bool) {
        assert!(base.is_multiple_of(4) && len_bytes.is_multiple_of(4), "regions are made of dwords");
        let dwords = (0..len_bytes / 4).map(|_| AtomicU32::new(0)).collect();
        self.regions.push(Region { base, dwords, writable });
    }

    fn find(&self, address: u64, len_bytes: u64) -> Option<(&Region, usize)> {
        self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.base)?;
            let end = offset.checked_add(len_bytes)?;
            (end <= region.len_bytes()).then_some((region, usize::try_from(offset).ok()?))
        })
    }

    /// The region of an access by the device.
    fn access(&self, address: u64, len_bytes: u64, access: Access) -> Result<(&Region, usize), DmaError> {
        let end = address.saturating_add(len_bytes);
        if self.watched.as_ref().is_some_and(|watched| address < watched.end && watched.start < end) {
            self.watched_accesses.fetch_add(1, Ordering::Relaxed);
        }
        let (region, offset) = self.find(address, len_bytes).ok_or(DmaError)?;
        if access == Access::Write && !region.writable { Err(DmaError) } else { Ok((region, offset)) }
    }

    fn dword(&self, address: u64, access: Access) -> Result<&AtomicU32, DmaError> {
        assert!(address.is_multiple_of(4), "dword accesses are aligned");
        let (region, offset) = self.access(address, 4, access)?;
        Ok(&region.dwords[offset / 4])
    }
}

impl DmaMemory for RamMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let (region, offset) = self.access(address, buffer.len() as u64, Access::Read)?;
        region.read(offset, buffer);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let (region, offset) = self.access(address, bytes.len() as u64, Access::Write)?;
        region.write(offset, bytes);
        Ok(())
    }

    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        Ok(self.dword(address, Access::Read)?.load(Ordering::Relaxed))
    }

    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.dword(address, Access::Write)?.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let dword = self.dword(address, Access::Write)?;
        let (Ok(found) | Err(found)) =
            dword.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
        Ok(found)
    }

    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        match self.find(address, len_bytes) {
            Some((region, _)) if access == Access::Read || region.writable => Ok(()),
            _ => Err(DmaError),
        }
    }
}

/// A dword's value is its four bytes as little-endian, whatever the machine.
impl Region {
    fn len_bytes(&self) -> u64 {
        self.dwords.len() as u64 * 4
    }

    fn read(&self, offset: usize, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            let (dword, first) = (&self.dwords[(offset + done) / 4], (offset + done) % 4);
            let now = (4 - first).min(buffer.len() - done);
            let bytes = dword.load(Ordering::Relaxed).to_le_bytes();
            buffer[done..done + now].copy_from_slice(&bytes[first..first + now]);
            done += now;
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (dword, first) = (&self.dwords[(offset + done) / 4], (offset + done) % 4);
            let now = (4 - first).min(bytes.len() - done);
            let piece = &bytes[done..done + now];
            if let Ok(whole) = <[u8; 4]>::try_from(piece) {
                dword.store(u32::from_le_bytes(whole), Ordering::Relaxed);
            } else {
                let mut current = dword.load(Ordering::Relaxed);
                loop {
                    let mut merged = current.to_le_bytes();
                    merged[first..first + now].copy_from_slice(piece);
                    let merged = u32::from_le_bytes(merged);
                    match dword.compare_exchange(current, merged, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => break,
                        Err(found) => current = found,
                    }
                }
            }
            done += now;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_alignment_come_back() {
        let memory = RamMemory::new(0x1000, 0x100).with_region(1 << 45, 0x100);
        for base in [0x1000, 1 << 45] {
            for offset in 0..16 {
                for len in 0..32 {
                    memory.fill(base, 0x100, 0xee);
                    let bytes: Vec<u8> = (1..=len).collect();
                    memory.write(base + offset, &bytes).expect("in the region");
                    assert_eq!(memory.peek(base + offset, bytes.len()), bytes);
                    assert!(memory.peek(base, offset as usize).iter().all(|&byte| byte == 0xee));
                    assert_eq!(memory.peek(base + offset + u64::from(len), 1), [0xee]);
                }
            }
        }
    }

    #[test]
    fn what_is_not_memory_is_refused() {
        let memory = RamMemory::new(0x1000, 0x100).with_read_only_region(0x2000, 0x100);
        let mut byte = [0];
        for address in [0xfff, 0x1100, 0x20ff_ffff, u64::MAX] {
            assert_eq!(memory.read(address, &mut byte), Err(DmaError));
            assert_eq!(memory.write(address, &byte), Err(DmaError));
        }
        assert_eq!(memory.write(0x2000, &byte), Err(DmaError));
        assert_eq!(memory.read(0x2000, &mut byte), Ok(()));
        assert_eq!(memory.check(0x10ff, 2, Access::Read), Err(DmaError));
        assert_eq!(memory.check(u64::MAX, 2, Access::Read), Err(DmaError));
    }

    #[test]
    fn watched_accesses_are_counted() {
        let mut memory = RamMemory::new(0, 0x100);
        memory.watch(0x10..0x20);
        assert_eq!(memory.load_u32(0xc), Ok(0));
        assert_eq!(memory.watched_accesses(), 0);
        assert_eq!(memory.store_u32(0x10, 1), Ok(()));
        assert_eq!(memory.write(0xe, &[0; 4]), Ok(()));
        assert_eq!(memory.watched_accesses(), 2);
    }
}
