//! Raw copies between the medium and guest memory, one `memcpy` a segment.
//!
//! A guest writes its memory whenever it likes, so no reference to it exists here. Whether the
//! segments add up is checked before ([`StorageCommand::check`](super::StorageCommand)).

#![expect(unsafe_code, reason = "copies between raw addresses")]

use std::ptr;

use super::stream;

/// Copies from `source` into the segments in order; null segments are skipped.
///
/// # Safety
///
/// `source` is readable for the sum of the lengths; each segment that isn't null is writable; they
/// don't overlap.
#[inline]
pub(super) unsafe fn scatter(mut source: *const u8, segments: &[libc::iovec]) {
    for segment in segments {
        if !segment.iov_base.is_null() {
            // SAFETY: both sides are valid for the length, by this function's contract.
            unsafe { ptr::copy_nonoverlapping(source, segment.iov_base.cast::<u8>(), segment.iov_len) };
        }
        source = source.wrapping_add(segment.iov_len);
    }
}

/// Copies the segments in order to `destination`, past the caches: it is a medium.
///
/// # Safety
///
/// As for [`gather`].
#[inline]
pub(super) unsafe fn gather_to_medium(mut destination: *mut u8, segments: &[libc::iovec]) {
    for segment in segments {
        // SAFETY: both sides are valid for the length, by this function's contract.
        unsafe { stream::copy(segment.iov_base.cast::<u8>(), destination, segment.iov_len) };
        destination = destination.wrapping_add(segment.iov_len);
    }
}

/// Copies the segments in order to `destination`.
///
/// # Safety
///
/// `destination` is writable for the sum of the lengths; each segment is readable; they don't
/// overlap.
#[inline]
pub(super) unsafe fn gather(mut destination: *mut u8, segments: &[libc::iovec]) {
    for segment in segments {
        // SAFETY: both sides are valid for the length, by this function's contract.
        unsafe { ptr::copy_nonoverlapping(segment.iov_base.cast::<u8>(), destination, segment.iov_len) };
        destination = destination.wrapping_add(segment.iov_len);
    }
}

/// Whether `medium` and the segments hold the same bytes.
///
/// # Safety
///
/// `medium` is readable for the sum of the lengths, and so is each segment.
pub(super) unsafe fn equals(mut medium: *const u8, segments: &[libc::iovec]) -> bool {
    for segment in segments {
        // SAFETY: both sides are valid for the length, by this function's contract. memcmp makes no
        // reference, so a guest that writes meanwhile only makes the answer stale.
        let order = unsafe { libc::memcmp(medium.cast(), segment.iov_base, segment.iov_len) };
        if order != 0 {
            return false;
        }
        medium = medium.wrapping_add(segment.iov_len);
    }
    true
}

/// Where a copy in several pieces has got to.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    segments: &'a [libc::iovec],
    /// Bytes of the first segment that are done.
    done: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(segments: &'a [libc::iovec]) -> Self {
        Self { segments, done: 0 }
    }

    /// The next piece of at most `len` bytes that lies in one segment.
    fn next(&mut self, len: usize) -> Option<libc::iovec> {
        loop {
            let (first, rest) = self.segments.split_first()?;
            let left = first.iov_len - self.done;
            if left == 0 {
                self.segments = rest;
                self.done = 0;
                continue;
            }
            let len = left.min(len);
            let iov_base = if first.iov_base.is_null() {
                first.iov_base
            } else {
                first.iov_base.wrapping_byte_add(self.done)
            };
            self.done += len;
            return Some(libc::iovec { iov_base, iov_len: len });
        }
    }

    /// The next `buffer.len()` bytes of the segments, from `buffer`.
    ///
    /// # Safety
    ///
    /// As for [`scatter`].
    pub(super) unsafe fn scatter(&mut self, buffer: &[u8]) {
        let mut at = 0;
        while at < buffer.len() {
            let Some(piece) = self.next(buffer.len() - at) else { return };
            // SAFETY: the piece is inside the buffer and inside a segment.
            unsafe { scatter(buffer[at..].as_ptr(), &[piece]) };
            at += piece.iov_len;
        }
    }

    /// The next `buffer.len()` bytes of the segments, into `buffer`.
    ///
    /// # Safety
    ///
    /// As for [`gather`].
    pub(super) unsafe fn gather(&mut self, buffer: &mut [u8]) {
        let mut at = 0;
        while at < buffer.len() {
            let Some(piece) = self.next(buffer.len() - at) else { return };
            // SAFETY: the piece is inside the buffer and inside a segment.
            unsafe { gather(buffer[at..].as_mut_ptr(), &[piece]) };
            at += piece.iov_len;
        }
    }

    /// Whether the next `buffer.len()` bytes of the segments are those of `buffer`.
    ///
    /// # Safety
    ///
    /// As for [`equals`].
    pub(super) unsafe fn equals(&mut self, buffer: &[u8]) -> bool {
        let mut at = 0;
        while at < buffer.len() {
            let Some(piece) = self.next(buffer.len() - at) else { return false };
            // SAFETY: the piece is inside the buffer and inside a segment.
            if !unsafe { equals(buffer[at..].as_ptr(), &[piece]) } {
                return false;
            }
            at += piece.iov_len;
        }
        true
    }
}
