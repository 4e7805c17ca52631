//! A virtqueue at work: from descriptor chains to storage operations and back.
//!
//! Requests (`request`, and `ranges` of those without data) are the same
//! [`StorageCommand`](crate::storage::StorageCommand)s that the NVMe side makes; what they pass on their way is the
//! [`Medium`]'s affair.
//!
//! A request that the storage has no room for is parsed again later; nothing of the first look is kept.

mod ranges;
mod request;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};

use self::ranges::Ranges;
use self::request::Step;
use super::chain::{Chain, StatusByte};
use super::counters::QueueCounters;
use super::disk::{Disk, F_EVENT_IDX};
use super::inflight::InflightQueue;
use super::medium::Medium;
use super::queue_log::QueueLog;
use super::ring::{Broken, Ring, RingAddresses, RingError, USED_IDX};
use crate::memory::MemoryMap;
use crate::storage::{IoContext, StorageError, Token};

/// Requests that a queue may take in one turn.
const BATCH: usize = 32;

/// Bytes that a batch moves at once before the completions it has are published.
const PUBLISH_BYTES: u64 = 64 << 10;

/// What a poller lends a queue.
#[derive(Debug)]
pub(super) struct Io<'a> {
    pub(super) context: &'a mut IoContext,
    pub(super) storage: &'a mut Medium,
    pub(super) chain: &'a mut Chain,
    /// The queue's place on its poller.
    pub(super) lane: u16,
}

/// What a queue is made of.
#[derive(Debug)]
pub(super) struct QueueConfig {
    pub(super) index: u16,
    pub(super) addresses: RingAddresses,
    pub(super) size: u16,
    /// Where the available ring is continued, unless the in-flight region knows better.
    pub(super) base: u16,
    /// Feature bits that the driver took.
    pub(super) features: u64,
    /// `None`: nobody kicks, the ring has to be looked at.
    pub(super) kick: Option<File>,
    /// `None`: nobody wants to be called.
    pub(super) call: Option<File>,
    /// Told when the ring is broken.
    pub(super) err: Option<File>,
    pub(super) inflight: Option<InflightQueue>,
    /// `None`: nothing is logged.
    pub(super) log: Option<Box<QueueLog>>,
}

/// See the module. It keeps its map, and with it every mapping that its rings and flights point into, until
/// nothing is in flight.
#[derive(Debug)]
pub(super) struct Virtqueue {
    index: u16,
    features: u64,
    disk: Arc<Disk>,
    map: Arc<MemoryMap>,
    ring: Ring,
    inflight: Option<InflightQueue>,
    log: Option<Box<QueueLog>>,
    kick: Option<File>,
    call: Option<File>,
    err: Option<File>,
    /// By the head of the chain.
    flights: Box<[Flight]>,
    /// Flights that wait for room in the storage, or that an earlier process left.
    pending: VecDeque<u16>,
    in_flight: u16,
    /// Used entries that the driver doesn't see yet.
    unpublished: u16,
    counters: QueueCounters,
    /// The driver is called at the next chance whether it wants to be or not.
    call_anyway: bool,
    broken: bool,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    active: bool,
    status: Option<StatusByte>,
    /// `used.len` if all goes well.
    used_len: u32,
    /// Bytes of data.
    data_bytes: u64,
    ranges: Ranges,
}

const OK: u8 = VIRTIO_BLK_S_OK as u8;
const IOERR: u8 = VIRTIO_BLK_S_IOERR as u8;
const UNSUPP: u8 = VIRTIO_BLK_S_UNSUPP as u8;

