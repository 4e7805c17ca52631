//! Tests of the controller, driven as a driver drives it: registers, entries in guest memory, doorbells.
//! Commands and replies are literal dwords and bytes of the specification's figures.

mod admin;
mod data;
mod events;
mod lifecycle;
mod namespaces;
mod queues;
mod random;
mod registers;
mod state;
mod whole;

use std::sync::atomic::AtomicU32;

use super::*;
use crate::command::IoCommand;
use crate::group::{GroupConfig, QueueGroup};
use crate::message::GroupReply;
use crate::spec::queue_entry::CompletionQueueEntry;
use crate::testing::{FakeGroup, RamMemory};

/// Guest addresses of the bench.
const ASQ: u64 = 0x1000;
const ACQ: u64 = 0x2000;
const QUEUE: u64 = 0x10_0000;
const DATA: u64 = 0x20_0000;
const SHADOW: u64 = 0x30_0000;
const EVENT_IDX: u64 = 0x30_1000;
const RAM_BYTES: u64 = 0x80_0000;

/// Entries of the admin queues.
const ENTRIES: u32 = 64;

const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;

/// The sixteen dwords of a submission queue entry.
type Entry = [u32; 16];

/// Opcode in dword 0, the data pointer's PRP1 at [`DATA`], dwords 10 and 11.
fn entry(opcode: u8, nsid: u32, dword10: u32, dword11: u32) -> Entry {
    let mut dwords = [0; 16];
    dwords[0] = u32::from(opcode);
    dwords[1] = nsid;
    dwords[6] = DATA as u32;
    dwords[10] = dword10;
    dwords[11] = dword11;
    dwords
}

fn with_prp1(mut entry: Entry, prp1: u64) -> Entry {
    entry[6] = prp1 as u32;
    entry[7] = (prp1 >> 32) as u32;
    entry
}

fn with_prp2(mut entry: Entry, prp2: u64) -> Entry {
    entry[8] = prp2 as u32;
    entry[9] = (prp2 >> 32) as u32;
    entry
}

fn identify(cns: u32, nsid: u32) -> Entry {
    entry(0x06, nsid, cns, 0)
}

/// Get Log Page of `len_bytes` bytes from `offset`, retaining no event.
fn get_log(lid: u32, offset: u64, len_bytes: u32) -> Entry {
    let numd = len_bytes / 4 - 1;
    let mut dwords = entry(0x02, 0xffff_ffff, lid | numd << 16, numd >> 16);
    dwords[12] = offset as u32;
    dwords[13] = (offset >> 32) as u32;
    dwords
}

fn create_cq(qid: u32, qsize_z: u32, iv: u32) -> Entry {
    with_prp1(entry(0x05, 0, qid | qsize_z << 16, iv << 16 | 0b11), QUEUE)
}

fn create_sq(qid: u32, qsize_z: u32, cqid: u32) -> Entry {
    with_prp1(entry(0x01, 0, qid | qsize_z << 16, cqid << 16 | 1), QUEUE)
}

fn set_feature(fid: u32, value: u32) -> Entry {
    entry(0x09, 0, fid, value)
}

fn get_feature(fid: u32, value: u32) -> Entry {
    entry(0x0a, 0, fid, value)
}

