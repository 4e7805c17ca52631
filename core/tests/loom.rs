//! Concurrency models of the doorbells: the core's own code on one thread, a driver's rules on another, over
//! every order that the memory model allows (loom; run by `cargo xtask test loom`).
//!
//! The device's host is an eventfd: a register write of the driver signals it, and a device that sleeps wakes
//! where it has been signalled since it was read last. *Asleep with work and not signalled* is the failure.
#![cfg(loom)]

use doorbell_core::doorbell::{Doorbell, head_index, tail_index};
use doorbell_core::group::{Armed, GroupConfig, QueueGroup};
use doorbell_core::memory::{Access, DmaError, DmaMemory};
use doorbell_core::message::{DoorbellBuffer, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::{ShadowRule, without_fences};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

/// Guest memory made of dwords at address 0, all accesses relaxed.
struct Memory(Vec<AtomicU32>);

impl Memory {
    fn new(dwords: usize) -> Self {
        Self((0..dwords).map(|_| AtomicU32::new(0)).collect())
    }

    fn dword(&self, address: u64) -> Result<&AtomicU32, DmaError> {
        self.0.get(address as usize / 4).ok_or(DmaError)
    }
}

impl DmaMemory for Memory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        for (index, piece) in buffer.chunks_mut(4).enumerate() {
            let dword = self.load_u32(address + index as u64 * 4)?;
            piece.copy_from_slice(&dword.to_le_bytes());
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DmaError> {
        Err(DmaError)
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        Ok(self.dword(address)?.load(Ordering::Relaxed))
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.dword(address)?.store(value, Ordering::Relaxed);
        Ok(())
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let (Ok(found) | Err(found)) =
            self.dword(address)?.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
        Ok(found)
    }
    fn check(&self, _: u64, _: u64, _: Access) -> Result<(), DmaError> {
        Ok(())
    }
}

const BUFFER: DoorbellBuffer = DoorbellBuffer { shadow: 0, event_idx: 4 };
const OTHER_BUFFER: DoorbellBuffer = DoorbellBuffer { shadow: 8, event_idx: 12 };
/// Where the ring's entries are, one dword each.
const ENTRIES: u64 = 16;
const SIZE: u32 = 4;

/// What both sides share.
struct World {
    memory: Memory,
    registers: Vec<AtomicU32>,
    /// Signals sent to the device's eventfd.
    signals: AtomicU32,
}

impl World {
    fn new(dwords: usize, registers: usize) -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(dwords),
            registers: (0..registers).map(|_| AtomicU32::new(0)).collect(),
            signals: AtomicU32::new(0),
        })
    }

    /// The driver writes an entry.
    fn push(&self, position: u32) {
        self.memory.store_u32(ENTRIES + u64::from(position % SIZE) * 4, position + 1).unwrap();
    }

    /// The driver rings by the register.
    fn write_register(&self, index: u32, value: u32) {
        fence(Ordering::Release);
        // A store. As one, loom would let it precede an exchange of the device that didn't read it.
        self.registers[index as usize].swap(value, Ordering::Relaxed);
        self.signals.fetch_add(1, Ordering::Release);
    }

    /// The driver rings by the shadow; `barrier` is what it has between its store and its load of EventIdx.
    fn write_shadow(&self, rule: ShadowRule, buffer: DoorbellBuffer, index: u32, value: u32, barrier: bool) {
        fence(Ordering::Release);
        let offset = u64::from(index) * 4;
        // A load and a store. For the swap see `write_register`.
        let old = self.memory.dword(buffer.shadow + offset).unwrap().swap(value, Ordering::Relaxed);
        if barrier {
            fence(Ordering::SeqCst);
        }
        let event_idx = self.memory.load_u32(buffer.event_idx + offset).unwrap();
        if rule.needs_register(event_idx, old, value) {
            self.write_register(index, value);
        }
    }
}

/// A device with one doorbell, at index 0.
struct Device {
    world: Arc<World>,
    doorbell: Doorbell,
    position: u32,
    /// Entries taken since the beginning.
    taken: u32,
    /// Signals when the eventfd was read last.
    signals: u32,
}

impl Device {
    fn new(world: &Arc<World>) -> Self {
        let mut doorbell = Doorbell::new(0);
        doorbell.attach(&world.memory, BUFFER, 0).unwrap();
        Self { world: world.clone(), doorbell, position: 0, taken: 0, signals: 0 }
    }

