//! A descriptor chain as pieces of this process's memory: what a driver wants read, and what it wants written.
//!
//! A device may not assume how a request is cut into descriptors (VIRTIO 1.3, 2.7.4.1): the header is the first
//! 16 readable bytes, the status is the last writable byte, wherever they lie. A chain is walked at most as far
//! as its table is long; each descriptor is copied once and never looked at again.
#![expect(unsafe_code, reason = "copies headers and status bytes between us and guest memory")]

use std::ptr::NonNull;

use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use super::ring::{Broken, DESCRIPTOR_BYTES, Descriptor, MAX_QUEUE_SIZE, Ring};
use super::window::Window;
use crate::memory::{HostPointer, MemoryMap};

/// Pieces of one direction at most. A request of more fails, its ring goes on.
pub(super) const MAX_PIECES: usize = 1024;

/// The pieces of one chain; kept and used again for the next, so that nothing is allocated.
#[derive(Debug)]
pub(super) struct Chain {
    readable: Side,
    writable: Side,
}

/// The pieces of one direction, in order.
#[derive(Debug)]
struct Side {
    pieces: Vec<libc::iovec>,
    /// Pieces before this one are used up.
    first: usize,
    /// Bytes that are left.
    bytes: u64,
    too_many: bool,
    /// The last byte, also where the pieces are too many.
    last: Option<HostPointer>,
}

/// Where a request's status goes: a byte of guest memory that stays mapped as long as the map that it was found
/// in is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusByte(HostPointer);

impl StatusByte {
    /// Where it is.
    pub(super) fn place(self) -> HostPointer {
        self.0
    }

    /// Writes it. The caller keeps the map that the chain was walked with.
    #[inline]
    pub(super) fn write(self, status: u8) {
        // SAFETY: `Chain::walk` found the byte in a mapping of the map that the queue keeps until nothing is in
        // flight (`Virtqueue`).
        unsafe { self.0.0.as_ptr().write_volatile(status) };
    }
}

/// A request of more than [`MAX_PIECES`] pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyPieces;

impl Chain {
    pub(super) fn new() -> Self {
        Self { readable: Side::new(), writable: Side::new() }
    }

