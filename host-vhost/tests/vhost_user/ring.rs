//! A virtqueue as a driver sees it.

use std::time::{Duration, Instant};

use super::memory::{GUEST, Memory};

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

const PATIENCE: Duration = Duration::from_secs(30);

/// Offsets in the memory, and the driver's own indices.
#[derive(Clone, Debug)]
pub struct Ring {
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub next_available: u16,
    pub next_used: u16,
}

impl Ring {
    /// A ring that takes 64 KiB from `offset` on.
    pub fn new(offset: u64, size: u16) -> Self {
        Self {
            size,
            descriptors: offset,
            available: offset + 0x8000,
            used: offset + 0xC000,
            next_available: 0,
            next_used: 0,
        }
    }

    /// Writes a descriptor; `offset` is in the memory.
    pub fn describe(&self, memory: &Memory, index: u16, offset: u64, len: u32, flags: u16, next: u16) {
        self.describe_at(memory, index, GUEST.wrapping_add(offset), len, flags, next);
    }

    /// The same with a guest address.
    pub fn describe_at(&self, memory: &Memory, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        memory.write(self.descriptors + 16 * u64::from(index), &descriptor(address, len, flags, next));
    }

    /// Puts a head into the available ring.
    pub fn offer(&mut self, memory: &Memory, head: u16) {
        let slot = u64::from(self.next_available % self.size);
        memory.set_u16(self.available + 4 + 2 * slot, head);
        self.next_available = self.next_available.wrapping_add(1);
        memory.set_u16(self.available + 2, self.next_available);
    }

    pub fn used_index(&self, memory: &Memory) -> u16 {
        memory.u16(self.used + 2)
    }

    /// The next used entry, head and length, if there is one.
    pub fn try_used(&mut self, memory: &Memory) -> Option<(u32, u32)> {
        if self.used_index(memory) == self.next_used {
            return None;
        }
        let entry = self.used + 4 + 8 * u64::from(self.next_used % self.size);
        self.next_used = self.next_used.wrapping_add(1);
        Some((memory.u32(entry), memory.u32(entry + 4)))
    }

    /// The next used entry, waited for.
    pub fn used(&mut self, memory: &Memory) -> (u32, u32) {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.try_used(memory) {
                return entry;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

pub fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(next.to_le_bytes());
    bytes
}
