//! A namespace in NOR flash, over any driver of `embedded-storage`.
//!
//! Blocks of 512 bytes are appended to a log and found by a table in RAM, because flash is written once between
//! erases and an erase takes whole sectors. Everything that a completed write changed is in flash, so there is
//! no write cache and Flush has nothing to do.
//!
//! A sector (the driver's `ERASE_SIZE`) holds a header, a seal and *slots*, a record and a block each:
//!
//! ```text
//! | header 32 | seal 32 | record 32, block 512 | record, block | ...
//! ```
//!
//! * The block is written first and its record (which block, which write, checksums) last: a record that is
//!   valid says that its block was written whole. A newer write of a block wins by its number.
//! * A sector is erased only when no block lives in it any more, right before it is used; so nothing relies on
//!   an erase that power may have cut short.
//! * When the last sector without live blocks is put to use, the live blocks of the emptiest other one are
//!   copied into it, and then it is *sealed*. Slots of a sector without seal don't count. So a cut before the
//!   seal leaves the old sector as it was, and a cut after it the new one; either way a sector without live
//!   blocks remains.
//! * A write so costs at most two erases and two sectors of copies, on average far less; the average is the
//!   better the fewer of the slots are used by blocks.
//! * The least worn of the sectors without live blocks is taken next. Where it is [`WEAR_SPREAD`] erases ahead
//!   of the least worn of all, that one's blocks move, so that a sector of blocks that never change takes its
//!   share.
//!
//! What can't be: a block that is neither the old nor the new one after a cut, or a completed write that is
//! lost. A bit that flips in a block is found by its checksum and is a read error. One that flips in a record is a
//! read error until the next start, which doesn't know of the write any more.

mod layout;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use core::task::Poll;

use embedded_storage::nor_flash::NorFlash;

use super::{Media, MediaError};
pub use layout::capacity_blocks;
use layout::{BLOCK, Header, RECORD, Record, SLOT, SLOTS_AT, Seal, checksum, slots_per_sector};

/// Erases by which sectors may differ before blocks are moved on account of that.
pub const WEAR_SPREAD: u32 = 64;

/// Sectors that one write may put to use: one for it, one more where the first was filled by moving a worn
/// sector's blocks.
const SECTORS_PER_WRITE: u8 = 2;

/// Why a flash part can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FlashError {
    /// The part has fewer sectors than `SECTORS`, or they are too small for a slot, or `BLOCKS` is more than
    /// [`capacity_blocks`].
    TooSmall,
    /// The part holds a namespace of another number of blocks.
    OtherSize {
        /// That number.
        blocks: u32,
    },
    /// The driver can't read it.
    Driver,
}

/// `BLOCKS` blocks of 512 bytes in `SECTORS` sectors of a flash part.
#[derive(Debug)]
pub struct FlashMedia<F, const BLOCKS: usize, const SECTORS: usize> {
    flash: F,
    /// By block, the slot that holds it, plus 1; 0 where it was never written and reads as zeroes.
    slots: [u16; BLOCKS],
    /// By sector, the slots that hold a block.
    live: [u8; SECTORS],
    /// By sector, its erases.
    wear: [u32; SECTORS],
    /// The number of the next write or sector.
    next_number: u64,
    /// The sector in use.
    sector: u16,
    /// Its next slot; past the last one where no sector is in use.
    next_slot: u16,
    block: [u8; BLOCK],
}

impl<F: NorFlash, const BLOCKS: usize, const SECTORS: usize> FlashMedia<F, BLOCKS, SECTORS> {
    const SLOTS: usize = slots_per_sector(F::ERASE_SIZE);

    const FITS: () = {
        assert!(
            RECORD.is_multiple_of(F::WRITE_SIZE) && RECORD.is_multiple_of(F::READ_SIZE),
            "units of 1 to 32"
        );
        assert!(SECTORS * Self::SLOTS < u16::MAX as usize, "at most 65,534 slots");
        assert!(Self::SLOTS <= u8::MAX as usize, "at most 255 slots a sector");
    };

