//! Commands in flight of one context: a fixed table of slots, each with a copy of its segment list.
//!
//! Nothing is allocated after the table is made. A short list sits inside the slot, a long one in a
//! row of a second table whose pages are touched only when they are needed. The rows never move, so
//! the kernel and worker threads may read a list as long as its slot is taken.

#![expect(unsafe_code, reason = "segment lists cross threads")]

use std::sync::Arc;

use super::command::Token;
use super::file::FileShared;

/// See the module.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    rows: Box<[Segment]>,
    free: Vec<u32>,
    max_segments: usize,
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) token: Token,
    pub(super) work: Work,
    pub(super) cancelled: bool,
    /// The list starts here; it moves up as a transfer goes on.
    first: u32,
    count: u32,
    inline: [Segment; INLINE],
}

/// Who works on a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Nobody: it is free.
    None,
    /// The kernel, or a submission entry that it will get.
    Ring(RingWork),
    /// A worker thread.
    Worker,
}

/// What the ring does for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingWork {
    /// Index of the registered file.
    pub(super) file: u32,
    pub(super) kind: RingKind,
    /// Of what is left.
    pub(super) offset_bytes: u64,
    /// What is left.
    pub(super) len_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RingKind {
    Read,
    Write { fua: bool },
    Flush,
}

/// A file registered with a ring.
#[derive(Debug)]
pub(super) struct RingFile {
    pub(super) shared: Arc<FileShared>,
    /// One for each queue, and one here.
    pub(super) users: Arc<()>,
    pub(super) in_flight: u32,
}

const INLINE: usize = 4;

/// An iovec that may be sent: what it points at is guest memory, which belongs to no thread.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
struct Segment(libc::iovec);

// SAFETY: an address and a length; whoever follows the address argues for itself.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    const NONE: Self = Self(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
}

impl Slots {
    pub(super) fn new(slots: u32, max_segments: u32) -> Self {
        let max_segments = max_segments.clamp(1, libc::UIO_MAXIOV as u32) as usize;
        let empty = || Slot {
            token: 0,
            work: Work::None,
            cancelled: false,
            first: 0,
            count: 0,
            inline: [Segment::NONE; INLINE],
        };
        Self {
            slots: (0..slots).map(|_| empty()).collect(),
            rows: zeroed_rows(slots as usize * max_segments),
            free: (0..slots).rev().collect(),
            max_segments,
        }
    }

    /// A free slot with a copy of `segments`, which fit ([`Self::fits`]).
    #[inline]
    pub(super) fn take(&mut self, token: Token, work: Work, segments: &[libc::iovec]) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.token = token;
        slot.work = work;
        slot.cancelled = false;
        slot.first = 0;
        slot.count = segments.len() as u32;
        let row = if segments.len() <= INLINE {
            &mut slot.inline[..]
        } else {
            &mut self.rows[index as usize * self.max_segments..][..self.max_segments]
        };
        for (to, from) in row.iter_mut().zip(segments) {
            to.0 = *from;
        }
        Some(index)
    }

    /// Whether a list of this length can be kept.
    #[inline]
    pub(super) fn fits(&self, segments: usize) -> bool {
        segments <= self.max_segments
    }

    #[inline]
    pub(super) fn release(&mut self, index: u32) -> Token {
        let slot = &mut self.slots[index as usize];
        slot.work = Work::None;
        self.free.push(index);
        slot.token
    }

    #[inline]
    pub(super) fn get(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// What is left of the list.
    #[inline]
    pub(super) fn segments(&mut self, index: u32) -> &mut [libc::iovec] {
        let slot = &mut self.slots[index as usize];
        let row = if slot.count as usize <= INLINE {
            &mut slot.inline[..]
        } else {
            &mut self.rows[index as usize * self.max_segments..][..self.max_segments]
        };
        let left = &mut row[slot.first as usize..slot.count as usize];
        // SAFETY: `Segment` is a transparent wrapper of `iovec`.
        unsafe { &mut *(std::ptr::from_mut(left) as *mut [libc::iovec]) }
    }

    /// Takes `done` bytes from the front of the list.
    pub(super) fn advance(&mut self, index: u32, done: usize) {
        let mut left = done;
        let mut whole = 0;
        for segment in self.segments(index) {
            if left < segment.iov_len {
                segment.iov_base = segment.iov_base.wrapping_byte_add(left);
                segment.iov_len -= left;
                break;
            }
            left -= segment.iov_len;
            whole += 1;
        }
        self.get(index).first += whole;
    }

    /// The slot in flight with this token.
    pub(super) fn find(&self, token: Token) -> Option<u32> {
        let found = self.slots.iter().position(|slot| slot.work != Work::None && slot.token == token)?;
        Some(found as u32)
    }

    pub(super) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }
}

/// Rows of null segments, from memory that is already zero, so that unused rows cost nothing.
fn zeroed_rows(count: usize) -> Box<[Segment]> {
    let rows = Box::<[Segment]>::new_zeroed_slice(count);
    // SAFETY: all zero is a null base and a length of 0.
    unsafe { rows.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advancing_walks_through_inline_and_long_lists() {
        for count in [1, INLINE, INLINE + 1, 100] {
            let list: Vec<_> = (0..count)
                .map(|at| libc::iovec {
                    iov_base: std::ptr::without_provenance_mut(0x1000 * (at + 1)),
                    iov_len: 10,
                })
                .collect();
            let mut slots = Slots::new(2, 100);
            let _other = slots.take(1, Work::Worker, &list).expect("slot");
            let index = slots.take(2, Work::Worker, &list).expect("slot");
            assert_eq!(slots.find(2), Some(index));
            let mut left = count * 10;
            while left > 0 {
                let step = left.min(7);
                slots.advance(index, step);
                left -= step;
                let sum: usize = slots.segments(index).iter().map(|segment| segment.iov_len).sum();
                assert_eq!(sum, left);
                if let Some(segment) = slots.segments(index).first() {
                    let done = count * 10 - left;
                    assert_eq!(segment.iov_base.addr(), 0x1000 * (done / 10 + 1) + done % 10);
                }
            }
            assert!(slots.take(3, Work::Worker, &[]).is_none());
            assert_eq!(slots.release(index), 2);
            assert_eq!(slots.in_flight(), 1);
        }
    }
}
