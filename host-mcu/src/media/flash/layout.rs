//! What lies in flash, byte by byte. Everything is little-endian and carries a checksum.

use crc::{CRC_32_ISCSI, Crc};

/// Bytes of a block.
pub(super) const BLOCK: usize = 512;
/// Bytes of a header, a seal or a record: a whole number of the driver's units.
pub(super) const RECORD: usize = 32;
/// Bytes of a record and its block.
pub(super) const SLOT: usize = RECORD + BLOCK;
/// Where a sector's slots begin.
pub(super) const SLOTS_AT: usize = 2 * RECORD;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"DBH1");
const SEAL_MAGIC: u32 = u32::from_le_bytes(*b"DBS1");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"DBR1");

const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The checksum of a block.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    CRC.checksum(bytes)
}

/// Slots of a sector of `erase_bytes` bytes.
pub(super) const fn slots_per_sector(erase_bytes: usize) -> usize {
    erase_bytes.saturating_sub(SLOTS_AT) / SLOT
}

/// The most blocks of 512 bytes that a namespace in `sectors` sectors of `erase_bytes` bytes can have: all
/// slots but those of two sectors. With fewer, copying is rarer.
#[must_use]
pub const fn capacity_blocks(sectors: usize, erase_bytes: usize) -> usize {
    sectors.saturating_sub(2) * slots_per_sector(erase_bytes)
}

/// What a sector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Blocks of the namespace.
    pub(super) blocks: u32,
    /// Erases of this sector.
    pub(super) wear: u32,
    /// When it was put to use, on the same count as writes.
    pub(super) number: u64,
}

/// The slots of the sector count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    /// The header's.
    pub(super) number: u64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) block: u32,
    /// Which write it was; later ones have larger numbers.
    pub(super) number: u64,
    /// The block's checksum.
    pub(super) data: u32,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; RECORD] {
        unit(HEADER_MAGIC, self.blocks, self.wear, self.number)
    }

    pub(super) fn parse(bytes: &[u8; RECORD]) -> Option<Self> {
        let (blocks, wear, number) = fields(HEADER_MAGIC, bytes)?;
        Some(Self { blocks, wear, number })
    }
}

impl Seal {
    pub(super) fn to_bytes(self) -> [u8; RECORD] {
        unit(SEAL_MAGIC, 0, 0, self.number)
    }

    pub(super) fn parse(bytes: &[u8; RECORD]) -> Option<Self> {
        let (_, _, number) = fields(SEAL_MAGIC, bytes)?;
        Some(Self { number })
    }
}

impl Record {
    pub(super) fn to_bytes(self) -> [u8; RECORD] {
        unit(RECORD_MAGIC, self.block, self.data, self.number)
    }

    pub(super) fn parse(bytes: &[u8; RECORD]) -> Option<Self> {
        let (block, data, number) = fields(RECORD_MAGIC, bytes)?;
        Some(Self { block, number, data })
    }
}

/// Bytes 0: magic, 4 and 8: two dwords, 12: a qword, 20: the checksum of what comes before; the rest as erased.
fn unit(magic: u32, first: u32, second: u32, number: u64) -> [u8; RECORD] {
    let mut bytes = [0xff; RECORD];
    let mut content = [0; CONTENT];
    let dwords = [magic.to_le_bytes(), first.to_le_bytes(), second.to_le_bytes()];
    for (place, byte) in content.iter_mut().zip(dwords.iter().flatten().chain(&number.to_le_bytes())) {
        *place = *byte;
    }
    let sum = CRC.checksum(&content).to_le_bytes();
    for (place, byte) in bytes.iter_mut().zip(content.iter().chain(&sum)) {
        *place = *byte;
    }
    bytes
}

fn fields(magic: u32, bytes: &[u8; RECORD]) -> Option<(u32, u32, u64)> {
    let (content, rest) = bytes.split_first_chunk::<CONTENT>()?;
    let dword = |at: usize| content.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    let sum = u32::from_le_bytes(*rest.first_chunk()?);
    if dword(0)? != magic || sum != CRC.checksum(content) {
        return None;
    }
    let number = u64::from_le_bytes(*content.last_chunk()?);
    Some((dword(4)?, dword(8)?, number))
}

/// Bytes that the checksum covers.
const CONTENT: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_back_and_any_changed_bit_is_found() {
        let record = Record { block: 7, number: 0x1234_5678_9abc, data: 0xdead_beef };
        let bytes = record.to_bytes();
        assert_eq!(Record::parse(&bytes), Some(record));
        assert_eq!(Header::parse(&bytes), None);
        for bit in 0..24 * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::parse(&changed), None, "bit {bit}");
        }
        assert_eq!(Record::parse(&[0xff; RECORD]), None);
        assert_eq!(Record::parse(&[0; RECORD]), None);
    }

    #[test]
    fn two_sectors_are_kept_free() {
        assert_eq!(slots_per_sector(4096), 7);
        assert_eq!(capacity_blocks(16, 4096), 98);
        assert_eq!(capacity_blocks(1, 4096), 0);
    }
}
