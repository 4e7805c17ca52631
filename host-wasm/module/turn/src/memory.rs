//! Guest memory as the core sees it from inside the module.
//!
//! Outside of `group_poll` every access is an import. Inside it guest memory is a *staged window*:
//!
//! * Submission queue entries are read ahead, as many as the last turn took, in one import. The host has taken a
//!   snapshot of the doorbells before the call, so an entry that the core fetches was there before it. What was
//!   read ahead is forgotten at the end of the call, and when a doorbell was loaded directly meanwhile. A read
//!   ahead never crosses a page, so it touches no memory that the entry itself doesn't touch.
//! * Shadow doorbells were loaded by the host before the call.
//! * Completion queue entries and EventIdx go to a list that the host carries out, in order, after the call.

use core::cell::Cell;

use doorbell_abi::{CHECK_ONLY, NEVER, WriteRecord};
use doorbell_core::memory::{Access, DmaError, DmaMemory};

use crate::tables::{AHEAD_BYTES, REGISTERS, shared};

#[link(wasm_import_module = "doorbell")]
unsafe extern "C" {
    #[link_name = "dma_read"]
    safe fn import_dma_read(address: u64, ptr: u32, len: u32) -> u32;
    #[link_name = "dma_write"]
    safe fn import_dma_write(address: u64, ptr: u32, len: u32) -> u32;
}

/// Bytes of a submission queue entry.
const ENTRY_BYTES: u32 = 64;

/// Bytes of the smallest memory page.
const PAGE_BYTES: u64 = AHEAD_BYTES as u64;

/// Guest memory during one call.
pub struct Guest {
    /// The call is `group_poll`.
    staged: bool,
    /// Guest address of the staged shadow doorbells.
    shadow: u64,
    /// Entries that a read takes along.
    batch: u32,
    /// Guest address of what has been read ahead, and its bytes.
    ahead: Cell<(u64, u32)>,
    /// Submission queue entries read.
    fetched: Cell<u32>,
    /// Records in the list of writes.
    writes: Cell<u32>,
    /// Completion queue entries among them.
    entries: Cell<u32>,
}

impl Guest {
    /// Every access goes to guest memory.
    pub fn direct() -> Self {
        Self {
            staged: false,
            shadow: NEVER,
            batch: 0,
            ahead: Cell::new((0, 0)),
            fetched: Cell::new(0),
            writes: Cell::new(0),
            entries: Cell::new(0),
        }
    }

    /// A window that reads `batch` submission queue entries ahead.
    pub fn staged(batch: u32) -> Self {
        // SAFETY: a static, read for this statement only.
        let shadow = unsafe { (*shared()).input.shadow.get() };
        Self { staged: true, shadow, batch, ..Self::direct() }
    }

    /// Submission queue entries read so far.
    pub fn fetched(&self) -> u32 {
        self.fetched.get()
    }

    /// Records in the list of writes.
    pub fn writes(&self) -> u32 {
        self.writes.get()
    }

    /// Completion queue entries in it.
    pub fn entries(&self) -> u32 {
        self.entries.get()
    }

    /// Appends to the list of writes; whether there was room.
    #[inline]
    fn append(&self, record: WriteRecord) -> bool {
        // SAFETY: a static; this borrow ends with the function, and nothing else borrows the list.
        let list = unsafe { &mut (*shared()).writes };
        let Some(place) = list.get_mut(self.writes.get() as usize) else { return false };
        *place = record;
        self.writes.set(self.writes.get().wrapping_add(1));
        true
    }

    /// Reads a submission queue entry, and others with it.
    #[inline]
    fn read_entry(&self, address: u64, buffer: &mut [u8; ENTRY_BYTES as usize]) -> Result<(), DmaError> {
        self.fetched.set(self.fetched.get().wrapping_add(1));
        let (start, len) = self.ahead.get();
        let mut offset = address.wrapping_sub(start);
        if offset.wrapping_add(u64::from(ENTRY_BYTES)) > u64::from(len) || offset > u64::from(len) {
            self.read_ahead(address)?;
            offset = 0;
        }
        // SAFETY: a static, borrowed for this statement only; the import that fills it is over.
        let ahead = unsafe { &(*shared()).ahead };
        let entry = ahead.get(offset as usize..).and_then(|rest| rest.first_chunk());
        *buffer = *entry.ok_or(DmaError)?;
        Ok(())
    }