    /// Collects the chain that starts at `head`.
    pub(super) fn walk(
        &mut self,
        ring: &Ring,
        map: &MemoryMap,
        head: u16,
        indirect_offered: bool,
    ) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        let mut indirect: Option<Window> = None;
        let mut size = u32::from(ring.size());
        let mut left = size;
        let mut index = u32::from(head);
        loop {
            let table = indirect.as_ref().unwrap_or(ring.descriptors());
            let descriptor = Descriptor::read(table, index as usize);
            if has(&descriptor, VRING_DESC_F_INDIRECT) {
                // One table, at the end of the chain (2.7.5.3).
                if !indirect_offered || indirect.is_some() || has(&descriptor, VRING_DESC_F_NEXT) {
                    return Err(Broken::Indirect);
                }
                let Descriptor { address, len, .. } = descriptor;
                size = len / DESCRIPTOR_BYTES as u32;
                if size == 0
                    || !len.is_multiple_of(DESCRIPTOR_BYTES as u32)
                    || size > 2 * u32::from(MAX_QUEUE_SIZE)
                {
                    return Err(Broken::IndirectTable(len));
                }
                let table = Window::of_guest(map, address, len as usize);
                indirect = Some(table.ok_or(Broken::Outside { address, len })?);
                left = size;
                index = 0;
                continue;
            }
            self.add(map, &descriptor)?;
            if !has(&descriptor, VRING_DESC_F_NEXT) {
                return Ok(());
            }
            left -= 1;
            if left == 0 {
                return Err(Broken::Loop);
            }
            index = descriptor.next.into();
            if index >= size {
                return Err(Broken::Index { index, size });
            }
        }
    }

    #[inline]
    fn add(&mut self, map: &MemoryMap, descriptor: &Descriptor) -> Result<(), Broken> {
        let writable = has(descriptor, VRING_DESC_F_WRITE);
        if !writable && self.writable.last.is_some() {
            return Err(Broken::Order);
        }
        let side = if writable { &mut self.writable } else { &mut self.readable };
        let Descriptor { mut address, len, .. } = *descriptor;
        let outside = Broken::Outside { address, len };
        let mut left = u64::from(len);
        while left > 0 {
            let region = map.find(address).ok_or(outside)?;
            let offset = address - region.iova();
            let part = left.min(region.size() - offset);
            let base = region.host().ok_or(Broken::Lost)?;
            // SAFETY: the offset lies inside the region's mapping.
            let start = unsafe { base.0.add(offset as usize) };
            side.push(start, part as usize);
            left -= part;
            address = if left > 0 { address.checked_add(part).ok_or(outside)? } else { address };
        }
        Ok(())
    }

    /// Bytes to be read that are left, without those that [`Self::read_front`] has taken.
    pub(super) fn readable_bytes(&self) -> u64 {
        self.readable.bytes
    }

    /// Bytes to be written, without the status once [`Self::take_status`] has taken it.
    pub(super) fn writable_bytes(&self) -> u64 {
        self.writable.bytes
    }

    /// Takes the last writable byte.
    #[inline]
    pub(super) fn take_status(&mut self) -> Option<StatusByte> {
        let last = self.writable.last?;
        self.writable.bytes -= 1;
        if let Some(piece) = self.writable.pieces.last_mut().filter(|_| !self.writable.too_many) {
            piece.iov_len -= 1;
            if piece.iov_len == 0 {
                self.writable.pieces.pop();
            }
        }
        Some(StatusByte(last))
    }

    /// Copies the next readable bytes out; false where there are fewer, and nothing is taken.
    #[inline]
    pub(super) fn read_front(&mut self, buffer: &mut [u8]) -> bool {
        if self.readable.bytes < buffer.len() as u64 {
            return false;
        }
        let mut at = 0;
        self.readable.take(buffer.len(), |piece, len| {
            // SAFETY: the piece lies in a mapping of the map that the queue keeps, `len` is at most its length,
            // and `take` calls with lengths that add up to the buffer's.
            unsafe { std::ptr::copy_nonoverlapping(piece, buffer[at..at + len].as_mut_ptr(), len) };
            at += len;
        })
    }

    /// Writes to the front of the writable part as much as fits; says how much.
    pub(super) fn write_front(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(usize::try_from(self.writable.bytes).unwrap_or(usize::MAX));
        let mut at = 0;
        self.writable.take(len, |piece, len| {
            // SAFETY: as in `read_front`.
            unsafe { std::ptr::copy_nonoverlapping(bytes[at..at + len].as_ptr(), piece, len) };
            at += len;
        });
        at
    }

    /// The pieces to be read that are left.
    pub(super) fn readable(&self) -> Result<&[libc::iovec], TooManyPieces> {
        self.readable.rest()
    }

    /// The pieces to be written that are left.
    pub(super) fn writable(&self) -> Result<&[libc::iovec], TooManyPieces> {
        self.writable.rest()
    }
}

impl Side {
    fn new() -> Self {
        Self { pieces: Vec::with_capacity(MAX_PIECES), first: 0, bytes: 0, too_many: false, last: None }
    }

    #[inline]
    fn clear(&mut self) {
        self.pieces.clear();
        self.first = 0;
        self.bytes = 0;
        self.too_many = false;
        self.last = None;
    }

    #[inline]
    fn push(&mut self, start: NonNull<u8>, len: usize) {
        self.bytes += len as u64;
        // SAFETY: `len` isn't 0, so the last byte is inside the piece.
        self.last = Some(HostPointer(unsafe { start.add(len - 1) }));
        if self.pieces.len() == MAX_PIECES {
            self.too_many = true;
            return;
        }
        self.pieces.push(libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len });
    }

    /// Uses up `len` bytes from the front; false where pieces were left out.
    #[inline]
    fn take(&mut self, len: usize, mut each: impl FnMut(*mut u8, usize)) -> bool {
        let mut left = len;
        while left > 0 {
            let Some(piece) = self.pieces.get_mut(self.first) else { return false };
            let part = left.min(piece.iov_len);
            each(piece.iov_base.cast(), part);
            piece.iov_base = piece.iov_base.wrapping_byte_add(part);
            piece.iov_len -= part;
            left -= part;
            if piece.iov_len == 0 {
                self.first += 1;
            }
        }
        self.bytes -= len as u64;
        true
    }

    fn rest(&self) -> Result<&[libc::iovec], TooManyPieces> {
        if self.too_many { Err(TooManyPieces) } else { Ok(self.pieces.get(self.first..).unwrap_or_default()) }
    }
}

#[inline]
fn has(descriptor: &Descriptor, flag: u32) -> bool {
    u32::from(descriptor.flags) & flag != 0
}
