//! The model host's memory.

use core::cell::Cell;

use doorbell_core::memory::{Access, DmaError, DmaMemory};

/// Where guest memory begins: above 4 GiB, so that an address which loses its upper half is found.
pub const BASE: u64 = 0x1_2340_0000;

/// Bytes of a memory page (CC.MPS 0).
pub const PAGE: u64 = 4096;

/// Guest memory: little-endian dwords from [`BASE`] on.
#[derive(Clone, Copy, Debug)]
pub struct GuestRam<'a> {
    words: &'a [Cell<u32>],
}

impl<'a> GuestRam<'a> {
    /// Guest memory in `words`.
    pub fn new(words: &'a mut [u32]) -> Self {
        Self { words: Cell::from_mut(words).as_slice_of_cells() }
    }

    /// The offset of a range that lies inside.
    fn offset(&self, address: u64, len_bytes: u64) -> Result<usize, DmaError> {
        let offset = address.checked_sub(BASE).ok_or(DmaError)?;
        let end = offset.checked_add(len_bytes).ok_or(DmaError)?;
        if end > self.words.len() as u64 * 4 {
            return Err(DmaError);
        }
        usize::try_from(offset).map_err(|_| DmaError)
    }

    fn word(&self, address: u64) -> Result<&Cell<u32>, DmaError> {
        let offset = self.offset(address, 4)?;
        if !offset.is_multiple_of(4) {
            return Err(DmaError);
        }
        self.words.get(offset / 4).ok_or(DmaError)
    }

    fn byte(&self, offset: usize) -> u8 {
        let word = self.words.get(offset / 4).map_or(0, Cell::get);
        (word >> (offset % 4 * 8)) as u8
    }

    fn set_byte(&self, offset: usize, byte: u8) {
        if let Some(word) = self.words.get(offset / 4) {
            let shift = offset % 4 * 8;
            word.set(word.get() & !(0xff << shift) | u32::from(byte) << shift);
        }
    }
}

impl DmaMemory for GuestRam<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let offset = self.offset(address, buffer.len() as u64)?;
        let aligned = if offset.is_multiple_of(4) { buffer.len() & !3 } else { 0 };
        let (quick, slow) = buffer.split_at_mut_checked(aligned).ok_or(DmaError)?;
        let words = self.words.get(offset / 4..).unwrap_or_default();
        for (place, word) in quick.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.get().to_le_bytes();
        }
        for (position, place) in slow.iter_mut().enumerate() {
            *place = self.byte(offset + aligned + position);
        }
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let offset = self.offset(address, bytes.len() as u64)?;
        let aligned = if offset.is_multiple_of(4) { bytes.len() & !3 } else { 0 };
        let (quick, slow) = bytes.split_at_checked(aligned).ok_or(DmaError)?;
        let words = self.words.get(offset / 4..).unwrap_or_default();
        for (source, word) in quick.as_chunks::<4>().0.iter().zip(words) {
            word.set(u32::from_le_bytes(*source));
        }
        for (position, byte) in slow.iter().enumerate() {
            self.set_byte(offset + aligned + position, *byte);
        }
        Ok(())
    }

    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        Ok(self.word(address)?.get())
    }

    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.word(address)?.set(value);
        Ok(())
    }

    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let word = self.word(address)?;
        let found = word.get();
        if found == current {
            word.set(new);
        }
        Ok(found)
    }

    fn check(&self, address: u64, len_bytes: u64, _: Access) -> Result<(), DmaError> {
        self.offset(address, len_bytes).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_alignment_come_back_and_nothing_else_changes() {
        let mut words = [0xeeee_eeee_u32; 8];
        let ram = GuestRam::new(&mut words);
        for start in 0..8 {
            for len in 0..16 {
                let bytes: Vec<u8> = (0..len).map(|value| value as u8 + start as u8).collect();
                ram.write(BASE, &[0xee; 32]).unwrap();
                ram.write(BASE + start, &bytes).unwrap();
                let mut all = [0; 32];
                ram.read(BASE, &mut all).unwrap();
                let mut wanted = [0xee; 32];
                wanted[start as usize..][..len].copy_from_slice(&bytes);
                assert_eq!(all, wanted, "{start} {len}");
                let mut back = vec![0; len];
                ram.read(BASE + start, &mut back).unwrap();
                assert_eq!(back, bytes);
            }
        }
    }

    #[test]
    fn nothing_outside_can_be_reached() {
        let mut words = [0_u32; 8];
        let ram = GuestRam::new(&mut words);
        assert_eq!(ram.load_u32(BASE + 32), Err(DmaError));
        assert_eq!(ram.load_u32(BASE + 2), Err(DmaError));
        assert_eq!(ram.write(BASE + 31, &[1, 2]), Err(DmaError));
        assert_eq!(ram.read(BASE - 1, &mut [0]), Err(DmaError));
        assert_eq!(ram.check(u64::MAX, 2, Access::Read), Err(DmaError));
    }
}
