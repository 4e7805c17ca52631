//! One file mapped into this process for as long as the value lives.
#![expect(unsafe_code, reason = "maps and unmaps guest memory")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::map::{MapError, Rights};
use super::sigbus::{self, Slot};

/// `f_type` of hugetlbfs.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// An address in this process where guest memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPointer(pub NonNull<u8>);

// SAFETY: an address alone; to use it takes `unsafe` and the argument that its mapping is still there.
unsafe impl Send for HostPointer {}
// SAFETY: as above.
unsafe impl Sync for HostPointer {}

/// A shared mapping of a client's file.
#[derive(Debug)]
pub struct Mapping {
    base: HostPointer,
    len_bytes: usize,
    slot: &'static Slot,
    sealed: bool,
}

impl Mapping {
    /// Maps `len_bytes` of `file` from `offset`, which has to be page aligned.
    ///
    /// # Errors
    /// [`MapError::BadRange`], [`MapError::Misaligned`] for an offset that isn't page aligned,
    /// [`MapError::FileTooShort`] for a regular file (its pages would fault, and hugetlbfs would make new
    /// ones); else what `mmap` says.
    pub fn new(file: BorrowedFd<'_>, offset: u64, len_bytes: u64, rights: Rights) -> Result<Self, MapError> {
        let page = rustix::param::page_size() as u64;
        let end = offset.checked_add(len_bytes).ok_or(MapError::BadRange)?;
        if len_bytes == 0 {
            return Err(MapError::BadRange);
        }
        if !offset.is_multiple_of(page) {
            return Err(MapError::Misaligned);
        }
        let stat = fstat(file)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if regular && file_bytes < end {
            return Err(MapError::FileTooShort { file_bytes, end });
        }
        // munmap wants whole pages, huge ones for hugetlbfs.
        let unit = match fstatfs(file) {
            Ok(fs) if fs.f_type == HUGETLBFS_MAGIC => page.max(fs.f_bsize.try_into().unwrap_or(page)),
            _ => page,
        };
        let len_bytes = len_bytes.checked_next_multiple_of(unit).ok_or(MapError::BadRange)?;
        let len_bytes = usize::try_from(len_bytes).map_err(|_| Errno::NOMEM)?;
        let mut prot = ProtFlags::empty();
        prot.set(ProtFlags::READ, rights.read);
        prot.set(ProtFlags::WRITE, rights.write);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is in use.
        let base = unsafe { mmap(std::ptr::null_mut(), len_bytes, prot, flags, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let slot = sigbus::register(base.as_ptr() as usize, len_bytes);
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        Ok(Self { base: HostPointer(base), len_bytes, slot, sealed })
    }

    /// The first byte.
    #[must_use]
    pub fn base(&self) -> HostPointer {
        self.base
    }

    /// Whether the file was truncated under it: what is read and written since is nobody's memory.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.slot.is_poisoned()
    }

    /// Whether the file can't be truncated (F_SEAL_SHRINK).
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        sigbus::unregister(self.slot);
        // SAFETY: `new` made this mapping; every pointer into it comes from a snapshot of the memory map, and
        // the last of those is gone.
        let unmapped = unsafe { munmap(self.base.0.as_ptr().cast(), self.len_bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
