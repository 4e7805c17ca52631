//! What one queue has to log while a migration goes on: the data of requests that write guest memory, their status
//! bytes and the used ring.
//!
//! Data is written by the kernel, by a copy or by a worker thread, so what a request will write is kept from its
//! start to its end, in room that is there before the first request: a request that finds too little waits for
//! others to end. Everything is marked after it was written and before the used index shows it; the used index
//! itself right after it was stored.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use super::chain::MAX_PIECES;
use super::dirty_log::{DirtyLog, LogTarget};
use crate::memory::{HostPointer, MemoryMap};

/// See the module.
#[derive(Debug)]
pub(super) struct QueueLog {
    log: Arc<DirtyLog>,
    call: Option<Arc<File>>,
    /// The guest address that the used ring is logged at; `None` if it isn't to be logged.
    used: Option<u64>,
    places: Box<[Place]>,
    kept: Kept,
}

/// A region of guest memory by its place in this process.
#[derive(Clone, Copy, Debug)]
struct Place {
    host: usize,
    len_bytes: u64,
    guest: u64,
}

impl QueueLog {
    /// For a queue of `size` entries; `None` where the frontend hasn't given a log.
    pub(super) fn new(
        target: &LogTarget,
        map: &MemoryMap,
        used: Option<u64>,
        size: u16,
    ) -> Option<Box<Self>> {
        let log = Arc::clone(target.log.as_ref()?);
        let place = |region: &Arc<crate::memory::Region>| {
            let host = region.mapping()?.base().0.addr().get();
            Some(Place { host, len_bytes: region.size(), guest: region.iova() })
        };
        let mut places: Box<[Place]> = map.regions().iter().filter_map(place).collect();
        places.sort_unstable_by_key(|place| place.host);
        Some(Box::new(Self { log, call: target.call.clone(), used, places, kept: Kept::new(size) }))
    }

    /// Keeps what the request will write. False: there is no room until another request has ended.
    #[inline]
    pub(super) fn keep(&mut self, head: u16, pieces: &[libc::iovec]) -> bool {
        for piece in pieces {
            let Some(guest) = guest_address(&self.places, piece.iov_base.addr()) else { continue };
            if !self.kept.push(head, guest, piece.iov_len as u64) {
                self.kept.drain(head, |_, _| {});
                return false;
            }
        }
        true
    }

    /// Forgets what was kept: the request hasn't been started.
    pub(super) fn forget(&mut self, head: u16) {
        self.kept.drain(head, |_, _| {});
    }

    /// Marks what was kept, the status and the used entry, all of which are written.
    #[inline]
    pub(super) fn completed(&mut self, head: u16, status: Option<HostPointer>, used_offset: usize) {
        let log = &self.log;
        self.kept.drain(head, |address, len_bytes| log.mark(address, len_bytes));
        if let Some(address) = status.and_then(|status| guest_address(&self.places, status.0.addr().get())) {
            log.mark(address, 1);
        }
        self.mark_used(used_offset, 8);
    }

    /// Marks a part of the used ring that is written.
    #[inline]
    pub(super) fn mark_used(&self, offset: usize, len_bytes: u64) {
        // The address is the frontend's word: whatever it is, the log has its bounds.
        if let Some(address) = self.used.and_then(|used| used.checked_add(offset as u64)) {
            self.log.mark(address, len_bytes);
        }
    }

    /// Tells whoever wants to know that something was logged.
    #[inline]
    pub(super) fn tell(&self) {
        if let Some(call) = &self.call {
            let _ = (&**call).write(&1_u64.to_ne_bytes());
        }
    }

    /// Whether the file behind the log was truncated.
    pub(super) fn is_lost(&self) -> bool {
        self.log.is_lost()
    }
}

/// The guest's address of a place in this process.
#[inline]
fn guest_address(places: &[Place], host: usize) -> Option<u64> {
    let place = places[..places.partition_point(|place| place.host <= host)].last()?;
    let offset = (host - place.host) as u64;
    (offset < place.len_bytes).then(|| place.guest + offset)
}

