//! The in-flight region: what a frontend keeps of the requests of a backend that died.
//!
//! The layout and the order of the steps are the vhost-user specification's ("Inflight I/O tracking", split
//! virtqueues). A descriptor is marked before its request is started, and unmarked after its used entry is
//! published; entries of the last batch are chained, so whoever finds the process dead between those two steps
//! can tell. A queue that starts takes up every request that is marked, in the order in which they were made
//! available, so each is completed exactly once; a write may be carried out twice with the same data.
//!
//! A killed process leaves its stores in the order of the program, so Release on one side and program order on
//! the other are enough; no barrier against another processor is needed.
//!
//! The frontend can write the region too: an index in it that makes no sense is ignored.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::window::Window;
use crate::memory::{MapError, Region, ReleaseSignal, Rights};

/// A new region for so many queues, all zero, and its size.
pub(super) fn create(queues: u16, queue_size: u16) -> Result<(OwnedFd, u64), Errno> {
    let len_bytes = queue_bytes(queue_size) * u64::from(queues);
    let file =
        rustix::fs::memfd_create("doorbell-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len_bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((file, len_bytes))
}

/// The region that a frontend handed over.
#[derive(Debug)]
pub(super) struct InflightRegion {
    region: Arc<Region>,
    queues: u16,
    queue_size: u16,
}

impl InflightRegion {
    pub(super) fn new(
        file: impl AsFd,
        offset: u64,
        len_bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<Self, MapError> {
        if len_bytes < queue_bytes(queue_size) * u64::from(queues) {
            return Err(MapError::BadRange);
        }
        let file = Some((file.as_fd(), offset));
        let region = Region::new(0, len_bytes, Rights::READ_WRITE, file, ReleaseSignal::default())?;
        Ok(Self { region: Arc::new(region), queues, queue_size })
    }

    /// The part of a queue; `None` where the region has none.
    pub(super) fn queue(&self, index: u16, size: u16) -> Option<InflightQueue> {
        if index >= self.queues || size > self.queue_size {
            return None;
        }
        let stride = queue_bytes(self.queue_size);
        let window = Window::of_region(&self.region, stride * u64::from(index), stride as usize)?;
        window.is_aligned(8).then_some(InflightQueue {
            window,
            size,
            counter: 0,
            batch: Vec::with_capacity(size.into()),
        })
    }
}

/// One queue's part of the region.
#[derive(Debug)]
pub(super) struct InflightQueue {
    window: Window,
    size: u16,
    counter: u64,
    /// Heads whose used entries aren't published yet.
    batch: Vec<u16>,
}

impl InflightQueue {
    /// Takes up what an earlier process left: the heads in the order in which they were made available.
    /// `used_idx` is what the used ring says.
    pub(super) fn resume(&mut self, used_idx: u16) -> Vec<u16> {
        let window = &self.window;
        if window.load_u16(VERSION) == 0 {
            window.store_u16(DESC_NUM, self.size);
            window.store_u16(USED_IDX, used_idx);
            window.store_u16(VERSION, 1);
        }
        // The last batch was published, but perhaps not unmarked.
        let mut unfinished = used_idx.wrapping_sub(window.load_u16(USED_IDX)).min(self.size);
        let mut head = window.load_u16(LAST_BATCH_HEAD);
        while unfinished > 0 && head < self.size {
            window.store_u8(entry(head) + INFLIGHT, 0);
            head = window.load_u16(entry(head) + NEXT);
            unfinished -= 1;
        }
        window.store_u16(USED_IDX, used_idx);
        let mut marked: Vec<(u64, u16)> = (0..self.size)
            .filter(|&head| window.load_u8(entry(head) + INFLIGHT) == 1)
            .map(|head| (window.load_u64(entry(head) + COUNTER), head))
            .collect();
        marked.sort_unstable();
        self.counter = marked.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        marked.into_iter().map(|(_, head)| head).collect()
    }

    /// A request is about to be started.
    #[inline]
    pub(super) fn mark(&mut self, head: u16) {
        self.window.store_u64(entry(head) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.window.store_u8(entry(head) + INFLIGHT, 1);
    }

    /// A used entry is about to be published.
    #[inline]
    pub(super) fn complete(&mut self, head: u16) {
        let last = self.window.load_u16(LAST_BATCH_HEAD);
        self.window.store_u16(entry(head) + NEXT, last);
        self.window.store_u16(LAST_BATCH_HEAD, head);
        self.batch.push(head);
    }

    /// The used entries were published.
    #[inline]
    pub(super) fn published(&mut self, used_idx: u16) {
        for head in self.batch.drain(..) {
            self.window.store_u8(entry(head) + INFLIGHT, 0);
        }
        self.window.store_u16(USED_IDX, used_idx);
    }
}

/// Queue header: features (8), version (2), desc_num (2), last_batch_head (2), used_idx (2).
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const HEADER_BYTES: usize = 16;
/// Descriptor state: inflight (1), padding (5), next (2), counter (8).
const ENTRY_BYTES: usize = 16;
const INFLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Bytes of a queue's part, padded as other backends pad it.
fn queue_bytes(queue_size: u16) -> u64 {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(64) as u64
}

const fn entry(head: u16) -> usize {
    HEADER_BYTES + ENTRY_BYTES * head as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(file: &OwnedFd, len_bytes: u64) -> InflightQueue {
        InflightRegion::new(file, 0, len_bytes, 2, 8).unwrap().queue(1, 8).unwrap()
    }

    #[test]
    fn what_was_marked_is_taken_up_in_order_and_what_was_published_is_not() {
        let (file, len_bytes) = create(2, 8).unwrap();
        let mut first = queue(&file, len_bytes);
        assert!(first.resume(65_534).is_empty());
        for head in [5, 2, 7, 0] {
            first.mark(head);
        }
        // One is finished, and one is published when the process dies.
        first.complete(2);
        first.published(65_535);
        first.complete(7);
        let mut second = queue(&file, len_bytes);
        assert_eq!(second.resume(0), [5, 0]);
        second.mark(2);
        // The next process dies before it publishes anything: its entry doesn't count.
        second.complete(5);
        assert_eq!(queue(&file, len_bytes).resume(0), [5, 0, 2]);
    }

    #[test]
    fn a_batch_is_found_by_its_chain() {
        let (file, len_bytes) = create(2, 8).unwrap();
        let mut first = queue(&file, len_bytes);
        first.resume(0);
        (0..6).for_each(|head| first.mark(head));
        [3, 1, 4].iter().for_each(|&head| first.complete(head));
        assert_eq!(queue(&file, len_bytes).resume(3), [0, 2, 5]);
    }

    #[test]
    fn nonsense_in_the_region_is_ignored() {
        let (file, len_bytes) = create(2, 8).unwrap();
        let mut first = queue(&file, len_bytes);
        first.resume(0);
        first.mark(3);
        first.window.store_u16(LAST_BATCH_HEAD, 60_000);
        assert_eq!(queue(&file, len_bytes).resume(40_000), [3]);
        first.window.store_u16(LAST_BATCH_HEAD, 1);
        first.window.store_u16(entry(1) + NEXT, 1);
        assert_eq!(queue(&file, len_bytes).resume(20_000), [3]);
        assert!(InflightRegion::new(&file, 0, len_bytes - 64, 2, 8).is_err());
        assert!(InflightRegion::new(&file, 0, len_bytes, 2, 8).unwrap().queue(1, 16).is_none());
    }
}