    /// Finds the namespace in a part; one that holds none is an empty namespace. Reads every record once.
    ///
    /// # Errors
    /// Where the part is too small, holds another namespace or can't be read.
    pub fn mount(flash: F) -> Result<Self, FlashError> {
        let () = Self::FITS;
        let sectors = flash.capacity() / F::ERASE_SIZE;
        if BLOCKS == 0 || sectors < SECTORS || BLOCKS > capacity_blocks(SECTORS, F::ERASE_SIZE) {
            return Err(FlashError::TooSmall);
        }
        let mut media = Self {
            flash,
            slots: [0; BLOCKS],
            live: [0; SECTORS],
            wear: [0; SECTORS],
            next_number: 1,
            sector: 0,
            next_slot: Self::SLOTS as u16,
            block: [0; BLOCK],
        };
        let mut most_worn = 0;
        for sector in 0..SECTORS {
            match media.header(sector)? {
                Some(header) if header.blocks as usize != BLOCKS => {
                    return Err(FlashError::OtherSize { blocks: header.blocks });
                }
                Some(header) => {
                    media.note_wear(sector, header.wear);
                    most_worn = most_worn.max(header.wear);
                    media.see(header.number);
                    if media.is_sealed(sector, header.number)? {
                        media.find_blocks(sector, header.number)?;
                    }
                }
                None => media.note_wear(sector, u32::MAX),
            }
        }
        // A sector whose header didn't survive is taken for as worn as the worst.
        media.wear.iter_mut().filter(|wear| **wear == u32::MAX).for_each(|wear| *wear = most_worn);
        Ok(media)
    }

    /// The driver back.
    pub fn unmount(self) -> F {
        self.flash
    }

    /// The least and the most erases of a sector.
    #[must_use]
    pub fn wear(&self) -> (u32, u32) {
        let least = self.wear.iter().copied().min().unwrap_or(0);
        (least, self.wear.iter().copied().max().unwrap_or(0))
    }

    fn note_wear(&mut self, sector: usize, wear: u32) {
        if let Some(place) = self.wear.get_mut(sector) {
            *place = wear;
        }
    }

    fn see(&mut self, number: u64) {
        self.next_number = self.next_number.max(number.saturating_add(1));
    }

