//! A split virtqueue's three parts in guest memory (VIRTIO 1.3, 2.7), seen from the device.
//!
//! Nothing here trusts the guest: an index or a head that no driver would write is an error of the ring
//! ([`Broken`]), which then stops; the process and other rings go on.
//!
//! Barriers. The driver writes an entry, then `avail.idx` behind a write barrier: we load the index with
//! Acquire. We write an entry, then `used.idx` with Release, against the driver's read barrier. Sleep and
//! interrupts are the usual two-sided protocols: each side stores, passes a full barrier, and loads what the
//! other has stored; both sides' full barriers are named where they stand.

use std::sync::atomic::{Ordering, fence};

use thiserror::Error;
use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

use super::window::Window;
use crate::memory::MemoryMap;

/// The largest queue that is taken, which is also what VMMs offer at most.
pub(super) const MAX_QUEUE_SIZE: u16 = 1024;

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// Where a ring's parts are, as guest physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingAddresses {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// Why a ring can't be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum RingError {
    #[error("the {0} isn't inside one region of guest memory")]
    Outside(&'static str),
    #[error("the {0} isn't aligned")]
    Misaligned(&'static str),
    #[error("a queue of {0} entries: it has to be a power of two up to {MAX_QUEUE_SIZE}")]
    Size(u32),
}

/// What a driver did that no driver may do. The ring stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Broken {
    #[error("avail.idx is {ahead} entries ahead in a ring of {size}")]
    Ahead { ahead: u16, size: u16 },
    #[error("descriptor index {index} in a table of {size}")]
    Index { index: u32, size: u32 },
    #[error("descriptor {0} was made available while it is in flight")]
    InFlight(u16),
    #[error("a descriptor chain that is longer than its table, so it has a loop")]
    Loop,
    #[error("an indirect descriptor where none is allowed")]
    Indirect,
    #[error("an indirect table of {0} bytes")]
    IndirectTable(u32),
    #[error("a descriptor for {len} bytes at {address:#x}, outside guest memory")]
    Outside { address: u64, len: u32 },
    #[error("a descriptor to be read behind one to be written")]
    Order,
    #[error("a request without a header of 16 bytes")]
    NoHeader,
    #[error("a request without room for its status")]
    NoStatus,
    #[error("the file behind guest memory was truncated")]
    Lost,
    #[error("the file behind the dirty log was truncated")]
    LogLost,
}

/// A descriptor, copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

impl Descriptor {
    /// Copies one out of a table, once.
    #[inline]
    pub(super) fn read(table: &Window, index: usize) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] =
            table.copy_16(index * DESCRIPTOR_BYTES);
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ring {
    size: u16,
    event_idx: bool,
    descriptors: Window,
    available: Window,
    used: Window,
    /// The entry of the available ring that is taken next.
    next_available: u16,
    /// `avail.idx` as it was last seen: the cache line is loaded only when this is used up.
    seen_available: u16,
    /// The entry of the used ring that is written next; published up to `published`.
    next_used: u16,
    published: u16,
    /// `used.idx` when the driver was last considered for a call; `None` makes the next one certain.
    considered: Option<u16>,
    /// The driver was told not to kick (only without EVENT_IDX).
    kicks_off: bool,
}

