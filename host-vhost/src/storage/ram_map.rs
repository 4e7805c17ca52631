//! The memory of a RAM storage: a big reserved range of addresses, mapped from its start.
//!
//! The range never moves and its mapped part never shrinks, so a pointer into it stays good as long
//! as the map lives, whatever is resized meanwhile. Huge pages are taken where they can be had:
//! hugetlbfs pages if enough are free, else transparent ones.

#![expect(unsafe_code, reason = "maps memory and hands out its address")]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Mutex;

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::error::{OpenError, ResizeError};

/// See the module.
#[derive(Debug)]
pub(super) struct RamMap {
    base: usize,
    reserved_bytes: usize,
    backing: Backing,
    /// Mapped bytes from `base`; the lock keeps two resizes apart and is never on the I/O path.
    mapped_bytes: Mutex<usize>,
}

#[derive(Debug)]
enum Backing {
    HugeTlb(OwnedFd),
    Memfd(OwnedFd),
    /// Where shared memory gets no transparent huge pages, private memory often does.
    Private,
}

impl RamMap {
    pub(super) fn new(size_bytes: u64) -> Result<Self, OpenError> {
        let too_much = OpenError::Size { size_bytes, what: "more than this machine can address" };
        if size_bytes == 0 {
            return Err(OpenError::Size { size_bytes, what: "a storage can't be empty" });
        }
        let Some(needed) = usize::try_from(size_bytes).ok().and_then(round_up) else {
            return Err(too_much);
        };
        // Room to grow: addresses cost nothing until they are mapped.
        let wanted = needed.checked_mul(16).unwrap_or(needed).max(1 << 40);
        let (base, reserved_bytes) = reserve(wanted)
            .map(|base| (base, wanted))
            .or_else(|_| Ok((reserve(needed)?, needed)))
            .map_err(|source| OpenError::Memory { size_bytes, what: "reserving addresses", source })?;
        let mut map = Self { base, reserved_bytes, backing: Backing::Private, mapped_bytes: Mutex::new(0) };
        if let Ok(memory) = rustix::fs::memfd_create(
            c"doorbell-ram",
            MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        ) {
            map.backing = Backing::HugeTlb(memory);
            if map.extend(needed).is_ok() {
                return Ok(map);
            }
        }
        if shared_memory_gets_huge_pages() {
            let memory = rustix::fs::memfd_create(c"doorbell-ram", MemfdFlags::CLOEXEC)
                .map_err(|errno| OpenError::Memory { size_bytes, what: "memfd", source: errno.into() })?;
            map.backing = Backing::Memfd(memory);
        } else {
            map.backing = Backing::Private;
        }
        map.extend(needed).map_err(|source| OpenError::Memory { size_bytes, what: "mapping", source })?;
        Ok(map)
    }

