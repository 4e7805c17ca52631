//! The driver's side of queues: rings in guest memory, doorbells, phase.

use std::collections::{BTreeMap, VecDeque};

use zerocopy::IntoBytes;

use super::RamMemory;
use super::ring::{Ring, ShadowRule};
use crate::doorbell::{Registers, head_index, tail_index};
use crate::memory::DmaMemory;
use crate::message::DoorbellBuffer;
use crate::spec::queue_entry::{CompletionQueueEntry, SubmissionQueueEntry};
use crate::sync::{AtomicU32, Ordering, fence};

/// A ring from the driver's side.
#[derive(Clone, Copy, Debug)]
pub struct DriverQueue {
    /// Guest address.
    pub base: u64,
    /// Entries.
    pub size: u32,
    /// Submission queue: tail. Completion queue: head.
    pub position: u32,
    /// Submission queue: the head as completions told it. Completion queue: unused.
    pub sqhd: u32,
    /// Completion queue: the Phase Tag of a new entry.
    pub phase: bool,
}

/// A driver with any number of queues.
#[derive(Debug)]
pub struct Driver {
    /// By queue identifier.
    pub submission: BTreeMap<u16, DriverQueue>,
    /// By queue identifier.
    pub completion: BTreeMap<u16, DriverQueue>,
    /// The buffers of Doorbell Buffer Config.
    pub buffer: Option<DoorbellBuffer>,
    /// How doorbells are rung where nothing else is said.
    pub ring: Ring,
    /// Register writes so far.
    pub register_writes: u64,
    /// Register writes are posted: they wait here, in order, for [`Driver::deliver`].
    pub posted: Option<VecDeque<(u32, u32)>>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            submission: BTreeMap::new(),
            completion: BTreeMap::new(),
            buffer: None,
            ring: Ring::Register,
            register_writes: 0,
            posted: None,
        }
    }
}

impl Driver {
    /// Whether the submission queue has no free entry, as far as the driver knows.
    #[must_use]
    pub fn is_full(&self, sqid: u16) -> bool {
        let queue = &self.submission[&sqid];
        (queue.position + 1) % queue.size == queue.sqhd
    }

    /// Writes an entry at the tail, without ringing.
    ///
    /// # Panics
    /// Where the queue doesn't exist.
    pub fn push(&mut self, memory: &RamMemory, sqid: u16, entry: &SubmissionQueueEntry) {
        let queue = self.submission.get_mut(&sqid).expect("a submission queue");
        memory.poke(queue.base + u64::from(queue.position) * 64, entry.as_bytes());
        queue.position = (queue.position + 1) % queue.size;
    }

    /// Rings the tail doorbell. Whether the register was written at once.
    pub fn ring_tail(&mut self, memory: &RamMemory, registers: &Registers, sqid: u16, ring: Ring) -> bool {
        let position = self.submission[&sqid].position;
        self.ring(memory, registers, tail_index(sqid), position, ring)
    }

    /// Takes the next completion, if there is one, without ringing.
    ///
    /// # Panics
    /// Where the queue doesn't exist.
    pub fn pop(&mut self, memory: &RamMemory, cqid: u16) -> Option<CompletionQueueEntry> {
        let queue = self.completion.get_mut(&cqid).expect("a completion queue");
        let address = queue.base + u64::from(queue.position) * 16;
        let load = |offset| memory.load_u32(address + offset).expect("a completion queue in guest memory");
        let dword3 = load(12);
        if (dword3 >> 16 & 1 != 0) != queue.phase {
            return None;
        }
        // Between the Phase Tag and the rest; pairs with the release fence in `DmaMemory::publish`.
        fence(Ordering::Acquire);
        let entry = CompletionQueueEntry::from_dwords([load(0), load(4), load(8), dword3]);
        queue.position = (queue.position + 1) % queue.size;
        if queue.position == 0 {
            queue.phase = !queue.phase;
        }
        if let Some(submission) = self.submission.get_mut(&entry.sqid) {
            submission.sqhd = u32::from(entry.sqhd);
        }
        Some(entry)
    }

    /// Rings the head doorbell. Whether the register was written at once.
    pub fn ring_head(&mut self, memory: &RamMemory, registers: &Registers, cqid: u16, ring: Ring) -> bool {
        let position = self.completion[&cqid].position;
        self.ring(memory, registers, head_index(cqid), position, ring)
    }

    fn ring(
        &mut self,
        memory: &RamMemory,
        registers: &Registers,
        index: u32,
        value: u32,
        ring: Ring,
    ) -> bool {
        let writes_register = match (ring, self.buffer) {
            (Ring::Register, _) | (_, None) => true,
            (Ring::Shadow(rule), Some(buffer)) => rule.store(memory, buffer, index, value),
            (Ring::Both, Some(buffer)) => {
                let _ = ShadowRule::Linux.store(memory, buffer, index, value);
                true
            }
        };
        if writes_register {
            self.register_writes += 1;
            if let Some(posted) = &mut self.posted {
                posted.push_back((index, value));
                return false;
            }
            store_register(registers, index, value);
        }
        writes_register
    }

    /// Delivers the oldest posted register write, if there is one.
    pub fn deliver(&mut self, registers: &Registers) -> bool {
        let Some((index, value)) = self.posted.as_mut().and_then(VecDeque::pop_front) else { return false };
        store_register(registers, index, value);
        true
    }
}

fn store_register(registers: &Registers, index: u32, value: u32) {
    fence(Ordering::Release);
    let register: &AtomicU32 = &registers[index as usize];
    register.store(value, Ordering::Relaxed);
}