    /// Takes what is there, as a queue does; every entry must be readable.
    fn poll(&mut self) -> bool {
        let world = &self.world;
        let polled = self.doorbell.poll(&world.memory, &world.registers, self.position, SIZE);
        let Some(tail) = polled.expect("a value of the ring") else { return false };
        while self.position != tail {
            let entry = world.memory.load_u32(ENTRIES + u64::from(self.position) * 4).unwrap();
            self.taken += 1;
            assert_eq!(entry, self.taken, "an entry must be visible before its doorbell, and run once");
            self.position = (self.position + 1) % SIZE;
        }
        self.doorbell.publish(&world.memory, self.position, SIZE).unwrap();
        true
    }

    /// Polls until all `count` entries are taken or it sleeps.
    fn run_until(&mut self, count: u32) {
        while self.taken < count {
            self.signals = self.world.signals.load(Ordering::Acquire);
            if self.poll() {
                continue;
            }
            if !self.doorbell.arm(&self.world.memory, &self.world.registers, self.position).unwrap() {
                return;
            }
        }
    }

    /// The driver has done all it will: nothing may be left behind.
    fn finish(mut self, count: u32) {
        if self.taken < count {
            assert_ne!(
                self.world.signals.load(Ordering::Acquire),
                self.signals,
                "asleep with work, not signalled"
            );
            while self.poll() {}
        }
        assert_eq!(self.taken, count);
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(run);
}

/// A driver that rings `count` entries one by one by shadow, against a device that polls, arms and sleeps.
fn submissions(rule: ShadowRule, count: u32, barrier: bool) {
    model(move || {
        let world = World::new(8, 1);
        let mut device = Device::new(&world);
        let driver = thread::spawn(move || {
            for position in 0..count {
                world.push(position);
                world.write_shadow(rule, BUFFER, 0, (position + 1) % SIZE, barrier);
            }
        });
        device.run_until(count);
        driver.join().unwrap();
        device.finish(count);
    });
}

#[test]
fn linux_rule_loses_no_wake_up() {
    for count in 1..=3 {
        submissions(ShadowRule::Linux, count, true);
    }
}

#[test]
fn spdk_rule_loses_no_wake_up() {
    for count in 1..=3 {
        submissions(ShadowRule::Spdk, count, true);
    }
}

#[test]
#[should_panic(expected = "asleep with work, not signalled")]
fn without_the_driver_s_barrier_a_wake_up_is_lost_linux() {
    submissions(ShadowRule::Linux, 2, false);
}

#[test]
#[should_panic(expected = "asleep with work, not signalled")]
fn without_the_driver_s_barrier_a_wake_up_is_lost_spdk() {
    submissions(ShadowRule::Spdk, 2, false);
}

#[test]
#[should_panic(expected = "asleep with work, not signalled")]
fn without_the_device_s_fence_a_wake_up_is_lost_linux() {
    without_fences(Ordering::SeqCst, || submissions(ShadowRule::Linux, 2, true));
}

#[test]
#[should_panic(expected = "asleep with work, not signalled")]
fn without_the_device_s_fence_a_wake_up_is_lost_spdk() {
    without_fences(Ordering::SeqCst, || submissions(ShadowRule::Spdk, 2, true));
}

#[test]
#[should_panic(expected = "an entry must be visible before its doorbell")]
fn without_acquire_fences_an_entry_is_read_too_early() {
    without_fences(Ordering::Acquire, || submissions(ShadowRule::Linux, 1, true));
}

/// One way to ring.
#[derive(Clone, Copy)]
enum Way {
    Register,
    Shadow,
    Both,
}

fn ring(world: &World, way: Way, position: u32) {
    world.push(position);
    let value = (position + 1) % SIZE;
    match way {
        Way::Register => world.write_register(0, value),
        Way::Shadow => world.write_shadow(ShadowRule::Linux, BUFFER, 0, value, true),
        Way::Both => {
            world.write_shadow(ShadowRule::Spdk, BUFFER, 0, value, true);
            world.write_register(0, value);
        }
    }
}

fn mix(ways: &'static [Way]) {
    model(move || {
        let world = World::new(8, 1);
        let mut device = Device::new(&world);
        let count = ways.len() as u32;
        let driver = thread::spawn(move || {
            for (position, &way) in (0..).zip(ways) {
                ring(&world, way, position);
            }
        });
        device.run_until(count);
        driver.join().unwrap();
        device.finish(count);
    });
}

#[test]
fn register_writes_are_written_through_and_mixes_lose_nothing() {
    use Way::{Both, Register, Shadow};
    mix(&[Register, Register]);
    mix(&[Register, Shadow]);
    mix(&[Shadow, Register]);
    mix(&[Both, Register]);
    mix(&[Both, Shadow]);
    mix(&[Register, Both]);
}

#[test]
fn mixes_of_three_lose_nothing() {
    use Way::{Both, Register, Shadow};
    mix(&[Shadow, Register, Shadow]);
    mix(&[Register, Shadow, Register]);
    mix(&[Both, Shadow, Register]);
}

/// Doorbell Buffer Config while the driver rings by the register, or by a buffer it set up before.
#[test]
fn a_new_doorbell_buffer_loses_no_doorbell_that_is_rung_meanwhile() {
    for (way, buffer) in [
        (Way::Register, BUFFER),
        (Way::Shadow, BUFFER),
        (Way::Register, OTHER_BUFFER),
        (Way::Shadow, OTHER_BUFFER),
    ] {
        model(move || {
            let world = World::new(8, 1);
            let mut device = Device::new(&world);
            let driver = {
                let world = world.clone();
                thread::spawn(move || ring(&world, way, 0))
            };
            // What a queue does with the request.
            device.poll();
            if device.doorbell.arm(&world.memory, &world.registers, device.position).unwrap() {
                device.poll();
            }
            device.doorbell.attach(&world.memory, buffer, device.position).unwrap();
            device.run_until(1);
            driver.join().unwrap();
            device.finish(1);
        });
    }
}

/// A whole queue group whose completion queue is full, and a driver that only takes completions: the head is
/// what must wake it.
fn full_completion_queue(rule: ShadowRule, barrier: bool) {
    const SQ: u64 = 0x100;
    const CQ: u64 = 0x200;
    const PAGES: DoorbellBuffer = DoorbellBuffer { shadow: 0, event_idx: 0x40 };
    model(move || {
        let world = World::new(0x240 / 4, 4);
        let (memory, registers) = (&world.memory, &world.registers);
        let mut group = QueueGroup::<1, 4, 1>::new(GroupConfig::DEFAULT);
        let namespace = Namespace { size_blocks: 8, block_shift: 9, read_only: false };
        for request in [
            GroupRequest::SetNamespace { nsid: 1, namespace },
            GroupRequest::CreateCompletionQueue { qid: 1, base: CQ, size: 2, vector: None, coalesce: true },
            GroupRequest::CreateSubmissionQueue { qid: 1, cqid: 1, base: SQ, size: 4, page_shift: 12 },
            GroupRequest::SetDoorbellBuffer(PAGES),
        ] {
            group.handle_request(memory, registers, request);
            while group.poll_message().is_some() {}
        }
        // Three flushes. The first completes and is taken, the second fills the queue.
        for entry in 0..3 {
            memory.store_u32(SQ + entry * 64 + 4, 1).unwrap();
        }
        memory.store_u32(PAGES.shadow + u64::from(tail_index(1)) * 4, 3).unwrap();
        for head in 1..=2 {
            let command = group.poll_command(memory, registers).expect("a command");
            assert!(group.poll_command(memory, registers).is_none());
            let _ = group.complete(memory, command.tag, Status::SUCCESS);
            if head == 1 {
                world.write_shadow(rule, PAGES, head_index(1), 1, true);
            }
        }
        let driver = {
            let world = world.clone();
            thread::spawn(move || world.write_shadow(rule, PAGES, head_index(1), 0, barrier))
        };
        let mut fetched = false;
        let mut signals;
        loop {
            signals = world.signals.load(Ordering::Acquire);
            fetched |= group.poll_command(memory, registers).is_some();
            if fetched || group.arm(memory, registers, false) == Armed::Sleep {
                break;
            }
        }
        driver.join().unwrap();
        if !fetched {
            assert_ne!(world.signals.load(Ordering::Acquire), signals, "asleep with work, not signalled");
            assert!(group.poll_command(memory, registers).is_some());
        }
    });
}

#[test]
fn a_full_completion_queue_wakes_by_its_head() {
    full_completion_queue(ShadowRule::Linux, true);
    full_completion_queue(ShadowRule::Spdk, true);
}

#[test]
#[should_panic(expected = "asleep with work, not signalled")]
fn without_the_driver_s_barrier_a_full_completion_queue_stays_asleep() {
    full_completion_queue(ShadowRule::Linux, false);
}

#[test]
#[should_panic(expected = "asleep with work, not signalled")]
fn without_the_device_s_fence_a_full_completion_queue_stays_asleep() {
    without_fences(Ordering::SeqCst, || full_completion_queue(ShadowRule::Linux, true));
}
