//! A whole machine on one thread: a driver, a controller, queue groups and storage, whichever engine they run in.
//!
//! Unlike [`Pair`](super::Pair) it goes through registers and admin commands, as a real driver does.

use zerocopy::little_endian::{U32, U64};

use super::driver::{Driver, DriverQueue};
use super::entry::{DataPointer, on_blocks, with_cid};
use super::pair::{RAM_BASE, RAM_BYTES};
use super::ring::Ring;
use super::{RamMemory, Storage};
use crate::command::IoCommand;
use crate::controller::{HostReply, NamespaceConfig};
use crate::engine::{ControllerEngine, GroupEngine};
use crate::message::GroupEvent;
use crate::message::GroupMessage;
use crate::spec::admin::AdminOpcode;
use crate::spec::nvm::NvmOpcode;
use crate::spec::queue_entry::{CompletionQueueEntry, SubmissionQueueEntry};
use crate::spec::register::{ACQ, AQA, ASQ, CC, CSTS};
use crate::spec::status::Status;
use crate::sync::AtomicU32;

/// Entries of the admin queues.
const ADMIN_ENTRIES: u32 = 32;

/// Rounds in which something must have happened.
const ROUNDS: usize = 200;

/// CSTS.RDY.
pub const RDY: u32 = 1;
/// CSTS.CFS.
pub const CFS: u32 = 2;

/// See the module. I/O queue pairs that it creates are spread over the groups as the controller decides.
#[derive(Debug)]
pub struct Machine<C, G> {
    /// Guest memory.
    pub memory: RamMemory,
    /// Doorbell registers.
    pub registers: Vec<AtomicU32>,
    /// The device.
    pub controller: C,
    /// Its groups.
    pub groups: Vec<G>,
    /// The media.
    pub storage: Storage,
    /// The driver.
    pub driver: Driver,
    /// Commands that groups gave out and that haven't ended, by group. They end in the next round.
    pub in_flight: Vec<(usize, IoCommand)>,
    /// While set, commands stay in flight.
    pub hold: bool,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Fatal events that groups reported.
    pub fatal: u64,
    /// Completions taken from I/O queues and not asked for yet.
    pub taken: Vec<CompletionQueueEntry>,
    free: u64,
    next_cid: u16,
    now_ns: u64,
}

impl<C: ControllerEngine, G: GroupEngine> Machine<C, G> {
    /// A machine whose controller is disabled.
    #[must_use]
    pub fn new(controller: C, groups: Vec<G>) -> Self {
        Self {
            memory: RamMemory::new(RAM_BASE, RAM_BYTES),
            registers: (0..1024).map(|_| AtomicU32::new(0)).collect(),
            controller,
            groups,
            storage: Storage::default(),
            driver: Driver::default(),
            in_flight: Vec::new(),
            hold: false,
            interrupts: 0,
            fatal: 0,
            taken: Vec::new(),
            free: RAM_BASE,
            next_cid: 0,
            now_ns: 0,
        }
    }

