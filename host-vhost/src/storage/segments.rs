//! Raw copies between the medium and guest memory, one `memcpy` a segment.
//!
//! A guest writes its memory whenever it likes, so no reference to it exists here. Whether the
//! segments add up is checked before ([`StorageCommand::check`](super::StorageCommand)).

#![expect(unsafe_code, reason = "copies between raw addresses")]

use std::ptr;

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
