//! Submission and completion queues, and the arithmetic of their rings.
//!
//! A ring of `size` entries holds at most `size - 1`; head equals tail where it is empty (NVM Express Base
//! Specification 2.0, sections 3.3.1.4 and 3.3.1.5). Sizes go up to 65,536, so positions are kept as `u32`.

mod completion;
mod state;
mod submission;

pub(crate) use completion::{Completion, CompletionQueue};
pub(crate) use submission::{Fetched, SubmissionQueue};

/// Entries from `from` forward to `to`; both are below `size`.
#[inline]
#[must_use]
pub(crate) const fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to.wrapping_sub(from) } else { to.wrapping_add(size).wrapping_sub(from) }
}

/// The position after `position`.
#[inline]
#[must_use]
pub(crate) const fn after(position: u32, size: u32) -> u32 {
    let next = position.wrapping_add(1);
    if next >= size { 0 } else { next }
}

/// The position before `position`.
#[inline]
#[must_use]
pub(crate) const fn behind(position: u32, size: u32) -> u32 {
    if position == 0 { size.wrapping_sub(1) } else { position.wrapping_sub(1) }
}