    pub(super) fn base(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.base)
    }

    pub(super) fn backing(&self) -> &'static str {
        match self.backing {
            Backing::HugeTlb(_) => "memfd, 2 MiB pages of hugetlbfs",
            Backing::Memfd(_) => "memfd, transparent huge pages",
            Backing::Private => "private memory, transparent huge pages",
        }
    }

    /// Maps up to `size_bytes` if that isn't mapped yet.
    pub(super) fn grow(&self, size_bytes: u64) -> Result<(), ResizeError> {
        let Some(needed) = usize::try_from(size_bytes)
            .ok()
            .and_then(round_up)
            .filter(|&needed| needed <= self.reserved_bytes)
        else {
            return Err(ResizeError::Size {
                size_bytes,
                what: "more than was reserved when this RAM storage was opened; reopen it larger",
            });
        };
        self.extend(needed).map_err(|source| ResizeError::Io { size_bytes, source })
    }

    /// `needed` is a multiple of a huge page and within the reservation.
    fn extend(&self, needed: usize) -> io::Result<()> {
        let mut mapped = self.mapped_bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if needed <= *mapped {
            return Ok(());
        }
        let start = self.base().wrapping_add(*mapped).cast();
        let len = needed - *mapped;
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        match &self.backing {
            Backing::HugeTlb(memory) | Backing::Memfd(memory) => {
                rustix::fs::ftruncate(memory, needed as u64)?;
                if matches!(self.backing, Backing::HugeTlb(_)) {
                    reserve_huge_pages(memory, *mapped, len)?;
                }
                // SAFETY: replaces a part of our own reservation that nobody has a pointer into yet.
                unsafe {
                    rustix::mm::mmap(
                        start,
                        len,
                        rw,
                        MapFlags::SHARED | MapFlags::FIXED,
                        memory,
                        *mapped as u64,
                    )
                }?;
            }
            Backing::Private => {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                // SAFETY: as above.
                unsafe { rustix::mm::mmap_anonymous(start, len, rw, flags) }?;
            }
        }
        if !matches!(self.backing, Backing::HugeTlb(_)) {
            // SAFETY: our own mapping; advice changes no content. Refusal costs only speed.
            let _ = unsafe { rustix::mm::madvise(start, len, Advice::LinuxHugepage) };
        }
        // SAFETY: as above. Guest data doesn't belong into a core dump.
        let _ = unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontDump) };
        *mapped = needed;
        Ok(())
    }

    /// Makes a range inside the mapping read zero: whole huge pages by giving them back, the rest by
    /// writing. Small pages inside a huge one are not punched out, since that would split it.
    pub(super) fn zero(&self, offset_bytes: u64, len_bytes: u64) {
        let (start, end) = (offset_bytes as usize, (offset_bytes + len_bytes) as usize);
        let first = round_up(start).unwrap_or(usize::MAX);
        let last = end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if first < last && self.punch(first, last - first) {
            self.fill_zero(start, first - start);
            self.fill_zero(last, end - last);
        } else {
            self.fill_zero(start, end - start);
        }
    }

    fn punch(&self, start: usize, len: usize) -> bool {
        let advice = match self.backing {
            Backing::HugeTlb(_) | Backing::Memfd(_) => Advice::LinuxRemove,
            Backing::Private => Advice::LinuxDontNeed,
        };
        // SAFETY: inside our own mapping, by the caller; it reads zero afterwards, no reference
        // points into it.
        unsafe { rustix::mm::madvise(self.base().wrapping_add(start).cast(), len, advice) }.is_ok()
    }

    fn fill_zero(&self, start: usize, len: usize) {
        // SAFETY: inside our own mapping, by the caller; no reference points into it.
        unsafe { ptr::write_bytes(self.base().wrapping_add(start), 0, len) };
    }
}

impl Drop for RamMap {
    fn drop(&mut self) {
        // SAFETY: our own reservation; queues hold the map alive, so no pointer outlives it.
        let _ = unsafe { rustix::mm::munmap(self.base().cast(), self.reserved_bytes) };
    }
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

fn round_up(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(HUGE_PAGE_BYTES)
}

/// Addresses without memory, aligned to a huge page. `len` is a multiple of one.
fn reserve(len: usize) -> io::Result<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let padded = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let raw = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), flags) }?;
    let raw = raw.expose_provenance();
    let base = raw.next_multiple_of(HUGE_PAGE_BYTES);
    let (head, tail) = (base - raw, padded - len - (base - raw));
    for (start, len) in [(raw, head), (base + len, tail)] {
        if len > 0 {
            // SAFETY: the unused ends of the mapping just made.
            let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(start), len) };
        }
    }
    Ok(base)
}

/// Takes huge pages for a part of a memfd, or fails. They stay reserved for the file when the mapping
/// made here goes. Mapping over the reserved addresses without this could fail halfway and leave a
/// hole there, into which something else could be mapped.
fn reserve_huge_pages(memory: &OwnedFd, offset: usize, len: usize) -> io::Result<()> {
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let probe =
        unsafe { rustix::mm::mmap(ptr::null_mut(), len, rw, MapFlags::SHARED, memory, offset as u64) }?;
    // SAFETY: the mapping just made, which nobody has seen.
    let _ = unsafe { rustix::mm::munmap(probe, len) };
    Ok(())
}

/// Whether the kernel gives transparent huge pages to a memfd that asks for them.
fn shared_memory_gets_huge_pages() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").is_ok_and(|text| {
        ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|word| text.contains(word))
    })
}