impl Ring {
    pub(super) fn new(
        map: &MemoryMap,
        addresses: RingAddresses,
        size: u16,
        event_idx: bool,
    ) -> Result<Self, RingError> {
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            return Err(RingError::Size(size.into()));
        }
        let entries = usize::from(size);
        // The event fields at the ends exist whether they are used or not (2.7.6, 2.7.8).
        let window = |address, len_bytes, align, name| {
            let window = Window::of_guest(map, address, len_bytes).ok_or(RingError::Outside(name))?;
            if window.is_aligned(align) { Ok(window) } else { Err(RingError::Misaligned(name)) }
        };
        let descriptors = window(addresses.descriptors, entries * DESCRIPTOR_BYTES, 16, "descriptor table")?;
        let available = window(addresses.available, 6 + 2 * entries, 2, "available ring")?;
        let used = window(addresses.used, 6 + 8 * entries, 4, "used ring")?;
        let next_used = used.load_u16(USED_IDX);
        Ok(Self {
            size,
            event_idx,
            descriptors,
            available,
            used,
            next_available: 0,
            seen_available: 0,
            next_used,
            published: next_used,
            considered: None,
            kicks_off: false,
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Continues at this entry of the available ring.
    pub(super) fn set_next_available(&mut self, index: u16) {
        self.next_available = index;
        self.seen_available = index;
    }

    pub(super) fn next_available(&self) -> u16 {
        self.next_available
    }

    pub(super) fn published(&self) -> u16 {
        self.published
    }

    pub(super) fn descriptors(&self) -> &Window {
        &self.descriptors
    }

    /// Whether memory of the ring was lost by a truncated file.
    pub(super) fn is_lost(&self) -> bool {
        self.descriptors.is_lost() || self.available.is_lost() || self.used.is_lost()
    }

    /// The head of the next chain that the driver has made available.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<u16>, Broken> {
        if self.seen_available == self.next_available {
            let seen = self.available.load_u16(AVAIL_IDX);
            let ahead = seen.wrapping_sub(self.next_available);
            if ahead > self.size {
                return Err(Broken::Ahead { ahead, size: self.size });
            }
            self.seen_available = seen;
            if ahead == 0 {
                return Ok(None);
            }
        }
        let slot = usize::from(self.next_available & (self.size - 1));
        let head = self.available.load_u16(AVAIL_RING + 2 * slot);
        if head >= self.size {
            return Err(Broken::Index { index: head.into(), size: self.size.into() });
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Writes a used entry that the driver doesn't see yet. Returns its place in the used ring, 8 bytes.
    #[inline]
    pub(super) fn push_used(&mut self, head: u16, len: u32) -> usize {
        let entry = USED_RING + 8 * usize::from(self.next_used & (self.size - 1));
        self.used.store_u32(entry, head.into());
        self.used.store_u32(entry + 4, len);
        self.next_used = self.next_used.wrapping_add(1);
        entry
    }

    /// Shows the driver what was pushed.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.published = self.next_used;
        self.used.store_u16(USED_IDX, self.published);
    }

    /// Whether the driver wants a call for what was published since the last time (2.7.7).
    #[inline]
    pub(super) fn wants_call(&mut self) -> bool {
        // Pairs with the driver's full barrier between its store of used_event (or of the flag) and its last
        // look at used.idx.
        fence(Ordering::SeqCst);
        let before = self.considered.replace(self.published);
        if !self.event_idx {
            return u32::from(self.available.load_u16(AVAIL_FLAGS)) & VRING_AVAIL_F_NO_INTERRUPT == 0;
        }
        let Some(before) = before else { return true };
        let event = self.available.load_u16(AVAIL_RING + 2 * usize::from(self.size));
        let passed = self.published.wrapping_sub(event).wrapping_sub(1);
        passed < self.published.wrapping_sub(before)
    }

    /// The place in the used ring of what [`Self::arm`] and [`Self::disarm`] write, 2 bytes.
    pub(super) fn wish_offset(&self) -> usize {
        if self.event_idx { USED_RING + 8 * usize::from(self.size) } else { USED_FLAGS }
    }

    /// Asks for a kick with the next entry. False: there is one already.
    pub(super) fn arm(&mut self) -> bool {
        if self.event_idx {
            self.used.store_u16(USED_RING + 8 * usize::from(self.size), self.next_available);
        } else {
            self.used.store_u16(USED_FLAGS, 0);
            self.kicks_off = false;
        }
        // Pairs with the driver's full barrier between its store of avail.idx and its look at avail_event (or
        // at the flag).
        fence(Ordering::SeqCst);
        self.available.load_u16(AVAIL_IDX) == self.next_available
    }

    /// No kicks, please: somebody looks anyway. With EVENT_IDX an event index left behind says so by itself.
    /// Whether anything was written.
    #[inline]
    pub(super) fn disarm(&mut self) -> bool {
        if self.event_idx || self.kicks_off {
            return false;
        }
        self.kicks_off = true;
        self.used.store_u16(USED_FLAGS, VRING_USED_F_NO_NOTIFY as u16);
        true
    }
}

const AVAIL_FLAGS: usize = 0;
const AVAIL_IDX: usize = 2;
const AVAIL_RING: usize = 4;
const USED_FLAGS: usize = 0;
/// Of the used index, 2 bytes.
pub(super) const USED_IDX: usize = 2;
const USED_RING: usize = 4;
