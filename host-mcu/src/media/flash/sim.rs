//! A flash part that keeps the rules of NOR flash, and whose power can be cut in any operation.

use embedded_storage::nor_flash::{
    ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash, check_erase, check_read, check_write,
};

/// Bytes of a sector.
pub(super) const SECTOR: usize = 4096;

/// The part. Writing what isn't erased, or outside of its units, is a test's failure.
#[derive(Clone, Debug)]
pub(super) struct SimFlash {
    bytes: Vec<u8>,
    /// By unit of 4 bytes, whether it was written since it was erased.
    written: Vec<bool>,
    /// Writes and erases until the power is cut, in the middle of one.
    left: Option<u32>,
    random: u64,
    /// Writes and erases so far.
    pub(super) operations: u32,
    pub(super) erases: Vec<u32>,
}

impl SimFlash {
    /// A part that has never been erased: its contents are anything.
    pub(super) fn new(sectors: usize, seed: u64) -> Self {
        let mut flash = Self {
            bytes: vec![0; sectors * SECTOR],
            written: vec![true; sectors * SECTOR / Self::WRITE_SIZE],
            left: None,
            random: seed | 1,
            operations: 0,
            erases: vec![0; sectors],
        };
        for index in 0..flash.bytes.len() {
            flash.bytes[index] = flash.random() as u8;
        }
        flash
    }

    /// Cuts the power in the operation after the next `operations`.
    pub(super) fn cut_after(&mut self, operations: u32) {
        self.left = Some(operations);
    }

    /// Power is back.
    pub(super) fn power_on(&mut self) {
        self.left = None;
    }

    pub(super) fn is_off(&self) -> bool {
        self.left == Some(u32::MAX)
    }

    /// Flips a bit.
    pub(super) fn flip(&mut self, byte: usize, bit: u8) {
        self.bytes[byte] ^= 1 << bit;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn random(&mut self) -> u64 {
        // xorshift64 (Marsaglia).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Counts an operation; whether the power is cut in it, or was before.
    fn spend(&mut self) -> Result<bool, NorFlashErrorKind> {
        self.operations += 1;
        match self.left {
            None => Ok(false),
            Some(u32::MAX) => Err(NorFlashErrorKind::Other),
            Some(0) => {
                self.left = Some(u32::MAX);
                Ok(true)
            }
            Some(left) => {
                self.left = Some(left - 1);
                Ok(false)
            }
        }
    }
}

impl ErrorType for SimFlash {
    type Error = NorFlashErrorKind;
}

impl ReadNorFlash for SimFlash {
    const READ_SIZE: usize = 4;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
        check_read(self, offset, bytes.len())?;
        if self.is_off() {
            return Err(NorFlashErrorKind::Other);
        }
        let start = offset as usize;
        bytes.copy_from_slice(&self.bytes[start..start + bytes.len()]);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

impl NorFlash for SimFlash {
    const WRITE_SIZE: usize = 4;
    const ERASE_SIZE: usize = SECTOR;

    /// A cut leaves every bit of the sector as it was or erased, in any mixture.
    fn erase(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        check_erase(self, from, to)?;
        let cut = self.spend()?;
        // Some cuts come early, some late, some in between.
        let share = self.random() % 3;
        for index in from as usize..to as usize {
            let erased = match (cut, share) {
                (false, _) => 0xff,
                (true, 0) => (self.random() & self.random() & self.random()) as u8,
                (true, 1) => self.random() as u8,
                (true, _) => (self.random() | self.random() | self.random()) as u8,
            };
            self.bytes[index] |= erased;
        }
        // Whatever a cut left, it must not be written to.
        self.written[from as usize / Self::WRITE_SIZE..to as usize / Self::WRITE_SIZE].fill(cut);
        self.erases[from as usize / SECTOR] += 1;
        if cut { Err(NorFlashErrorKind::Other) } else { Ok(()) }
    }

    /// A cut writes the units up to some point, a few bits of the next, and nothing after it; or any of the
    /// bits.
    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        check_write(self, offset, bytes.len())?;
        let cut = self.spend()?;
        let whole = if cut { self.random() as usize % (bytes.len() + 1) } else { bytes.len() };
        let scattered = cut && self.random().is_multiple_of(2);
        for (index, byte) in bytes.iter().enumerate() {
            let place = offset as usize + index;
            if index.is_multiple_of(Self::WRITE_SIZE) {
                let unit = place / Self::WRITE_SIZE;
                assert!(!self.written[unit], "unit {unit} is written twice without an erase");
                self.written[unit] = true;
            }
            let kept = match (index < whole, scattered) {
                (true, false) => 0,
                (_, true) => self.random() as u8,
                (false, false) => 0xff,
            };
            self.bytes[place] &= byte | if cut { kept } else { 0 };
        }
        if cut { Err(NorFlashErrorKind::Other) } else { Ok(()) }
    }
}
