//! One thread's access to guest memory.
//!
//! A small cache finds the region of an address: its entries hold the bounds of a whole region, so an entry is
//! right wherever it stands, and the 2 MiB number of an address only chooses which one to look at. What misses
//! it (another region, a border between regions, a region without file, an address that isn't memory) takes
//! the way over the snapshot.
#![expect(unsafe_code, reason = "copies to and from guest memory through raw pointers")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use doorbell_core::memory::{Access, DmaError, DmaMemory};

use super::map::{MemoryMap, Region, SharedMap};
use super::mapping::HostPointer;

/// log2 of the bytes that choose a cache entry.
const GRANULE_SHIFT: u32 = 21;

const ENTRIES: usize = 32;

/// Aligned copies up to this length are made of single accesses.
const SMALL_BYTES: usize = 16;

/// The region that an address was found in. Sizes are 0 where the right is missing, so nothing fits.
#[derive(Clone, Copy, Debug)]
struct Entry {
    iova: u64,
    readable: u64,
    writable: u64,
    host: HostPointer,
}

const NOTHING: Entry = Entry { iova: 0, readable: 0, writable: 0, host: HostPointer(NonNull::dangling()) };

/// Why a range has no host pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Not memory that the device may use that way.
    #[error("{0}")]
    Dma(DmaError),
    /// Memory that is reached by messages only: copy through [`DmaMemory`] instead.
    #[error("part of the range is reached by messages only")]
    MessageOnly,
}

/// A view of guest memory: a snapshot that this thread keeps, and the cache over it.
///
/// Pointers that [`MemoryView::resolve`] gave are good until [`MemoryView::release_retired`] after the next
/// [`MemoryView::update`].
#[derive(Debug)]
pub struct MemoryView {
    shared: Arc<SharedMap>,
    current: RefCell<Arc<MemoryMap>>,
    /// Snapshots before the current one that pointers may still point into.
    retired: RefCell<Vec<Arc<MemoryMap>>>,
    generation: Cell<u64>,
    cache: [Cell<Entry>; ENTRIES],
}

impl MemoryView {
    /// A view of the newest snapshot.
    #[must_use]
    pub fn new(shared: Arc<SharedMap>) -> Self {
        let current = shared.current();
        Self {
            generation: Cell::new(current.generation()),
            shared,
            current: RefCell::new(current),
            retired: RefCell::default(),
            cache: [const { Cell::new(NOTHING) }; ENTRIES],
        }
    }

    /// Goes over to the newest snapshot, if there is one; costs a load otherwise. The snapshot before is kept
    /// until [`MemoryView::release_retired`].
    #[inline]
    pub fn update(&self) -> bool {
        if self.shared.generation() == self.generation.get() {
            return false;
        }
        self.switch();
        true
    }

    /// Lets go of earlier snapshots. Only when no pointer from [`MemoryView::resolve`] before the last
    /// [`MemoryView::update`] is in use any more, in flight in the kernel for instance. DMA_UNMAP is answered
    /// when every view has let go.
    #[inline]
    pub fn release_retired(&self) {
        let mut retired = self.retired.borrow_mut();
        if !retired.is_empty() {
            retired.clear();
        }
    }