    const fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number = self.next_number.saturating_add(1);
        number
    }

    /// Every block that this sector holds the newest write of.
    fn find_blocks(&mut self, sector: usize, age: u64) -> Result<(), FlashError> {
        for slot in 0..Self::SLOTS {
            let at = Self::slot_at(sector, slot);
            let Some(record) = self.record(at)? else { continue };
            self.see(record.number);
            let index = record.block as usize;
            let Some(&known) = self.slots.get(index) else { continue };
            if known != 0 {
                let (other_sector, other_slot) = Self::place(known);
                let other = self.record(Self::slot_at(other_sector, other_slot))?;
                let other_number = other.map_or(0, |other| other.number);
                // The same write twice: a copy, and the newer sector has the one that counts.
                let older = other_number > record.number
                    || other_number == record.number
                        && self.header(other_sector)?.is_some_and(|other| other.number > age);
                if older {
                    continue;
                }
            }
            self.settle(index, sector, slot);
        }
        Ok(())
    }

    /// The block lives in this slot now.
    fn settle(&mut self, block: usize, sector: usize, slot: usize) {
        let Some(place) = self.slots.get_mut(block) else { return };
        let before = core::mem::replace(place, (sector * Self::SLOTS + slot + 1) as u16);
        if before != 0
            && let Some(live) = self.live.get_mut(Self::place(before).0)
        {
            *live = live.saturating_sub(1);
        }
        if let Some(live) = self.live.get_mut(sector) {
            *live = live.saturating_add(1);
        }
    }

    /// Sector and slot of an entry of the table that isn't 0.
    const fn place(entry: u16) -> (usize, usize) {
        let slot = (entry as usize).saturating_sub(1);
        (slot / Self::SLOTS, slot % Self::SLOTS)
    }

    const fn slot_at(sector: usize, slot: usize) -> u32 {
        (sector * F::ERASE_SIZE + SLOTS_AT + slot * SLOT) as u32
    }

    const fn sector_at(sector: usize) -> u32 {
        (sector * F::ERASE_SIZE) as u32
    }

    fn read_unit(&mut self, at: u32) -> Result<[u8; RECORD], FlashError> {
        let mut bytes = [0; RECORD];
        self.flash.read(at, &mut bytes).map_err(|_| FlashError::Driver)?;
        Ok(bytes)
    }

    fn header(&mut self, sector: usize) -> Result<Option<Header>, FlashError> {
        Ok(Header::parse(&self.read_unit(Self::sector_at(sector))?))
    }

    fn is_sealed(&mut self, sector: usize, number: u64) -> Result<bool, FlashError> {
        let bytes = self.read_unit(Self::sector_at(sector) + RECORD as u32)?;
        Ok(Seal::parse(&bytes).is_some_and(|seal| seal.number == number))
    }

    fn record(&mut self, at: u32) -> Result<Option<Record>, FlashError> {
        Ok(Record::parse(&self.read_unit(at)?))
    }

    fn program(&mut self, at: u32, bytes: &[u8]) -> Result<(), MediaError> {
        self.flash.write(at, bytes).map_err(|_| MediaError::Write)
    }

    /// Appends the block in the buffer.
    fn append(&mut self, block: u32) -> Result<(), MediaError> {
        for _ in 0..SECTORS_PER_WRITE {
            if usize::from(self.next_slot) >= Self::SLOTS {
                self.next_sector()?;
            }
        }
        let (sector, slot) = (usize::from(self.sector), usize::from(self.next_slot));
        if slot >= Self::SLOTS {
            return Err(MediaError::Write);
        }
        // Whatever happens, this slot isn't written again.
        self.next_slot += 1;
        let at = Self::slot_at(sector, slot);
        let record = Record { block, number: self.number(), data: checksum(&self.block) };
        self.flash.write(at + RECORD as u32, &self.block).map_err(|_| MediaError::Write)?;
        self.program(at, &record.to_bytes())?;
        self.settle(block as usize, sector, slot);
        Ok(())
    }

    /// Puts a sector without live blocks to use, and sees to it that another one remains.
    fn next_sector(&mut self) -> Result<(), MediaError> {
        let fresh = self.least_worn(|_, live| live == 0).ok_or(MediaError::Write)?;
        let wear = self.wear.get(fresh).copied().unwrap_or(0).saturating_add(1);
        // Counted also where the erase fails, so that a sector which can't be erased isn't tried for ever.
        self.note_wear(fresh, wear);
        let from = Self::sector_at(fresh);
        self.flash.erase(from, from + F::ERASE_SIZE as u32).map_err(|_| MediaError::Write)?;
        let number = self.number();
        self.program(from, &Header { blocks: BLOCKS as u32, wear, number }.to_bytes())?;
        let victim = self.victim(fresh, wear);
        let filled = match victim {
            Some(victim) => self.copy_live(victim, fresh)?,
            None => 0,
        };
        self.program(from + RECORD as u32, &Seal { number }.to_bytes())?;
        if let Some(victim) = victim {
            self.settle_copies(victim, fresh);
        }
        self.sector = fresh as u16;
        self.next_slot = filled;
        Ok(())
    }

    /// The sector whose live blocks are to move, if any.
    fn victim(&self, fresh: usize, wear: u32) -> Option<usize> {
        let coldest = self.least_worn(|sector, live| sector != fresh && live != 0)?;
        let spread = self.wear.get(coldest).map_or(0, |cold| wear.saturating_sub(*cold));
        if spread > WEAR_SPREAD {
            return Some(coldest);
        }
        let others = || (0..).zip(&self.live).filter(move |(sector, _)| *sector != fresh);
        if others().any(|(_, live)| *live == 0) {
            return None;
        }
        others().min_by_key(|(_, live)| **live).map(|(sector, _)| sector)
    }

    fn least_worn(&self, which: impl Fn(usize, u8) -> bool) -> Option<usize> {
        let sectors = (0..).zip(self.live.iter().zip(&self.wear));
        sectors
            .filter(|(sector, (live, _))| which(*sector, **live))
            .min_by_key(|(_, (_, wear))| **wear)
            .map(|(sector, _)| sector)
    }

    /// Copies the live blocks of `from`, as they are, into the first slots of `to`; how many.
    fn copy_live(&mut self, from: usize, to: usize) -> Result<u16, MediaError> {
        let mut filled = 0;
        for block in 0..BLOCKS {
            let Some(&entry) = self.slots.get(block) else { break };
            if entry == 0 || Self::place(entry).0 != from {
                continue;
            }
            let source = Self::slot_at(from, Self::place(entry).1);
            let target = Self::slot_at(to, usize::from(filled));
            // The record last, as when it was written first.
            for piece in (1..SLOT / RECORD).chain([0]) {
                let offset = (piece * RECORD) as u32;
                let bytes = self.read_unit(source + offset).map_err(|_| MediaError::Write)?;
                self.program(target + offset, &bytes)?;
            }
            filled += 1;
        }
        Ok(filled)
    }

    /// The copies of [`FlashMedia::copy_live`] are what counts from now on.
    fn settle_copies(&mut self, from: usize, to: usize) {
        let mut filled = 0;
        for block in 0..BLOCKS {
            let Some(&entry) = self.slots.get(block) else { break };
            if entry != 0 && Self::place(entry).0 == from {
                self.settle(block, to, filled);
                filled += 1;
            }
        }
    }

    /// Brings a block into the buffer.
    fn fetch(&mut self, block: usize) -> Result<(), MediaError> {
        let entry = self.slots.get(block).copied().ok_or(MediaError::Read)?;
        if entry == 0 {
            self.block.fill(0);
            return Ok(());
        }
        let (sector, slot) = Self::place(entry);
        let at = Self::slot_at(sector, slot);
        let record = self.record(at).map_err(|_| MediaError::Read)?.ok_or(MediaError::Read)?;
        self.flash.read(at + RECORD as u32, &mut self.block).map_err(|_| MediaError::Read)?;
        if record.block as usize != block || record.data != checksum(&self.block) {
            return Err(MediaError::Read);
        }
        Ok(())
    }
}

