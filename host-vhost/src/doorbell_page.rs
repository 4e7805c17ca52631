//! The page of doorbell registers, shared with a client that maps it.
//!
//! The registers live in a file of two pages that stands for the first 8 KiB of BAR0: its second page is what
//! BAR0 has at 1000h, the first is never used. The file's size is sealed, so the client can't take the page
//! away. Whoever receives a doorbell write by message stores it here too; there is one place to look.
//!
//! Not here: what the values mean, which is [`doorbell_core::doorbell`].
#![expect(unsafe_code, reason = "maps the shared page")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use doorbell_core::doorbell::Registers;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::memory::HostPointer;
use crate::vfio_user::protocol::SparseArea;

/// Where the doorbells start in BAR0, and in the file.
pub const DOORBELL_OFFSET: u64 = 0x1000;

/// Bytes of doorbells: those of 512 queue pairs.
pub const DOORBELL_BYTES: u64 = 0x1000;

const REGISTERS: usize = DOORBELL_BYTES as usize / size_of::<AtomicU32>();

/// The page.
#[derive(Debug)]
pub struct DoorbellPage {
    file: OwnedFd,
    page: HostPointer,
    areas: [SparseArea; 1],
}

impl DoorbellPage {
    /// A page of zeroes.
    ///
    /// # Errors
    /// The system is out of file descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let file = memfd_create("doorbells", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, DOORBELL_OFFSET + DOORBELL_BYTES)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let len = DOORBELL_BYTES as usize;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is in use.
        let page =
            unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, DOORBELL_OFFSET) }?;
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let areas = [SparseArea { offset: DOORBELL_OFFSET.into(), size: DOORBELL_BYTES.into() }];
        Ok(Self { file, page: HostPointer(page), areas })
    }

    /// The registers.
    #[must_use]
    pub fn registers(&self) -> &Registers {
        let first = self.page.0.cast::<AtomicU32>().as_ptr();
        // SAFETY: one page, mapped as long as `self` lives and page aligned; the file is sealed against
        // shrinking; all bit patterns are valid, and others change it only as atomics may be changed.
        unsafe { std::slice::from_raw_parts(first, REGISTERS) }
    }

    /// The part of BAR0 that a client may map; the file's offsets are those of BAR0.
    #[must_use]
    pub fn areas(&self) -> &[SparseArea] {
        &self.areas
    }
}

impl AsFd for DoorbellPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and references into it borrow `self`.
        let unmapped = unsafe { munmap(self.page.0.as_ptr().cast(), DOORBELL_BYTES as usize) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_file_is_the_bar_and_cannot_shrink() {
        let page = DoorbellPage::new().unwrap();
        assert!(ftruncate(&page, 0).is_err());
        rustix::io::pwrite(&page, &7u32.to_le_bytes(), DOORBELL_OFFSET + 12).unwrap();
        assert_eq!(page.registers()[3].load(Ordering::Relaxed), 7);
    }
}
