//! Memory that a queue group sees as its guest's, and that only this process has.

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_core::memory::{Access, DmaError, DmaMemory};

/// Some memory at a base address, and above `data` addresses that stand for memory which others move.
#[derive(Debug)]
pub(super) struct Lent {
    base: u64,
    dwords: Box<[AtomicU32]>,
    data: u64,
}

impl Lent {
    /// `len_bytes` of zeroes at `base`, both multiples of 4; `data` is beyond them.
    pub(super) fn new(base: u64, len_bytes: usize, data: u64) -> Self {
        Self { base, dwords: (0..len_bytes / 4).map(|_| AtomicU32::new(0)).collect(), data }
    }

    /// Zeroes everything.
    pub(super) fn clear(&self) {
        self.dwords.iter().for_each(|dword| dword.store(0, Ordering::Relaxed));
    }

    /// Stores dwords; what is outside is dropped.
    pub(super) fn store(&self, address: u64, dwords: &[u32]) {
        for (address, dword) in (address..).step_by(4).zip(dwords) {
            let _ = self.store_u32(address, *dword);
        }
    }

    /// Loads dwords; what is outside reads 0.
    pub(super) fn load<const N: usize>(&self, address: u64) -> [u32; N] {
        std::array::from_fn(|index| self.load_u32(address + index as u64 * 4).unwrap_or(0))
    }

    fn dword(&self, address: u64) -> Result<&AtomicU32, DmaError> {
        let offset = address.checked_sub(self.base).ok_or(DmaError)?;
        usize::try_from(offset / 4).ok().and_then(|index| self.dwords.get(index)).ok_or(DmaError)
    }
}

impl DmaMemory for Lent {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.check(address, buffer.len() as u64, Access::Read)?;
        let mut at = address;
        let mut rest = buffer;
        while !rest.is_empty() {
            let lane = (at % 4) as usize;
            let count = (4 - lane).min(rest.len());
            let dword = self.dword(at)?.load(Ordering::Relaxed).to_le_bytes();
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&dword[lane..lane + count]);
            rest = later;
            at += count as u64;
        }
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.check(address, bytes.len() as u64, Access::Write)?;
        // A group only ever writes whole dwords here: completion queue entries.
        let (dwords, rest) = bytes.as_chunks();
        if !address.is_multiple_of(4) || !rest.is_empty() {
            return Err(DmaError);
        }
        for (address, dword) in (address..).step_by(4).zip(dwords) {
            self.store_u32(address, u32::from_le_bytes(*dword))?;
        }
        Ok(())
    }

    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        Ok(self.dword(address)?.load(Ordering::Relaxed))
    }

    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.dword(address)?.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let exchanged =
            self.dword(address)?.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
        Ok(exchanged.unwrap_or_else(|other| other))
    }

    fn check(&self, address: u64, len_bytes: u64, _access: Access) -> Result<(), DmaError> {
        let end = address.checked_add(len_bytes).ok_or(DmaError)?;
        let ours = address >= self.base && end <= self.base + self.dwords.len() as u64 * 4;
        if ours || address >= self.data { Ok(()) } else { Err(DmaError) }
    }
}
