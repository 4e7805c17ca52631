//! Queue entries (Base 1.4, 4.2 and 4.6).

use std::fmt;

use super::data::Descriptor;

/// A submission queue entry under construction. The driver fills in the command identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    words: [u32; 16],
}

impl Command {
    /// A command with this opcode and zeroes.
    #[must_use]
    pub const fn new(opcode: u8) -> Self {
        let mut words = [0; 16];
        words[0] = opcode as u32;
        Self { words }
    }

    /// Read of `blocks` logical blocks (1's based).
    #[must_use]
    pub const fn read(nsid: u32, lba: u64, blocks: u32) -> Self {
        Self::new(0x02).nsid(nsid).word(10, lba as u32).word(11, (lba >> 32) as u32).word(12, blocks - 1)
    }

    /// Write of `blocks` logical blocks (1's based).
    #[must_use]
    pub const fn write(nsid: u32, lba: u64, blocks: u32) -> Self {
        Self::new(0x01).nsid(nsid).word(10, lba as u32).word(11, (lba >> 32) as u32).word(12, blocks - 1)
    }

    /// Sets the namespace.
    #[must_use]
    pub const fn nsid(self, nsid: u32) -> Self {
        self.word(1, nsid)
    }

    /// Sets a dword by its number, 0 to 15.
    #[must_use]
    pub const fn word(mut self, number: usize, value: u32) -> Self {
        self.words[number] = value;
        self
    }

    /// Sets PRP entries 1 and 2.
    #[must_use]
    pub const fn prp(self, prp1: u64, prp2: u64) -> Self {
        self.word(6, prp1 as u32)
            .word(7, (prp1 >> 32) as u32)
            .word(8, prp2 as u32)
            .word(9, (prp2 >> 32) as u32)
    }

    /// Sets SGL descriptor 1, and PSDT to 01b.
    #[must_use]
    pub const fn sgl(self, descriptor: Descriptor) -> Self {
        let address = descriptor.address;
        let tail = descriptor.tail();
        self.psdt(0b01)
            .word(6, address as u32)
            .word(7, (address >> 32) as u32)
            .word(8, tail as u32)
            .word(9, (tail >> 32) as u32)
    }

    /// Sets the PRP or SGL for Data Transfer field alone.
    #[must_use]
    pub const fn psdt(self, psdt: u32) -> Self {
        let word = self.words[0] & !(0b11 << 14) | psdt << 14;
        self.word(0, word)
    }

    /// The 64 bytes in the queue.
    #[must_use]
    pub fn bytes(&self, cid: u16) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut words = self.words;
        words[0] = words[0] & 0xffff | u32::from(cid) << 16;
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dword 0, specific to the command.
    pub result: u32,
    /// Dword 1, specific to the command.
    pub result_high: u32,
    /// Submission queue head pointer.
    pub sqhd: u16,
    /// Submission queue identifier.
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// How the command ended.
    pub status: Status,
}

impl Completion {
    /// Parses the 16 bytes of an entry. The phase tag is the caller's to look at.
    #[must_use]
    pub fn parse(bytes: [u8; 16]) -> Self {
        let value = u128::from_le_bytes(bytes);
        Self {
            result: value as u32,
            result_high: (value >> 32) as u32,
            sqhd: (value >> 64) as u16,
            sqid: (value >> 80) as u16,
            cid: (value >> 96) as u16,
            status: Status((value >> 113) as u16),
        }
    }
}

/// The status field, without the phase tag (Base 1.4, 4.6.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Status code type.
    #[must_use]
    pub const fn kind(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Status code type and status code, what tests compare.
    #[must_use]
    pub const fn pair(self) -> (u8, u8) {
        (self.kind(), self.code())
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn ok(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Do not retry.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & 1 << 14 != 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SCT {:x} SC {:02x}", self.kind(), self.code())?;
        if self.dnr() { formatter.write_str(" DNR") } else { Ok(()) }
    }
}