/// Ranges of guest memory by request: lists in one table of a fixed size.
#[derive(Debug)]
struct Kept {
    ranges: Box<[Range]>,
    /// The first range of each request.
    first: Box<[u32]>,
    /// The first range that is free.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    address: u64,
    len_bytes: u64,
    next: u32,
}

const END: u32 = u32::MAX;

impl Kept {
    /// Room for the largest request twice, or 32 ranges an entry.
    fn new(size: u16) -> Self {
        let count = (32 * u32::from(size)).max(2 * MAX_PIECES as u32);
        let range =
            |next: u32| Range { address: 0, len_bytes: 0, next: if next < count { next } else { END } };
        Self { ranges: (1..=count).map(range).collect(), first: vec![END; size.into()].into(), free: 0 }
    }

    #[inline]
    fn push(&mut self, head: u16, address: u64, len_bytes: u64) -> bool {
        let first = &mut self.first[usize::from(head)];
        if let Some(last) = self.ranges.get_mut(*first as usize)
            && last.address.checked_add(last.len_bytes) == Some(address)
        {
            last.len_bytes += len_bytes;
            return true;
        }
        let Some(range) = self.ranges.get_mut(self.free as usize) else { return false };
        let next = std::mem::replace(&mut range.next, *first);
        (range.address, range.len_bytes) = (address, len_bytes);
        *first = std::mem::replace(&mut self.free, next);
        true
    }

    #[inline]
    fn drain(&mut self, head: u16, mut each: impl FnMut(u64, u64)) {
        let first = &mut self.first[usize::from(head)];
        while let Some(range) = self.ranges.get_mut(*first as usize) {
            each(range.address, range.len_bytes);
            let next = std::mem::replace(&mut range.next, self.free);
            self.free = std::mem::replace(first, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(kept: &mut Kept, head: u16) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        kept.drain(head, |address, len_bytes| all.push((address, len_bytes)));
        all.sort_unstable();
        all
    }

    #[test]
    fn ranges_come_back_once_by_request_and_neighbours_are_merged() {
        let mut kept = Kept::new(4);
        for (head, address, len_bytes) in [(0, 0, 10), (3, 100, 5), (0, 10, 10), (0, 30, 1), (3, 50, 5)] {
            assert!(kept.push(head, address, len_bytes));
        }
        assert_eq!(drained(&mut kept, 0), [(0, 20), (30, 1)]);
        assert_eq!(drained(&mut kept, 0), []);
        assert_eq!(drained(&mut kept, 3), [(50, 5), (100, 5)]);
    }

    #[test]
    fn the_room_is_bounded_and_comes_back() {
        let mut kept = Kept::new(4);
        for _ in 0..3 {
            let room = (0..).take_while(|at| kept.push((at % 2) as u16, at * 8192, 1)).count();
            assert_eq!(room, 2 * MAX_PIECES);
            assert!(!kept.push(2, 0, 1));
            assert_eq!(drained(&mut kept, 0).len(), MAX_PIECES);
            assert_eq!(drained(&mut kept, 1).len(), MAX_PIECES);
        }
    }

    #[test]
    fn a_place_in_this_process_has_one_guest_address() {
        let places = [(0x1000, 0x1000, 0x8000), (0x2000, 0x3000, 0), (0x9000, 0x800, 0x4000)]
            .map(|(host, len_bytes, guest)| Place { host, len_bytes, guest });
        for (host, guest) in [
            (0xFFF, None),
            (0x1000, Some(0x8000)),
            (0x1FFF, Some(0x8FFF)),
            (0x2000, Some(0)),
            (0x4FFF, Some(0x2FFF)),
            (0x5000, None),
            (0x9400, Some(0x4400)),
            (0x9800, None),
        ] {
            assert_eq!(guest_address(&places, host), guest, "{host:#x}");
        }
    }
}
