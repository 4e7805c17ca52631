//! Nanoseconds a 4 KiB read, without moving its data: fetch, check, walk its PRP, complete.

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_core::command::{IoCommand, Operation};
use doorbell_core::doorbell::{head_index, tail_index};
use doorbell_core::engine::GroupEngine;
use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::{GroupMessage, GroupReply, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::entry::{DataPointer, on_blocks};
use doorbell_wasm::{Module, Sandbox, SandboxConfig};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::IntoBytes;

use crate::flat::{Flat, registers};
use crate::percentile;

const SQ: u64 = 0x1_0000;
const CQ: u64 = 0x2_0000;
const DATA: u64 = 0x3_0000;
const ENTRIES: u32 = 256;
const COMMANDS_PER_ROUND: u32 = 4096;
const ROUNDS: usize = 31;

/// A group with one queue pair, and the driver's side of it.
struct Loop<G> {
    group: G,
    memory: Flat,
    registers: Vec<AtomicU32>,
    tail: u32,
    head: u32,
    taken: Vec<IoCommand>,
    interrupts: u64,
}

impl<G: GroupEngine> Loop<G> {
    fn new(group: G) -> Self {
        let memory = Flat::new(1 << 20);
        let mut made = Self {
            group,
            memory,
            registers: registers(),
            tail: 0,
            head: 0,
            taken: Vec::new(),
            interrupts: 0,
        };
        let namespace = Namespace { size_blocks: 1 << 20, block_shift: 12, read_only: false };
        let (vector, coalesce) = (Some(1), false);
        for request in [
            GroupRequest::SetNamespace { nsid: 1, namespace },
            GroupRequest::CreateCompletionQueue { qid: 1, base: CQ, size: ENTRIES, vector, coalesce },
            GroupRequest::CreateSubmissionQueue { qid: 1, cqid: 1, base: SQ, size: ENTRIES, page_shift: 12 },
        ] {
            made.group.handle_request(&made.memory, &made.registers, request);
            assert_eq!(made.group.poll_message(), Some(GroupMessage::Reply(GroupReply::Done)));
        }
        let pointer = DataPointer { low: DATA, high: 0, is_sgl: false };
        for slot in 0..u64::from(ENTRIES) {
            let entry = on_blocks(NvmOpcode::READ, 1, slot, 1, pointer);
            made.memory.write(SQ + slot * 64, entry.as_bytes()).expect("the ring");
        }
        made
    }

    /// One batch, from the doorbell to the interrupt.
    fn batch(&mut self, batch: u32) {
        self.tail = (self.tail + batch) % ENTRIES;
        self.registers[tail_index(1) as usize].store(self.tail, Ordering::Relaxed);
        while let Some(command) = self.group.poll_command(&self.memory, &self.registers) {
            self.taken.push(command);
        }
        assert_eq!(self.taken.len(), batch as usize);
        for command in self.taken.drain(..) {
            let Operation::Read(mut transfer) = command.operation else { panic!("a read") };
            let segment = transfer.segments.next_segment(&self.memory).expect("a piece").expect("in order");
            assert_eq!(segment.len_bytes, 4096);
            let _ = self.group.complete(&self.memory, command.tag, Status::SUCCESS);
        }
        self.group.flush(&self.memory, &self.registers);
        while self.group.poll_interrupt(1).is_some() {
            self.interrupts += 1;
        }
        self.head = (self.head + batch) % ENTRIES;
        self.registers[head_index(1) as usize].store(self.head, Ordering::Relaxed);
    }

    /// Nanoseconds a command.
    fn round(&mut self, batch: u32) -> f64 {
        let started = processor_time_ns();
        for _ in 0..COMMANDS_PER_ROUND / batch {
            self.batch(batch);
        }
        let spent = processor_time_ns() - started;
        spent as f64 / f64::from(COMMANDS_PER_ROUND / batch * batch)
    }
}

pub(crate) fn run(module: &Module) {
    println!("ns a 4 KiB command, without its data");
    println!("{:>8} {:>8} {:>8} {:>8}", "batch", "native", "sandbox", "more");
    for batch in [1, 2, 4, 8, 16, 32, 128] {
        let config = GroupConfig { mdts_bytes: 1 << 20, posted_registers: false };
        let mut native = Loop::new(QueueGroup::<64, 256, 32>::new(config));
        let sandbox = Sandbox::new(module, SandboxConfig::DEFAULT);
        let mut sandboxed = Loop::new(sandbox.group().expect("a group"));
        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            fast.push(native.round(batch));
            slow.push(sandboxed.round(batch));
        }
        assert_eq!(native.interrupts, sandboxed.interrupts);
        let (fast, slow) = (percentile(&mut fast, 50.0), percentile(&mut slow, 50.0));
        println!("{batch:>8} {fast:>8.1} {slow:>8.1} {:>8.1}", slow - fast);
    }
}

pub(crate) fn processor_time_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