impl Virtqueue {
    pub(super) fn new(config: QueueConfig, disk: Arc<Disk>, map: Arc<MemoryMap>) -> Result<Self, RingError> {
        let QueueConfig { index, addresses, size, base, features, kick, call, err, mut inflight, log } =
            config;
        let mut ring = Ring::new(&map, addresses, size, features & F_EVENT_IDX != 0)?;
        let used_idx = ring.published();
        let left = inflight.as_mut().map(|inflight| inflight.resume(used_idx)).unwrap_or_default();
        let mut flights = vec![Flight::default(); size.into()].into_boxed_slice();
        for &head in &left {
            flights[usize::from(head)].active = true;
        }
        // Each entry that an earlier process took is either used or marked.
        let base = if left.is_empty() { base } else { used_idx.wrapping_add(left.len() as u16) };
        ring.set_next_available(base);
        let mut pending = VecDeque::with_capacity(size.into());
        let in_flight = left.len() as u16;
        pending.extend(left);
        Ok(Self {
            index,
            features,
            disk,
            map,
            ring,
            call_anyway: inflight.is_some(),
            inflight,
            log,
            kick,
            call,
            err,
            flights,
            pending,
            in_flight,
            unpublished: 0,
            counters: QueueCounters::default(),
            broken: false,
        })
    }

    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// The eventfd that the driver kicks.
    pub(super) fn kick(&self) -> Option<&File> {
        self.kick.as_ref()
    }

    /// Requests that the storage works on or that wait for it.
    pub(super) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Whether a request waits for room that doesn't announce itself.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The entry of the available ring that would be taken next: the answer to GET_VRING_BASE.
    pub(super) fn base(&self) -> u16 {
        self.ring.next_available()
    }

    /// Another eventfd for calls. What the old one was told may have been lost.
    pub(super) fn set_call(&mut self, call: Option<File>) {
        self.call = call;
        self.call_anyway = true;
    }

    /// What it has done so far. The kicks are those that nobody has read off the eventfd yet.
    pub(super) fn counters(&mut self) -> &QueueCounters {
        if let Some(kick) = &self.kick {
            let mut counter = [0; 8];
            let slices = &mut [std::io::IoSliceMut::new(&mut counter)];
            // Whatever a frontend has handed over, and whatever it does with it: this doesn't wait.
            let flags = rustix::io::ReadWriteFlags::NOWAIT;
            if let Ok(8) = rustix::io::preadv2(kick, slices, u64::MAX, flags) {
                self.counters.kicks = self.counters.kicks.wrapping_add(u64::from_ne_bytes(counter));
            }
        }
        &self.counters
    }

    /// The eventfds, for the queue that comes after this one.
    pub(super) fn into_eventfds(self) -> [Option<File>; 3] {
        [self.kick, self.call, self.err]
    }

    /// Takes requests and starts them; `more` allows new ones. Says how many steps were made.
    #[inline]
    pub(super) fn fetch(&mut self, io: &mut Io<'_>, more: bool) -> usize {
        if self.broken {
            return 0;
        }
        if self.ring.disarm()
            && let Some(log) = &self.log
        {
            log.mark_used(self.ring.wish_offset(), 2);
        }
        let mut moved = 0;
        for taken in 0..BATCH {
            let next = match self.pending.pop_front() {
                Some(head) => Some(head),
                None if more => match self.take() {
                    Ok(next) => next,
                    Err(broken) => {
                        self.break_ring(broken);
                        return taken;
                    }
                },
                None => None,
            };
            let Some(head) = next else { return taken };
            match self.start(head, io) {
                Ok(Step::Done(status)) => {
                    moved += self.complete(head, status);
                    if moved >= PUBLISH_BYTES {
                        moved = 0;
                        self.publish();
                    }
                }
                Ok(Step::Queued) => {}
                Ok(Step::Busy) => {
                    self.pending.push_front(head);
                    return taken;
                }
                Err(broken) => {
                    self.forget(head);
                    self.break_ring(broken);
                    return taken;
                }
            }
        }
        BATCH
    }

    /// The storage has finished an operation of the request.
    pub(super) fn reaped(&mut self, head: u16, result: Result<(), StorageError>, io: &mut Io<'_>) {
        let step = match result {
            Err(error) => {
                self.flights[usize::from(head)].ranges.clear();
                Step::Done(self.failed(error))
            }
            Ok(()) => self.continue_ranges(head, io),
        };
        match step {
            Step::Done(status) => {
                self.complete(head, status);
            }
            Step::Queued => {}
            // A broken ring starts nothing more, and whoever takes the queue back mustn't wait for it.
            Step::Busy if self.broken => self.forget(head),
            Step::Busy => self.pending.push_back(head),
        }
    }

