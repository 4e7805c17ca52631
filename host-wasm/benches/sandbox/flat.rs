//! Guest memory as fast as a host's own: one region from 0, in qwords.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_core::memory::{Access, DmaError, DmaMemory};

#[derive(Debug)]
pub(crate) struct Flat(Vec<AtomicU64>);

impl Flat {
    pub(crate) fn new(len_bytes: usize) -> Self {
        Self((0..len_bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn qwords(&self, address: u64, len_bytes: usize) -> Result<&[AtomicU64], DmaError> {
        let start = usize::try_from(address / 8).map_err(|_| DmaError)?;
        self.0.get(start..).and_then(|rest| rest.get(..len_bytes.div_ceil(8))).ok_or(DmaError)
    }

    /// Aligned to 4; the low dword of a qword first.
    fn update(&self, address: u64, change: impl Fn(u32) -> u32) -> Result<u32, DmaError> {
        let [qword] = self.qwords(address, 4)? else { return Err(DmaError) };
        let shift = (address & 4) * 8;
        let old = qword.load(Ordering::Relaxed);
        let value = u64::from(change((old >> shift) as u32));
        // One thread.
        qword.store(old & !(0xffff_ffff << shift) | value << shift, Ordering::Relaxed);
        Ok((old >> shift) as u32)
    }
}

impl DmaMemory for Flat {
    /// Aligned to 8, as everything is that the benchmark reads.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let qwords = self.qwords(address, buffer.len())?;
        for (place, qword) in buffer.chunks_mut(8).zip(qwords) {
            place.copy_from_slice(&qword.load(Ordering::Relaxed).to_le_bytes()[..place.len()]);
        }
        Ok(())
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let qwords = self.qwords(address, bytes.len())?;
        for (bytes, qword) in bytes.chunks_exact(8).zip(qwords) {
            qword.store(u64::from_le_bytes(bytes.try_into().map_err(|_| DmaError)?), Ordering::Relaxed);
        }
        Ok(())
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        let [qword] = self.qwords(address, 4)? else { return Err(DmaError) };
        Ok((qword.load(Ordering::Relaxed) >> ((address & 4) * 8)) as u32)
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.update(address, |_| value).map(|_| ())
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        self.update(address, |found| if found == current { new } else { found })
    }
    fn check(&self, address: u64, len_bytes: u64, _: Access) -> Result<(), DmaError> {
        self.qwords(address, usize::try_from(len_bytes).map_err(|_| DmaError)?).map(|_| ())
    }
}

/// Doorbell registers.
pub(crate) fn registers() -> Vec<AtomicU32> {
    (0..130).map(|_| AtomicU32::new(0)).collect()
}