    /// Adds a namespace of 512-byte blocks, all zeroes.
    ///
    /// # Panics
    /// Where the controller refuses it.
    pub fn add_namespace(&mut self, size_blocks: u64) -> u32 {
        let config = NamespaceConfig {
            size_blocks,
            block_bytes: 512,
            read_only: false,
            deallocated_reads_zero: true,
            uuid: [self.storage.media.len() as u8 + 1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        };
        let nsid = self.controller.add_namespace(None, config).expect("room for a namespace");
        self.storage.media.insert(nsid, vec![0; (size_blocks * 512) as usize]);
        nsid
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

    /// Carries everything one step on; whether anything moved.
    pub fn step(&mut self) -> bool {
        self.now_ns += 1000;
        let mut moved = self.controller.poll(&self.memory, &self.registers, self.now_ns);
        while let Some((group, request)) = self.controller.poll_group_request() {
            self.groups[usize::from(group)].handle_request(&self.memory, &self.registers, request);
            moved = true;
        }
        while self.controller.poll_interrupt().is_some() {
            self.interrupts += 1;
        }
        while self.controller.poll_host_request().is_some() {
            self.controller.handle_host_reply(HostReply::FlushAll(Ok(())));
            moved = true;
        }
        while self.controller.poll_namespace_change().is_some() {
            moved = true;
        }
        for index in 0..self.groups.len() {
            moved |= self.step_group(index);
        }
        moved
    }

    fn step_group(&mut self, index: usize) -> bool {
        let mut moved = false;
        let group = &mut self.groups[index];
        while let Some(command) = group.poll_command(&self.memory, &self.registers) {
            self.in_flight.push((index, command));
            moved = true;
        }
        if !self.hold {
            for (_, command) in self.in_flight.extract_if(.., |(owner, _)| *owner == index) {
                let status = self.storage.execute(&self.memory, command);
                let _ = group.complete(&self.memory, command.tag, status);
                moved = true;
            }
        }
        group.flush(&self.memory, &self.registers);
        while group.poll_cancel().is_some() {}
        while group.poll_interrupt(self.now_ns).is_some() {
            self.interrupts += 1;
        }
        while let Some(message) = group.poll_message() {
            self.fatal += u64::from(matches!(message, GroupMessage::Event(GroupEvent::Fatal { .. })));
            self.controller.handle_group_message(index as u16, message);
            moved = true;
        }
        moved
    }

    /// Steps until nothing moves.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS {
            if !self.step() {
                return;
            }
        }
    }