    /// Whether earlier snapshots are kept.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        !self.retired.borrow().is_empty()
    }

    /// The snapshot in use. Holding it keeps every pointer into it good.
    #[must_use]
    pub fn snapshot(&self) -> Arc<MemoryMap> {
        Arc::clone(&self.current.borrow())
    }

    /// The number of the snapshot in use.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Whether the file behind some region was truncated.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.current.borrow().is_poisoned()
    }

    /// Hands over the pieces of this process's memory that are `[iova, iova + len_bytes)`, in order. Pieces
    /// are as large as regions make them; neighbours that touch in this process are one.
    ///
    /// The pointers may be used as `access` says, by raw copies, atomics and system calls only.
    ///
    /// # Errors
    /// See [`ResolveError`]; `piece` may have been called before.
    #[inline]
    pub fn resolve(
        &self,
        iova: u64,
        len_bytes: usize,
        access: Access,
        piece: &mut impl FnMut(*mut u8, usize),
    ) -> Result<(), ResolveError> {
        let host = match access {
            Access::Read => self.host::<false>(iova, len_bytes as u64),
            Access::Write => self.host::<true>(iova, len_bytes as u64),
        };
        match host {
            Some(host) => {
                piece(host, len_bytes);
                Ok(())
            }
            None => self.resolve_slow(iova, len_bytes, access, piece),
        }
    }

    /// Whether the whole range is mapped: no access to it ever needs a message.
    #[must_use]
    pub fn is_mapped(&self, iova: u64, len_bytes: usize, access: Access) -> bool {
        self.resolve(iova, len_bytes, access, &mut |_, _| {}).is_ok()
    }

    /// The pointer to a range that lies in one mapped region.
    #[inline(always)]
    fn host<const WRITE: bool>(&self, address: u64, len_bytes: u64) -> Option<*mut u8> {
        let entry = self.cache[cache_index(address)].get();
        let offset = address.wrapping_sub(entry.iova);
        let size = if WRITE { entry.writable } else { entry.readable };
        if offset < size && len_bytes <= size - offset {
            // SAFETY: the entry is of a region of the snapshot in use, which keeps it mapped; the offset is
            // inside it. Every switch of snapshots clears the cache.
            return Some(unsafe { entry.host.0.as_ptr().add(offset as usize) });
        }
        self.fill::<WRITE>(address, len_bytes)
    }

    /// The cache doesn't have it: looks into the snapshot, and into a newer one if there is one, because a
    /// guest may use memory as soon as its DMA_MAP has been answered.
    #[cold]
    #[inline(never)]
    fn fill<const WRITE: bool>(&self, address: u64, len_bytes: u64) -> Option<*mut u8> {
        self.update();
        let current = self.current.borrow();
        let region = current.find(address)?;
        let host = region.host()?;
        let rights = region.rights();
        let size_if = |right: bool| if right { region.size() } else { 0 };
        self.cache[cache_index(address)].set(Entry {
            iova: region.iova(),
            readable: size_if(rights.read),
            writable: size_if(rights.write),
            host,
        });
        let offset = address - region.iova();
        let right = if WRITE { rights.write } else { rights.read };
        if !right || len_bytes > region.size() - offset {
            return None;
        }
        // SAFETY: the snapshot in use keeps the region mapped, and the offset is inside it.
        Some(unsafe { host.0.as_ptr().add(offset as usize) })
    }

    #[cold]
    fn switch(&self) {
        let newest = self.shared.current();
        for entry in &self.cache {
            entry.set(NOTHING);
        }
        self.generation.set(newest.generation());
        let before = self.current.replace(newest);
        self.retired.borrow_mut().push(before);
    }

    /// Walks the regions of a range and calls `piece` with each region, the offset in it and the bytes.
    fn walk<E>(
        &self,
        address: u64,
        len_bytes: usize,
        access: Access,
        refused: E,
        mut piece: impl FnMut(&Region, u64, usize) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: Copy,
    {
        let current = self.current.borrow();
        let (mut address, mut left) = (address, len_bytes);
        while left > 0 {
            let region = current.find(address).ok_or(refused)?;
            let right = match access {
                Access::Read => region.rights().read,
                Access::Write => region.rights().write,
            };
            if !right || region.mapping().is_some_and(|mapping| mapping.is_poisoned()) {
                return Err(refused);
            }
            let offset = address - region.iova();
            let count = usize::try_from(region.size() - offset).unwrap_or(usize::MAX).min(left);
            piece(region, offset, count)?;
            left -= count;
            if left > 0 {
                address = address.checked_add(count as u64).ok_or(refused)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn resolve_slow(
        &self,
        iova: u64,
        len_bytes: usize,
        access: Access,
        piece: &mut impl FnMut(*mut u8, usize),
    ) -> Result<(), ResolveError> {
        let mut pending: Option<(*mut u8, usize)> = None;
        self.walk(iova, len_bytes, access, ResolveError::Dma(DmaError), |region, offset, count| {
            let host = region.host().ok_or(ResolveError::MessageOnly)?;
            // SAFETY: the snapshot in use keeps the region mapped, and the offset is inside it.
            let start = unsafe { host.0.as_ptr().add(offset as usize) };
            pending = match pending.take() {
                Some((before, len)) if before.wrapping_add(len) == start => Some((before, len + count)),
                Some((before, len)) => {
                    piece(before, len);
                    Some((start, count))
                }
                None => Some((start, count)),
            };
            Ok(())
        })?;
        if let Some((start, len)) = pending {
            piece(start, len);
        }
        Ok(())
    }

    #[cold]
    fn read_slow(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.walk(address, buffer.len(), Access::Read, DmaError, |_, _, _| Ok(()))?;
        let messages = self.current.borrow().messages().cloned();
        let mut rest = buffer;
        self.walk(address, rest.len(), Access::Read, DmaError, |region, offset, count| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(count);
            rest = later;
            match region.mapping() {
                Some(mapping) => copy_out(mapping.base(), offset, now),
                None => messages.as_ref().ok_or(DmaError)?.dma_read(region.iova() + offset, now)?,
            }
            Ok(())
        })
    }

    #[cold]
    fn write_slow(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.walk(address, bytes.len(), Access::Write, DmaError, |_, _, _| Ok(()))?;
        let messages = self.current.borrow().messages().cloned();
        let mut rest = bytes;
        self.walk(address, bytes.len(), Access::Write, DmaError, |region, offset, count| {
            let (now, later) = rest.split_at(count);
            rest = later;
            match region.mapping() {
                Some(mapping) => copy_in(mapping.base(), offset, now),
                None => messages.as_ref().ok_or(DmaError)?.dma_write(region.iova() + offset, now)?,
            }
            Ok(())
        })
    }
}

impl DmaMemory for MemoryView {
    #[inline]
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        match self.host::<false>(address, buffer.len() as u64) {
            Some(host) => {
                // SAFETY: `host` is good for reads of that length.
                unsafe { copy_from(host, buffer) };
                Ok(())
            }
            None => self.read_slow(address, buffer),
        }
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        match self.host::<true>(address, bytes.len() as u64) {
            Some(host) => {
                // SAFETY: `host` is good for writes of that length.
                unsafe { copy_to(host, bytes) };
                Ok(())
            }
            None => self.write_slow(address, bytes),
        }
    }

    #[inline]
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        match self.host::<false>(address, 4) {
            Some(host) if host.cast::<u32>().is_aligned() => {
                // SAFETY: aligned, good for 4 bytes, and touched by nothing but atomics and foreign code.
                let dword = unsafe { AtomicU32::from_ptr(host.cast()) };
                Ok(u32::from_le(dword.load(Ordering::Relaxed)))
            }
            _ => {
                let mut bytes = [0; 4];
                self.read(address, &mut bytes)?;
                Ok(u32::from_le_bytes(bytes))
            }
        }
    }

    #[inline]
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        match self.host::<true>(address, 4) {
            Some(host) if host.cast::<u32>().is_aligned() => {
                // SAFETY: as in `load_u32`.
                let dword = unsafe { AtomicU32::from_ptr(host.cast()) };
                dword.store(value.to_le(), Ordering::Relaxed);
                Ok(())
            }
            _ => self.write(address, &value.to_le_bytes()),
        }
    }

    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        self.check(address, 4, Access::Read)?;
        match self.host::<true>(address, 4) {
            Some(host) if host.cast::<u32>().is_aligned() => {
                // SAFETY: as in `load_u32`.
                let dword = unsafe { AtomicU32::from_ptr(host.cast()) };
                let (current, new) = (current.to_le(), new.to_le());
                let found = dword.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
                Ok(u32::from_le(found.unwrap_or_else(|found| found)))
            }
            _ => {
                let found = self.load_u32(address)?;
                if found == current {
                    self.store_u32(address, new)?;
                }
                Ok(found)
            }
        }
    }

    #[inline]
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        let host = match access {
            Access::Read => self.host::<false>(address, len_bytes),
            Access::Write => self.host::<true>(address, len_bytes),
        };
        if host.is_some() {
            return Ok(());
        }
        let len_bytes = usize::try_from(len_bytes).map_err(|_| DmaError)?;
        self.walk(address, len_bytes, access, DmaError, |_, _, _| Ok(()))
    }

    /// Two 8-byte stores: an entry's first half, a release fence, the half with the Phase Tag.
    #[inline]
    fn publish(&self, address: u64, entry: [u32; 4]) -> Result<(), DmaError> {
        let [dword0, dword1, dword2, dword3] = entry;
        let low = u64::from(dword1) << 32 | u64::from(dword0);
        let high = u64::from(dword3) << 32 | u64::from(dword2);
        match self.host::<true>(address, 16) {
            Some(host) if host.cast::<u64>().is_aligned() => {
                // SAFETY: aligned, good for 16 bytes, and touched by nothing but atomics and foreign code.
                let first = unsafe { AtomicU64::from_ptr(host.cast()) };
                // SAFETY: 8 of those 16 bytes in, so in the same region.
                let second = unsafe { host.add(8) };
                // SAFETY: as for the first half.
                let second = unsafe { AtomicU64::from_ptr(second.cast()) };
                first.store(low.to_le(), Ordering::Relaxed);
                // Pairs with the driver's read barrier between the Phase Tag and the rest of the entry.
                fence(Ordering::Release);
                second.store(high.to_le(), Ordering::Relaxed);
                Ok(())
            }
            _ => {
                self.check(address, 16, Access::Write)?;
                self.write(address, &low.to_le_bytes())?;
                fence(Ordering::Release);
                self.write(address.wrapping_add(8), &high.to_le_bytes())
            }
        }
    }
}