const AER: Entry = [0x0c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A controller with two groups that only answer, and the driver's side of its admin queue.
struct Bench {
    controller: Controller<2, 64, 16, 64>,
    memory: RamMemory,
    registers: Vec<AtomicU32>,
    groups: [FakeGroup; 2],
    /// Groups that really work, in place of the others where there are any.
    real: Vec<QueueGroup<64, 32, 16>>,
    /// Commands that real groups gave out; where `hold_io` is set they aren't completed.
    in_flight: Vec<(u16, IoCommand)>,
    hold_io: bool,
    now_ns: u64,
    tail: u32,
    head: u32,
    phase: bool,
    cid: u16,
    /// Carry out flushes when the controller asks for them.
    flushes: bool,
    host_requests: Vec<HostRequest>,
}

impl Bench {
    /// Disabled.
    fn new() -> Self {
        Self::with_config(ControllerConfig { groups: 2, ..ControllerConfig::DEFAULT })
    }

    fn with_config(config: ControllerConfig) -> Self {
        Self {
            controller: Controller::new(config),
            memory: RamMemory::new(0, RAM_BYTES),
            registers: (0..1024).map(|_| AtomicU32::new(0)).collect(),
            groups: [FakeGroup::default(), FakeGroup::default()],
            real: Vec::new(),
            in_flight: Vec::new(),
            hold_io: false,
            now_ns: 0,
            tail: 0,
            head: 0,
            phase: true,
            cid: 0,
            flushes: true,
            host_requests: Vec::new(),
        }
    }

    /// Enabled, ready.
    fn enabled() -> Self {
        let mut bench = Self::new();
        bench.enable();
        bench
    }

    /// Enabled, with namespace 1 of 1,000 blocks of 512 bytes.
    fn with_namespace() -> Self {
        let mut bench = Self::new();
        bench.controller.add_namespace(None, namespace(1)).expect("a good namespace");
        bench.run();
        bench.enable();
        bench
    }

    fn enable(&mut self) {
        self.write32(0x24, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        self.write64(0x28, ASQ);
        self.write64(0x30, ACQ);
        self.write32(CC, 0x0046_0001);
        (self.tail, self.head, self.phase) = (0, 0, true);
        self.memory.fill(ACQ, u64::from(ENTRIES) * 16, 0);
        self.run();
        assert_eq!(self.read32(CSTS), 1, "CSTS.RDY");
        self.groups.iter_mut().for_each(FakeGroup::forget);
    }

    fn read32(&self, offset: u32) -> u32 {
        let mut bytes = [0xee; 4];
        self.controller.read_register(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn read64(&self, offset: u32) -> u64 {
        let mut bytes = [0xee; 8];
        self.controller.read_register(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.controller.write_register(offset, &value.to_le_bytes());
    }

    fn write64(&mut self, offset: u32, value: u64) {
        self.controller.write_register(offset, &value.to_le_bytes());
    }

    fn poll(&mut self) -> bool {
        self.controller.poll(&self.memory, &self.registers, self.now_ns)
    }

    /// Carries everything that waits from one side to the other until nothing moves.
    fn run(&mut self) {
        for _ in 0..1_000 {
            let mut moved = self.poll();
            while let Some((group, request)) = self.controller.poll_group_request() {
                match self.real.get_mut(usize::from(group)) {
                    Some(real) => real.handle_request(&self.memory, &self.registers, request),
                    None => self.groups[usize::from(group)].handle_request(request),
                }
                moved = true;
            }
            moved |= self.run_real_groups();
            for (group, fake) in (0..).zip(&mut self.groups) {
                while let Some(reply) = fake.poll_reply() {
                    self.controller.handle_group_message(group, GroupMessage::Reply(reply));
                    moved = true;
                }
            }
            while let Some(request) = self.controller.poll_host_request() {
                self.host_requests.push(request);
                if self.flushes {
                    self.controller.handle_host_reply(HostReply::FlushAll(Ok(())));
                }
                moved = true;
            }
            if !moved {
                return;
            }
        }
        panic!("the controller never comes to rest");
    }

    fn run_real_groups(&mut self) -> bool {
        let mut moved = false;
        for (index, group) in (0..).zip(&mut self.real) {
            while let Some(command) = group.poll_command(&self.memory, &self.registers) {
                self.in_flight.push((index, command));
                moved = true;
            }
            if !self.hold_io {
                for (_, command) in self.in_flight.extract_if(.., |(owner, _)| *owner == index) {
                    let _completed = group.complete(&self.memory, command.tag, Status::SUCCESS);
                    moved = true;
                }
            }
            while let Some(message) = group.poll_message() {
                self.controller.handle_group_message(index, message);
                moved = true;
            }
        }
        moved
    }

    fn reply(&mut self, group: u16, reply: GroupReply) {
        self.controller.handle_group_message(group, GroupMessage::Reply(reply));
    }

    /// Puts a command into the queue without ringing; returns its identifier.
    fn put(&mut self, mut entry: Entry) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        entry[0] |= u32::from(self.cid) << 16;
        let bytes: Vec<u8> = entry.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        self.memory.poke(ASQ + u64::from(self.tail) * 64, &bytes);
        self.tail = (self.tail + 1) % ENTRIES;
        self.cid
    }

    fn ring(&mut self) {
        self.registers[0].store(self.tail, Ordering::Relaxed);
    }

    /// Submits a command and lets everything run.
    fn submit(&mut self, entry: Entry) -> u16 {
        let cid = self.put(entry);
        self.ring();
        self.run();
        cid
    }

    /// The completions that are there, taken from the queue.
    fn completions(&mut self) -> Vec<CompletionQueueEntry> {
        let completions = self.peek_completions();
        self.registers[1].store(self.head, Ordering::Relaxed);
        self.run();
        completions
    }

    /// The completions that are there; the head doorbell isn't written.
    fn peek_completions(&mut self) -> Vec<CompletionQueueEntry> {
        let mut completions = Vec::new();
        loop {
            let address = ACQ + u64::from(self.head) * 16;
            let dwords = [0, 4, 8, 12].map(|offset| self.memory.peek_u32(address + offset));
            let entry = CompletionQueueEntry::from_dwords(dwords);
            if entry.phase != self.phase {
                return completions;
            }
            assert_eq!(entry.sqid, 0);
            completions.push(entry);
            self.head += 1;
            if self.head == ENTRIES {
                (self.head, self.phase) = (0, !self.phase);
            }
        }
    }

    /// Submits a command, takes its completion and returns its status without More and DNR, and dword 0.
    fn command(&mut self, entry: Entry) -> (Status, u32) {
        let cid = self.submit(entry);
        let completions = self.completions();
        assert_eq!(completions.len(), 1, "one completion: {completions:?}");
        assert_eq!(completions[0].cid, cid);
        (Status(completions[0].status.0 & 0x7ff), completions[0].result as u32)
    }

    /// A command that succeeds; dword 0.
    fn ok(&mut self, entry: Entry) -> u32 {
        let (status, result) = self.command(entry);
        assert_eq!(status, Status::SUCCESS, "{entry:x?}");
        result
    }

    /// A command that fails; its status.
    fn fails(&mut self, entry: Entry) -> Status {
        let (status, _) = self.command(entry);
        assert_ne!(status, Status::SUCCESS, "{entry:x?}");
        status
    }

    /// A command's 4096 bytes of data, which nothing else is written around.
    fn data(&mut self, entry: Entry) -> Vec<u8> {
        self.memory.fill(DATA - 64, 4096 + 128, 0xee);
        self.ok(entry);
        assert_eq!(self.memory.peek(DATA - 64, 64), [0xee; 64]);
        assert_eq!(self.memory.peek(DATA + 4096, 64), [0xee; 64]);
        self.memory.peek(DATA, 4096)
    }

    fn requests(&self, group: usize) -> &[GroupRequest] {
        &self.groups[group].requests
    }
}

/// A namespace of 1,000 blocks of 512 bytes.
fn namespace(uuid: u8) -> NamespaceConfig {
    NamespaceConfig {
        size_blocks: 1_000,
        block_bytes: 512,
        read_only: false,
        deallocated_reads_zero: true,
        uuid: [uuid; 16],
        nguid: [0; 16],
        eui64: [0; 8],
    }
}

#[test]
fn a_controller_fits_into_a_static() {
    static CONTROLLER: std::sync::Mutex<Controller> =
        std::sync::Mutex::new(Controller::new(ControllerConfig::DEFAULT));
    static SMALL: std::sync::Mutex<Controller<1, 2, 1, 4>> =
        std::sync::Mutex::new(Controller::new(ControllerConfig::DEFAULT));
    assert!(!CONTROLLER.lock().expect("not poisoned").is_ready());
    assert!(size_of::<Controller>() < 8_192, "{}", size_of::<Controller>());
    assert!(size_of_val(&*SMALL.lock().expect("not poisoned")) < 1_536, "{}", size_of_val(&SMALL));
}

#[test]
fn a_driver_enables_identifies_and_creates_queues() {
    let mut bench = Bench::with_namespace();
    let controller = bench.data(identify(1, 0));
    assert_eq!(controller[4..14], *b"DOORBELL0 ");
    assert_eq!(bench.data(identify(2, 0))[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bench.data(identify(0, 1))[..8], 1_000u64.to_le_bytes());
    assert_eq!(bench.ok(set_feature(7, 1 << 16 | 1)), 1 << 16 | 1);
    bench.ok(create_cq(1, 255, 1));
    bench.ok(create_sq(1, 255, 1));
    assert_eq!(
        bench.requests(0),
        [
            GroupRequest::CreateCompletionQueue {
                qid: 1,
                base: QUEUE,
                size: 256,
                vector: Some(1),
                coalesce: true
            },
            GroupRequest::CreateSubmissionQueue { qid: 1, cqid: 1, base: QUEUE, size: 256, page_shift: 12 },
        ]
    );
    assert_eq!(bench.controller.poll_interrupt(), Some(0));
    assert_eq!(bench.controller.poll_interrupt(), None);
}