    /// A 32-bit register.
    pub fn register(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.controller.read_register(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Controller Status.
    pub fn csts(&mut self) -> u32 {
        self.register(CSTS)
    }

    /// Writes CC.EN 0 and steps until CSTS.RDY is 0, or gives up.
    pub fn disable(&mut self) -> bool {
        self.controller.write_register(CC, &0_u32.to_le_bytes());
        self.hold = false;
        self.driver = Driver::default();
        self.taken.clear();
        (0..ROUNDS).any(|_| {
            self.step();
            self.csts() & RDY == 0
        })
    }

    /// Sets up the admin queue and enables the controller; whether CSTS.RDY became 1.
    pub fn enable(&mut self) -> bool {
        self.free = RAM_BASE;
        let (asq, acq) = (self.allocate(4096), self.allocate(4096));
        self.memory.fill(acq, 4096, 0);
        let aqa = (ADMIN_ENTRIES - 1) << 16 | (ADMIN_ENTRIES - 1);
        self.controller.write_register(AQA, &aqa.to_le_bytes());
        self.controller.write_register(ASQ, &asq.to_le_bytes());
        self.controller.write_register(ACQ, &acq.to_le_bytes());
        // IOCQES 4, IOSQES 6, EN.
        self.controller.write_register(CC, &0x0046_0001_u32.to_le_bytes());
        let ring = |base, phase| DriverQueue { base, size: ADMIN_ENTRIES, position: 0, sqhd: 0, phase };
        self.driver.submission.insert(0, ring(asq, false));
        self.driver.completion.insert(0, ring(acq, true));
        (0..ROUNDS).any(|_| {
            self.step();
            self.csts() & RDY != 0
        })
    }

    /// Submits a command and steps until it completes, or gives up.
    pub fn execute(
        &mut self,
        sqid: u16,
        cqid: u16,
        entry: SubmissionQueueEntry,
    ) -> Option<CompletionQueueEntry> {
        let cid = self.submit(sqid, entry);
        for _ in 0..ROUNDS {
            self.step();
            self.reap(cqid);
            let found = self.taken.iter().position(|taken| taken.sqid == sqid && taken.cid == cid);
            if let Some(found) = found {
                return Some(self.taken.remove(found));
            }
        }
        None
    }

    /// Writes an entry and rings; its command identifier.
    pub fn submit(&mut self, sqid: u16, entry: SubmissionQueueEntry) -> u16 {
        let cid = self.next_cid;
        self.next_cid = (cid + 1) & 0x7fff;
        self.driver.push(&self.memory, sqid, &with_cid(entry, cid));
        self.driver.ring_tail(&self.memory, &self.registers, sqid, Ring::Register);
        cid
    }

    /// Takes what has completed and rings the head.
    pub fn reap(&mut self, cqid: u16) {
        let before = self.taken.len();
        while let Some(entry) = self.driver.pop(&self.memory, cqid) {
            self.taken.push(entry);
        }
        if self.taken.len() > before {
            self.driver.ring_head(&self.memory, &self.registers, cqid, Ring::Register);
        }
    }

    /// An admin command; its status, where it completes.
    pub fn admin(&mut self, entry: SubmissionQueueEntry) -> Option<CompletionQueueEntry> {
        self.execute(0, 0, entry)
    }

    /// Creates I/O queue pair `qid`; whether both commands succeeded.
    pub fn create_queues(&mut self, qid: u16, size: u32) -> bool {
        let (cq, sq) = (self.allocate(u64::from(size) * 16), self.allocate(u64::from(size) * 64));
        self.memory.fill(cq, u64::from(size) * 16, 0);
        let entry = |opcode: AdminOpcode, base: u64, cdw11: u32| SubmissionQueueEntry {
            opcode: opcode.0,
            prp1: U64::new(base),
            cdw10: U32::new(u32::from(qid) | (size - 1) << 16),
            cdw11: U32::new(cdw11),
            ..SubmissionQueueEntry::default()
        };
        let ring = |base, phase| DriverQueue { base, size, position: 0, sqhd: 0, phase };
        // Physically contiguous, interrupts enabled, vector 1.
        let done = self.admin(entry(AdminOpcode::CREATE_COMPLETION_QUEUE, cq, 1 << 16 | 0b11));
        self.driver.completion.insert(qid, ring(cq, true));
        let ready = done.is_some_and(|done| done.status.is_success());
        let done = self.admin(entry(AdminOpcode::CREATE_SUBMISSION_QUEUE, sq, u32::from(qid) << 16 | 1));
        self.driver.submission.insert(qid, ring(sq, false));
        ready && done.is_some_and(|done| done.status.is_success())
    }

    /// Enables the controller and creates queue pairs 1 to `queues`; whether all went well.
    pub fn bring_up(&mut self, queues: u16, size: u32) -> bool {
        self.enable() && (1..=queues).all(|qid| self.create_queues(qid, size))
    }

    /// Writes a pattern that `seed` decides to `count` blocks from `slba` through queue pair `qid` and reads it
    /// back into other memory; whether both commands succeeded and the bytes are the same.
    pub fn verify(&mut self, qid: u16, nsid: u32, slba: u64, count: u32, seed: u64) -> bool {
        let len = count as usize * 512;
        let keep = self.free;
        let (from, to) = (self.allocate(len as u64), self.allocate(len as u64));
        self.free = keep;
        assert!(len <= 8192, "two pages, so that PRP1 and PRP2 are enough");
        let mut state = seed | 1;
        let pattern: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        })
        .take(len)
        .collect();
        self.memory.poke(from, &pattern);
        self.memory.fill(to, len as u64, 0x5a);
        let pointer = |low: u64| DataPointer { low, high: low + 4096, is_sgl: false };
        let write = on_blocks(NvmOpcode::WRITE, nsid, slba, count, pointer(from));
        let read = on_blocks(NvmOpcode::READ, nsid, slba, count, pointer(to));
        let ok = |done: Option<CompletionQueueEntry>| done.is_some_and(|done| done.status == Status::SUCCESS);
        ok(self.execute(qid, qid, write))
            && ok(self.execute(qid, qid, read))
            && self.memory.peek(to, len) == pattern
    }
}
