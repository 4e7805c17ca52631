//! A driver and a queue group on one thread.

use std::collections::BTreeMap;

use super::driver::{Driver, DriverQueue};
use super::entry::with_cid;
use super::ring::{Ring, ShadowRule};
use super::{RamMemory, Storage};
use crate::command::IoCommand;
use crate::engine::GroupEngine;
use crate::group::{Armed, Completed, GroupConfig, QueueGroup, QueueStatistics};
use crate::message::{DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest};
use crate::namespace::Namespace;
use crate::spec::queue_entry::{CompletionQueueEntry, SubmissionQueueEntry};
use crate::spec::status::Status;
use crate::sync::AtomicU32;

/// Guest address of the RAM of a [`Pair`].
pub const RAM_BASE: u64 = 0x10_0000;
/// Bytes of it.
pub const RAM_BYTES: u64 = 16 << 20;
/// Queue identifiers that have doorbell registers.
pub const QUEUE_IDENTIFIERS: u16 = 512;

/// A queue group that a [`PairOf`] can make.
pub trait TestGroup: GroupEngine {
    /// A group without queues or namespaces.
    fn make(config: GroupConfig) -> Self;
}

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize> TestGroup
    for QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    fn make(config: GroupConfig) -> Self {
        Self::new(config)
    }
}

/// A [`PairOf`] the core's own queue group with tables of these sizes.
pub type Pair<const QUEUES: usize = 4, const COMMANDS: usize = 64, const NAMESPACES: usize = 2> =
    PairOf<QueueGroup<QUEUES, COMMANDS, NAMESPACES>>;

/// A driver and a queue group, the memory and the registers between them, and a storage behind.
///
/// The device *sleeps*: after [`PairOf::sleep`] has succeeded it does nothing until a register is written, a
/// command ends or a request comes. So a lost wake-up is a command that never completes.
#[derive(Debug)]
pub struct PairOf<G> {
    /// Guest memory.
    pub memory: RamMemory,
    /// Doorbell registers.
    pub registers: Vec<AtomicU32>,
    /// The driver.
    pub driver: Driver,
    /// The device.
    pub group: G,
    /// The media.
    pub storage: Storage,
    /// Commands that the group gave out and that haven't ended.
    pub in_flight: Vec<IoCommand>,
    /// Every completion the driver has taken, by submission queue and command identifier.
    pub completed: Vec<CompletionQueueEntry>,
    /// Events from the group.
    pub events: Vec<GroupEvent>,
    /// Interrupts, by vector.
    pub interrupts: BTreeMap<u16, u64>,
    /// Nanoseconds for interrupt coalescing.
    pub now_ns: u64,
    /// The device waits for a register write.
    pub asleep: bool,
    replies: Vec<GroupReply>,
    free: u64,
    next_cid: u16,
}

impl<G: TestGroup> Default for PairOf<G> {
    fn default() -> Self {
        Self::new(GroupConfig::DEFAULT)
    }
}

impl<G: TestGroup> PairOf<G> {
    /// A pair without queues or namespaces.
    #[must_use]
    pub fn new(config: GroupConfig) -> Self {
        Self {
            memory: RamMemory::new(RAM_BASE, RAM_BYTES),
            registers: (0..u32::from(QUEUE_IDENTIFIERS) * 2).map(|_| AtomicU32::new(0)).collect(),
            driver: Driver::default(),
            group: G::make(config),
            storage: Storage::default(),
            in_flight: Vec::new(),
            completed: Vec::new(),
            events: Vec::new(),
            interrupts: BTreeMap::new(),
            now_ns: 0,
            asleep: false,
            replies: Vec::new(),
            free: RAM_BASE,
            next_cid: 0,
        }
    }

    /// One queue pair with identifier 1 and a namespace of 2,048 blocks of 512 bytes.
    #[must_use]
    pub fn with_queues(sq_size: u32, cq_size: u32) -> Self {
        let mut pair = Self::default();
        pair.add_namespace(1, 2048, 9);
        pair.create_cq(1, cq_size, Some(1));
        pair.create_sq(1, 1, sq_size);
        pair
    }

