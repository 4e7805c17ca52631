//! The guest's memory: a memfd, read and written through the file, so that nothing here is unsafe. The kernel's
//! copies of 2 and 4 bytes are single accesses, and a system call is barrier enough.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Guest physical address of the first byte.
pub const GUEST: u64 = 0x1_0000_0000;
/// Address of the first byte in a frontend's process, as the backend is told.
pub const USER: u64 = 0x7F00_0000_0000;
/// Bytes.
pub const SIZE: u64 = 16 << 20;

#[derive(Debug)]
pub struct Memory {
    pub file: File,
}

impl Memory {
    pub fn new() -> Self {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("guest", flags).unwrap());
        file.set_len(SIZE).unwrap();
        Self { file }
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    /// The pages that differ from `before`, a copy of all.
    pub fn changed(&self, before: &[u8]) -> Vec<u64> {
        let now = self.read(0, SIZE as usize);
        let pages = now.chunks(4096).zip(before.chunks(4096));
        (0..).zip(pages).filter(|(_, (now, before))| now != before).map(|(page, _)| page).collect()
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub fn u16(&self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(offset, 2).try_into().unwrap())
    }

    pub fn u32(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(offset, 4).try_into().unwrap())
    }

    pub fn set_u16(&self, offset: u64, value: u16) {
        self.write(offset, &value.to_le_bytes());
    }
}