#[inline(always)]
fn cache_index(address: u64) -> usize {
    (address >> GRANULE_SHIFT) as usize % ENTRIES
}

/// Copies out of a mapping; the caller has checked that `offset` and the length lie inside it.
pub(super) fn copy_out(base: HostPointer, offset: u64, buffer: &mut [u8]) {
    // SAFETY: inside the mapping, which the caller's snapshot keeps.
    let host = unsafe { base.0.as_ptr().add(offset as usize) };
    // SAFETY: as above, for the whole length.
    unsafe { copy_from(host, buffer) };
}

fn copy_in(base: HostPointer, offset: u64, bytes: &[u8]) {
    // SAFETY: inside the mapping, which the caller's snapshot keeps.
    let host = unsafe { base.0.as_ptr().add(offset as usize) };
    // SAFETY: as above, for the whole length.
    unsafe { copy_to(host, bytes) };
}

/// Copies from guest memory. Short aligned copies are made of 8-byte or 4-byte accesses, each of which is a
/// single access for the guest too; longer ones are a `memcpy` whose order and width nobody may rely on.
///
/// # Safety
/// `host` is good for reads of the buffer's length, in a mapping that isn't part of any Rust object.
#[inline(always)]
unsafe fn copy_from(host: *const u8, buffer: &mut [u8]) {
    let len = buffer.len();
    if len <= SMALL_BYTES && (host as usize | len).is_multiple_of(8) {
        for (index, chunk) in buffer.chunks_exact_mut(8).enumerate() {
            // SAFETY: `index` counts whole chunks of the length.
            let qword = unsafe { host.cast::<u64>().add(index) };
            // SAFETY: aligned and inside; guest memory is touched by atomics and foreign code only.
            let qword = unsafe { AtomicU64::from_ptr(qword.cast_mut()) };
            chunk.copy_from_slice(&qword.load(Ordering::Relaxed).to_ne_bytes());
        }
    } else if len <= SMALL_BYTES && (host as usize | len).is_multiple_of(4) {
        for (index, chunk) in buffer.chunks_exact_mut(4).enumerate() {
            // SAFETY: `index` counts whole chunks of the length.
            let dword = unsafe { host.cast::<u32>().add(index) };
            // SAFETY: aligned and inside; guest memory is touched by atomics and foreign code only.
            let dword = unsafe { AtomicU32::from_ptr(dword.cast_mut()) };
            chunk.copy_from_slice(&dword.load(Ordering::Relaxed).to_ne_bytes());
        }
    } else {
        // SAFETY: the caller's promise; `buffer` is ours alone, so they don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(host, buffer.as_mut_ptr(), len) };
        // The compiler must not read guest memory again in the place of the copy.
        compiler_fence(Ordering::SeqCst);
    }
}