    /// Fresh guest memory, page aligned.
    ///
    /// # Panics
    /// Where there is no more.
    pub fn allocate(&mut self, len_bytes: u64) -> u64 {
        let address = self.free;
        self.free = (address + len_bytes).next_multiple_of(4096);
        assert!(self.free <= RAM_BASE + RAM_BYTES, "the guest's memory is used up");
        address
    }

    /// Gives back guest memory that was allocated from `address` on.
    pub fn free_from(&mut self, address: u64) {
        self.free = address;
    }

    /// Sends a request; its reply if it has come at once.
    pub fn request(&mut self, request: GroupRequest) -> Option<GroupReply> {
        self.asleep = false;
        self.group.handle_request(&self.memory, &self.registers, request);
        self.reply()
    }

    /// A reply that has come meanwhile.
    pub fn reply(&mut self) -> Option<GroupReply> {
        while let Some(message) = self.group.poll_message() {
            match message {
                GroupMessage::Reply(reply) => self.replies.push(reply),
                GroupMessage::Event(event) => self.events.push(event),
            }
        }
        self.replies.pop()
    }

    /// Creates a completion queue.
    pub fn create_cq(&mut self, qid: u16, size: u32, vector: Option<u16>) {
        let base = self.allocate(u64::from(size) * 16);
        self.memory.fill(base, u64::from(size) * 16, 0);
        let request = GroupRequest::CreateCompletionQueue { qid, base, size, vector, coalesce: true };
        assert_eq!(self.request(request), Some(GroupReply::Done));
        let queue = DriverQueue { base, size, position: 0, sqhd: 0, phase: true };
        self.driver.completion.insert(qid, queue);
    }

    /// Creates a submission queue.
    pub fn create_sq(&mut self, qid: u16, cqid: u16, size: u32) {
        let base = self.allocate(u64::from(size) * 64);
        let request = GroupRequest::CreateSubmissionQueue { qid, cqid, base, size, page_shift: 12 };
        assert_eq!(self.request(request), Some(GroupReply::Done));
        let queue = DriverQueue { base, size, position: 0, sqhd: 0, phase: false };
        self.driver.submission.insert(qid, queue);
    }

    /// Adds a namespace, filled with a pattern.
    pub fn add_namespace(&mut self, nsid: u32, size_blocks: u64, block_shift: u8) {
        let namespace = Namespace { size_blocks, block_shift, read_only: false };
        let reply = self.request(GroupRequest::SetNamespace { nsid, namespace });
        assert_eq!(reply, Some(GroupReply::Done));
        let medium = (0..size_blocks << block_shift).map(|at| (at ^ at >> 8 ^ u64::from(nsid)) as u8);
        self.storage.media.insert(nsid, medium.collect());
    }

    /// Doorbell Buffer Config; from now on the driver rings by `rule`.
    pub fn configure_shadow(&mut self, rule: ShadowRule) -> DoorbellBuffer {
        let buffer = DoorbellBuffer { shadow: self.allocate(4096), event_idx: self.allocate(4096) };
        assert_eq!(self.request(GroupRequest::SetDoorbellBuffer(buffer)), Some(GroupReply::Done));
        self.driver.buffer = Some(buffer);
        self.driver.ring = Ring::Shadow(rule);
        buffer
    }

    /// Counters by submission queue.
    pub fn queue_statistics(&mut self) -> Vec<QueueStatistics> {
        let mut all = Vec::new();
        self.group.visit_queue_statistics(|statistics| all.push(statistics));
        all
    }

    /// Controller reset as the group and the driver see it: all queues and the buffers are gone.
    pub fn reset(&mut self) -> Option<GroupReply> {
        let reply = self.request(GroupRequest::Reset);
        self.driver = Driver::default();
        reply
    }

    /// Writes an entry into a submission queue without ringing; its command identifier.
    pub fn push(&mut self, sqid: u16, entry: SubmissionQueueEntry) -> u16 {
        let cid = self.next_cid;
        self.next_cid = cid.wrapping_add(1);
        self.driver.push(&self.memory, sqid, &with_cid(entry, cid));
        cid
    }