    /// Shows the driver what has ended since the last time, and calls it if it wants.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.unpublished > 0 {
            self.unpublished = 0;
            self.ring.publish();
            if let Some(log) = &self.log {
                log.mark_used(USED_IDX, 2);
                log.tell();
            }
            if let Some(inflight) = &mut self.inflight {
                inflight.published(self.ring.published());
            }
            if self.ring.wants_call() || self.call_anyway {
                self.call_driver();
            }
        } else if self.call_anyway {
            self.call_driver();
        }
    }

    /// Asks for a kick with the next request. False: there is one already, or the device has to look by itself.
    pub(super) fn arm(&mut self) -> bool {
        if self.broken {
            return true;
        }
        let armed = self.ring.arm();
        if let Some(log) = &self.log {
            log.mark_used(self.ring.wish_offset(), 2);
        }
        armed
    }

    /// Stops the ring where its memory was lost.
    pub(super) fn check_memory(&mut self) {
        if !self.broken && (self.ring.is_lost() || self.map.is_poisoned()) {
            self.break_ring(Broken::Lost);
        }
        if !self.broken && self.log.as_ref().is_some_and(|log| log.is_lost()) {
            self.break_ring(Broken::LogLost);
        }
    }

    fn call_driver(&mut self) {
        self.call_anyway = false;
        if let Some(call) = &mut self.call {
            self.counters.notifications += 1;
            // A counter that is full is readable as well, and a frontend that hands something else over has
            // only itself to blame: the descriptor doesn't block.
            let _ = call.write(&1_u64.to_ne_bytes());
        }
    }

    #[inline]
    fn take(&mut self) -> Result<Option<u16>, Broken> {
        let Some(head) = self.ring.take()? else { return Ok(None) };
        let flight = &mut self.flights[usize::from(head)];
        if flight.active {
            return Err(Broken::InFlight(head));
        }
        flight.active = true;
        flight.ranges.clear();
        self.in_flight += 1;
        self.counters.took(head);
        if let Some(inflight) = &mut self.inflight {
            inflight.mark(head);
        }
        Ok(Some(head))
    }

    /// Ends a request. Returns the bytes that were moved for it.
    #[inline]
    fn complete(&mut self, head: u16, status: u8) -> u64 {
        let flight = &mut self.flights[usize::from(head)];
        flight.active = false;
        let used_len = if status == OK { flight.used_len } else { 1 };
        let data_bytes = flight.data_bytes;
        let status_byte = flight.status.take();
        if let Some(byte) = status_byte {
            byte.write(status);
        }
        // Only a read's used length tells of data.
        let (read, written) = match (status == OK, used_len > 1) {
            (false, _) => (0, 0),
            (true, true) => (data_bytes, 0),
            (true, false) => (0, data_bytes),
        };
        self.counters.ended(head, status == OK, read, written);
        let used_offset = self.ring.push_used(head, used_len);
        if let Some(log) = &mut self.log {
            log.completed(head, status_byte.map(StatusByte::place), used_offset);
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.complete(head);
        }
        self.in_flight -= 1;
        self.unpublished += 1;
        data_bytes
    }

    fn forget(&mut self, head: u16) {
        self.flights[usize::from(head)].active = false;
        self.counters.forgot(head);
        if let Some(log) = &mut self.log {
            log.forget(head);
        }
        self.in_flight -= 1;
    }

    /// The ring takes nothing more; what is in flight still ends.
    #[cold]
    fn break_ring(&mut self, broken: Broken) {
        self.broken = true;
        self.in_flight -= self.pending.len() as u16;
        self.pending.clear();
        crate::rate_limit::warn_sometimes(|| {
            tracing::warn!(queue = self.index, "the driver broke its ring, which stops: {broken}");
        });
        if let Some(err) = &mut self.err {
            let _ = err.write(&1_u64.to_ne_bytes());
        }
    }
}

/// The token of a request: its queue's lane and its head.
#[inline]
pub(super) const fn token(lane: u16, head: u16) -> Token {
    (lane as u64) << 16 | head as u64
}

/// Lane and head of a token.
#[inline]
pub(super) const fn split_token(token: Token) -> (u16, u16) {
    ((token >> 16) as u16, token as u16)
}
