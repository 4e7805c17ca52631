//! Memory that a client shares with its server.
#![expect(unsafe_code, reason = "hands out atomics in a shared mapping")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::memory::{Mapping, Rights};

/// A memfd, mapped here and to be mapped by the server. Both sides change it at will, so it is never a slice:
/// words are atomics, longer data is copied word by word.
#[derive(Debug)]
pub struct ClientMemory {
    file: OwnedFd,
    mapping: Mapping,
    iova: u64,
    size: u64,
}

impl ClientMemory {
    /// `size` bytes at guest address `iova`, on huge pages where the system gives them. Sealed against
    /// shrinking unless `truncatable`.
    ///
    /// # Errors
    /// The system is out of memory or file descriptors.
    pub fn new(iova: u64, size: u64, truncatable: bool) -> Result<Arc<Self>, Errno> {
        let file = memfd_create("guest-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size)?;
        if !truncatable {
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        }
        let mapping = Mapping::new(file.as_fd(), 0, size, Rights::READ_WRITE)?;
        let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        // SAFETY: exactly the mapping above; huge pages change nothing but speed, and not getting them is fine.
        let _ = unsafe { madvise(mapping.base().0.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(Arc::new(Self { file, mapping, iova, size }))
    }

    /// First guest address.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The dwords of `[offset, offset + 4 * count)`.
    ///
    /// # Panics
    /// The range isn't aligned or isn't inside.
    #[must_use]
    pub fn dwords(&self, offset: u64, count: usize) -> &[AtomicU32] {
        let start = self.place(offset, count, 4);
        // SAFETY: inside the mapping, which `self` keeps, and aligned; every bit pattern is valid, and the
        // other side's changes are as atomics may see them.
        unsafe { std::slice::from_raw_parts(start.cast(), count) }
    }

    /// The qwords of `[offset, offset + 8 * count)`.
    ///
    /// # Panics
    /// The range isn't aligned or isn't inside.
    #[must_use]
    pub fn qwords(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let start = self.place(offset, count, 8);
        // SAFETY: as for `dwords`.
        unsafe { std::slice::from_raw_parts(start.cast(), count) }
    }

    /// Copies out bytes at any offset.
    ///
    /// # Panics
    /// The range isn't inside.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        assert!(offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size));
        for (place, byte) in (offset..).zip(bytes) {
            let dword = self.dwords(place & !3, 1)[0].load(Ordering::Relaxed).to_le_bytes();
            *byte = dword[(place & 3) as usize];
        }
    }

    /// Copies in bytes at any offset. Bytes beside them in the same dwords must not change at that moment.
    ///
    /// # Panics
    /// The range isn't inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size));
        let mut left = bytes;
        let mut place = offset;
        while let Some((first, rest)) = left.split_first() {
            if place.is_multiple_of(8)
                && let Some((chunk, rest)) = left.split_first_chunk::<8>()
            {
                self.qwords(place, 1)[0].store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
                place += 8;
                left = rest;
                continue;
            }
            let dword = &self.dwords(place & !3, 1)[0];
            let mut lanes = dword.load(Ordering::Relaxed).to_le_bytes();
            lanes[(place & 3) as usize] = *first;
            dword.store(u32::from_le_bytes(lanes), Ordering::Relaxed);
            place += 1;
            left = rest;
        }
    }

    /// Fills a range of whole qwords with zeroes.
    ///
    /// # Panics
    /// The range isn't aligned or isn't inside.
    pub fn zero(&self, offset: u64, len_bytes: u64) {
        for qword in self.qwords(offset, (len_bytes / 8) as usize) {
            qword.store(0, Ordering::Relaxed);
        }
    }

    fn place(&self, offset: u64, count: usize, unit: u64) -> *const u8 {
        let end = (count as u64).checked_mul(unit).and_then(|len| offset.checked_add(len));
        assert!(offset.is_multiple_of(unit) && end.is_some_and(|end| end <= self.size), "outside the memory");
        // SAFETY: just checked to be inside the mapping.
        unsafe { self.mapping.base().0.as_ptr().add(offset as usize) }
    }
}

impl AsFd for ClientMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