    fn read_ahead(&self, address: u64) -> Result<(), DmaError> {
        let room = (PAGE_BYTES - (address & (PAGE_BYTES - 1))) as u32;
        // A ring is page aligned, so its entries don't cross pages; if one does, it is read alone.
        let len = self.batch.wrapping_mul(ENTRY_BYTES).min(room & !(ENTRY_BYTES - 1)).max(ENTRY_BYTES);
        // SAFETY: only the address of a field of a static is taken.
        let ahead = unsafe { &raw mut (*shared()).ahead };
        read(address, ahead as u32, len)?;
        self.ahead.set((address, len));
        Ok(())
    }

    /// The staged copy of the shadow doorbell at `address`.
    #[inline]
    fn staged_place(&self, address: u64) -> Option<&mut u32> {
        let offset = address.wrapping_sub(self.shadow);
        if !self.staged || self.shadow == NEVER || offset >= REGISTERS as u64 * 4 || offset & 3 != 0 {
            return None;
        }
        // SAFETY: a static; callers use the borrow in one statement, and nothing else borrows the list.
        let shadows = unsafe { &mut (*shared()).shadows };
        shadows.get_mut((offset / 4) as usize)
    }

    fn load(&self, address: u64) -> Result<u32, DmaError> {
        // A doorbell as of now: entries that were read ahead may be older than what it says.
        self.ahead.set((0, 0));
        let mut value = 0_u32;
        read(address, &raw mut value as u32, 4)?;
        // The import has written it behind the compiler's back.
        Ok(core::hint::black_box(value))
    }
}

fn read(address: u64, ptr: u32, len: u32) -> Result<(), DmaError> {
    if import_dma_read(address, ptr, len) == 0 { Ok(()) } else { Err(DmaError) }
}

fn write(address: u64, ptr: u32, len: u32) -> Result<(), DmaError> {
    if import_dma_write(address, ptr, len) == 0 { Ok(()) } else { Err(DmaError) }
}

impl DmaMemory for Guest {
    #[inline]
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        match <&mut [u8; ENTRY_BYTES as usize]>::try_from(&mut *buffer) {
            Ok(entry) if self.staged => self.read_entry(address, entry),
            _ => read(address, buffer.as_mut_ptr() as u32, buffer.len() as u32),
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        write(address, bytes.as_ptr() as u32, bytes.len() as u32)
    }

    #[inline]
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        match self.staged_place(address) {
            Some(value) => Ok(*value),
            None => self.load(address),
        }
    }

    #[inline]
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        if self.staged && self.append(WriteRecord::dword(address, value)) {
            return Ok(());
        }
        write(address, &raw const value as u32, 4)
    }

    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let found = self.load(address)?;
        if found == current {
            write(address, &raw const new as u32, 4)?;
        }
        // What was staged is older than this.
        if let Some(staged) = self.staged_place(address) {
            *staged = if found == current { new } else { found };
        }
        Ok(found)
    }

    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        let len = u32::try_from(len_bytes).map_err(|_| DmaError)?;
        match access {
            Access::Read => read(address, CHECK_ONLY, len),
            Access::Write => write(address, CHECK_ONLY, len),
        }
    }

    #[inline]
    fn publish(&self, address: u64, entry: [u32; 4]) -> Result<(), DmaError> {
        self.entries.set(self.entries.get().wrapping_add(1));
        if self.staged && self.append(WriteRecord::entry(address, entry)) {
            return Ok(());
        }
        // The host makes a dword visible after everything before it.
        let [_, _, _, last] = entry;
        write(address, &raw const entry as u32, 12)?;
        write(address.wrapping_add(12), &raw const last as u32, 4)
    }
}