impl<F: NorFlash, const BLOCKS: usize, const SECTORS: usize> Media for FlashMedia<F, BLOCKS, SECTORS> {
    fn block_bytes(&self) -> u32 {
        BLOCK as u32
    }

    fn size_blocks(&self) -> u64 {
        BLOCKS as u64
    }

    fn has_write_cache(&self) -> bool {
        false
    }

    fn read(&mut self, offset_bytes: u64, _: u32) -> Poll<Result<&[u8], MediaError>> {
        let fetched = self.fetch((offset_bytes / BLOCK as u64) as usize);
        Poll::Ready(fetched.map(|()| self.block.as_slice()))
    }

    fn lend(&mut self, _: u64, _: u32) -> &mut [u8] {
        &mut self.block
    }

    fn write(&mut self, offset_bytes: u64, _: u32, _: bool) -> Poll<Result<(), MediaError>> {
        Poll::Ready(self.append((offset_bytes / BLOCK as u64) as u32))
    }

    fn zero(&mut self, offset_bytes: u64, _: u64, _: bool) -> Poll<Result<u64, MediaError>> {
        let block = offset_bytes / BLOCK as u64;
        let is_zero = self.slots.get(block as usize) == Some(&0);
        let zeroed = if is_zero {
            Ok(())
        } else {
            self.block.fill(0);
            self.append(block as u32)
        };
        Poll::Ready(zeroed.map(|()| BLOCK as u64))
    }

    fn flush(&mut self) -> Poll<Result<(), MediaError>> {
        Poll::Ready(Ok(()))
    }
}