/// Copies to guest memory, as [`copy_from`] does.
///
/// # Safety
/// `host` is good for writes of the slice's length, in a mapping that isn't part of any Rust object.
#[inline(always)]
unsafe fn copy_to(host: *mut u8, bytes: &[u8]) {
    let len = bytes.len();
    if len <= SMALL_BYTES && (host as usize | len).is_multiple_of(8) {
        for (index, chunk) in bytes.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: `index` counts whole chunks of the length.
            let qword = unsafe { host.cast::<u64>().add(index) };
            // SAFETY: aligned and inside; guest memory is touched by atomics and foreign code only.
            let qword = unsafe { AtomicU64::from_ptr(qword) };
            qword.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
    } else if len <= SMALL_BYTES && (host as usize | len).is_multiple_of(4) {
        for (index, chunk) in bytes.as_chunks::<4>().0.iter().enumerate() {
            // SAFETY: `index` counts whole chunks of the length.
            let dword = unsafe { host.cast::<u32>().add(index) };
            // SAFETY: aligned and inside; guest memory is touched by atomics and foreign code only.
            let dword = unsafe { AtomicU32::from_ptr(dword) };
            dword.store(u32::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
    } else {
        // SAFETY: the caller's promise; `bytes` is never guest memory, so they don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host, len) };
    }
}