    /// Writes an entry and rings; its command identifier.
    pub fn submit(&mut self, sqid: u16, entry: SubmissionQueueEntry) -> u16 {
        let cid = self.push(sqid, entry);
        self.ring_tail(sqid, self.driver.ring);
        cid
    }

    /// Rings a tail doorbell; a register write wakes the device.
    pub fn ring_tail(&mut self, sqid: u16, ring: Ring) {
        let wrote = self.driver.ring_tail(&self.memory, &self.registers, sqid, ring);
        self.asleep &= !wrote;
    }

    /// Rings a head doorbell; a register write wakes the device.
    pub fn ring_head(&mut self, cqid: u16, ring: Ring) {
        let wrote = self.driver.ring_head(&self.memory, &self.registers, cqid, ring);
        self.asleep &= !wrote;
    }

    /// Delivers the oldest posted register write, which wakes the device; whether there was one.
    pub fn deliver(&mut self) -> bool {
        let delivered = self.driver.deliver(&self.registers);
        self.asleep &= !delivered;
        delivered
    }

    /// The device fetches what it can, unless it sleeps; how many commands it gave out.
    pub fn fetch(&mut self) -> usize {
        if self.asleep {
            return 0;
        }
        let before = self.in_flight.len();
        // A queue of nonsense makes `poll_command` give up early, so it is asked again.
        for _ in 0..64 {
            while let Some(command) = self.group.poll_command(&self.memory, &self.registers) {
                self.in_flight.push(command);
            }
        }
        self.in_flight.len() - before
    }

    /// Carries out and completes one command in flight, by its place in [`PairOf::in_flight`].
    pub fn finish(&mut self, place: usize) -> Completed {
        let command = self.in_flight.remove(place);
        let status = self.storage.execute(&self.memory, command);
        self.complete(command, status)
    }

    /// Completes a command with a status.
    pub fn complete(&mut self, command: IoCommand, status: Status) -> Completed {
        self.asleep = false;
        let completed = self.group.complete(&self.memory, command.tag, status);
        self.group.flush(&self.memory, &self.registers);
        completed
    }

    /// The device raises its interrupts.
    pub fn interrupt(&mut self) {
        while let Some(vector) = self.group.poll_interrupt(self.now_ns) {
            *self.interrupts.entry(vector).or_default() += 1;
        }
    }

    /// The device wants to sleep. Whether it does.
    pub fn sleep(&mut self) -> bool {
        let early = self.reply();
        self.replies.extend(early);
        self.asleep = self.group.arm(&self.memory, &self.registers, false) == Armed::Sleep;
        self.asleep
    }

    /// The driver takes what has completed and rings the head once; the entries.
    pub fn reap(&mut self, cqid: u16) -> Vec<CompletionQueueEntry> {
        let mut taken = Vec::new();
        while let Some(entry) = self.driver.pop(&self.memory, cqid) {
            taken.push(entry);
        }
        if !taken.is_empty() {
            self.ring_head(cqid, self.driver.ring);
        }
        self.completed.extend(&taken);
        taken
    }

    /// Fetches, finishes and reaps until nothing moves any more, sleeping between; what was taken.
    pub fn run(&mut self) -> Vec<CompletionQueueEntry> {
        let mut taken = Vec::new();
        loop {
            let mut moved = self.fetch();
            while !self.in_flight.is_empty() {
                let _ = self.finish(0);
                moved += 1;
            }
            self.interrupt();
            let queues: Vec<u16> = self.driver.completion.keys().copied().collect();
            let before = taken.len();
            for cqid in queues {
                taken.extend(self.reap(cqid));
            }
            if moved == 0 && taken.len() == before && (self.asleep || self.sleep()) {
                return taken;
            }
        }
    }

    /// Submits one command, runs it and gives its status.
    ///
    /// # Panics
    /// Where it doesn't complete.
    pub fn execute(&mut self, sqid: u16, entry: SubmissionQueueEntry) -> Status {
        let cid = self.submit(sqid, entry);
        let taken = self.run();
        let found = taken.iter().find(|taken| taken.sqid == sqid && taken.cid == cid);
        found.expect("the command completes").status
    }
}
