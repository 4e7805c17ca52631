//! A random life of a driver and a queue group, told in full.

use std::collections::VecDeque;
use std::fmt::Write as _;

use doorbell_core::group::{Completed, GroupConfig, QueueGroup};
use doorbell_core::message::{Coalescing, DoorbellBuffer, GroupMessage, GroupReply, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::queue_entry::SubmissionQueueEntry;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::driver::DriverQueue;
use doorbell_core::testing::entry::{DataPointer, flush, on_blocks};
use doorbell_core::testing::{Pair, Ring, ShadowRule};
use proptest::prelude::*;

/// The group of these lives: small tables, so that everything runs full.
pub(crate) type Group = QueueGroup<4, 6, 3>;
type Machine = Pair<4, 6, 3>;

/// `PROPTEST_CASES` or this many.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// What a command is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Read,
    Write,
    Flush,
    FlushAll,
    OutOfRange,
    Nonsense,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Submit {
        queue: u16,
        count: u8,
        ring: Ring,
        nsid: u32,
        command: Command,
    },
    Fetch(u8),
    Finish {
        place: u8,
        fails: bool,
    },
    Reap {
        queue: u16,
        count: u8,
        ring: Ring,
    },
    Interrupts {
        later_ns: u64,
    },
    Sleep,
    Level,
    Message,
    Cancel,
    Configure(u8),
    ClearBuffer,
    Deliver,
    Abort(u8),
    Delete {
        queue: u16,
    },
    Create {
        queue: u16,
    },
    Namespace {
        nsid: u32,
        there: bool,
        size_blocks: u64,
    },
    WriteCache(bool),
    Coalescing {
        threshold_z: u8,
        time_100us: u8,
    },
    VectorCoalescing {
        vector: u16,
        enabled: bool,
    },
    Statistics,
    Reset,
    BadDoorbell {
        index: u32,
    },
    /// Memory goes, or is back.
    Unmap {
        back: bool,
    },
}

/// Random steps.
pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let rings = [Ring::Register, Ring::Both, Ring::Shadow(ShadowRule::Linux), Ring::Shadow(ShadowRule::Spdk)];
    let ring = proptest::sample::select(rings.to_vec());
    let command = proptest::sample::select(
        &[
            Command::Read,
            Command::Read,
            Command::Write,
            Command::Flush,
            Command::FlushAll,
            Command::OutOfRange,
            Command::Nonsense,
        ][..],
    );
    let step = prop_oneof![
        12 => (1_u16..4, 1_u8..9, ring.clone(), 1_u32..4, command)
            .prop_map(|(queue, count, ring, nsid, command)| Step::Submit { queue, count, ring, nsid, command }),
        10 => (1_u8..8).prop_map(Step::Fetch),
        12 => (any::<u8>(), proptest::bool::weighted(0.2))
            .prop_map(|(place, fails)| Step::Finish { place, fails }),
        6 => (1_u16..3, 1_u8..12, ring).prop_map(|(queue, count, ring)| Step::Reap { queue, count, ring }),
        5 => (0_u64..300_000).prop_map(|later_ns| Step::Interrupts { later_ns }),
        3 => Just(Step::Sleep),
        1 => Just(Step::Level),
        6 => Just(Step::Message),
        4 => Just(Step::Cancel),
        2 => (0_u8..2).prop_map(Step::Configure),
        1 => Just(Step::ClearBuffer),
        3 => Just(Step::Deliver),
        3 => any::<u8>().prop_map(Step::Abort),
        1 => (1_u16..4).prop_map(|queue| Step::Delete { queue }),
        2 => (1_u16..4).prop_map(|queue| Step::Create { queue }),
        2 => (1_u32..4, any::<bool>(), 4_u64..9)
            .prop_map(|(nsid, there, size_blocks)| Step::Namespace { nsid, there, size_blocks }),
        1 => any::<bool>().prop_map(Step::WriteCache),
        1 => (0_u8..4, 0_u8..3)
            .prop_map(|(threshold_z, time_100us)| Step::Coalescing { threshold_z, time_100us }),
        1 => (1_u16..3, any::<bool>())
            .prop_map(|(vector, enabled)| Step::VectorCoalescing { vector, enabled }),
        1 => Just(Step::Statistics),
        1 => proptest::bool::weighted(0.3).prop_map(|reset| if reset { Step::Reset } else { Step::Statistics }),
        1 => (2_u32..8).prop_map(|index| Step::BadDoorbell { index }),
        1 => any::<bool>().prop_map(|back| Step::Unmap { back }),
    ];
    proptest::collection::vec(step, 1..most)
}

/// How a life begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) sizes: [u32; 2],
    pub(crate) posted: bool,
}

/// Random beginnings.
pub(crate) fn start() -> impl Strategy<Value = Start> {
    let sizes = proptest::sample::select(vec![[2, 2], [3, 8], [8, 3], [64, 5], [5, 64]]);
    (sizes, any::<bool>()).prop_map(|(sizes, posted)| Start { sizes, posted })
}

/// Submission queue 3, completion queue 2 and the second pair of doorbell buffers lie in memory of their own,
/// which can go.
const GOING: u64 = 0x1000_0000;
const GOING_CQ: u64 = GOING + 0x1000;
const GOING_BUFFERS: u64 = GOING + 0x2000;
const GOING_BYTES: u64 = 0x4000;

/// A machine and what has come out of it.
pub(crate) struct Life {
    pub(crate) pair: Machine,
    pub(crate) told: String,
    pages: Vec<u64>,
    data: u64,
    start: Start,
    /// Submission queue and identifier of every command so far.
    pushed: Vec<(u16, u16)>,
    /// A request that the group hasn't answered.
    busy: bool,
    /// The memory that can go isn't there.
    gone: bool,
}

impl Life {
    pub(crate) fn new(start: Start) -> Self {
        let config = GroupConfig { posted_registers: start.posted, ..GroupConfig::DEFAULT };
        let mut pair = Machine::new(config);
        pair.add_namespace(1, 8, 9);
        pair.add_namespace(2, 8, 12);
        pair.create_cq(1, start.sizes[0], Some(1));
        pair.memory.add_region(GOING, GOING_BYTES, true);
        create_going_cq(&mut pair, start.sizes[1]);
        pair.create_sq(1, 1, start.sizes[1]);
        pair.create_sq(2, 1, start.sizes[0]);
        pair.create_sq(3, 2, 16);
        pair.driver.posted = start.posted.then(VecDeque::new);
        pair.storage.media.insert(3, vec![0; 8 * 4096]);
        let pages = vec![pair.allocate(4096), pair.allocate(4096), GOING_BUFFERS, GOING_BUFFERS + 4096];
        let data = pair.allocate(16 * 4096);
        Self { pair, told: String::new(), pages, data, start, pushed: Vec::new(), busy: false, gone: false }
    }

    fn request(&mut self, request: GroupRequest) {
        // The controller has one request under way; a reset overtakes.
        if self.busy && request != GroupRequest::Reset {
            return;
        }
        self.busy = true;
        self.pair.asleep = false;
        self.pair.group.handle_request(&self.pair.memory, &self.pair.registers, request);
    }

    fn entry(&mut self, nsid: u32, command: Command) -> SubmissionQueueEntry {
        let low = self.data + u64::from(nsid) * 4096;
        let data = DataPointer { low, high: low + 4096, is_sgl: false };
        match command {
            Command::Read => on_blocks(NvmOpcode::READ, nsid, 1, 1, data),
            Command::Write => on_blocks(NvmOpcode::WRITE, nsid, 2, 1, data),
            Command::Flush => flush(nsid),
            Command::FlushAll => flush(u32::MAX),
            Command::OutOfRange => on_blocks(NvmOpcode::READ, nsid, 100, 1, data),
            Command::Nonsense => on_blocks(NvmOpcode(0x77), nsid, 0, 1, data),
        }
    }

    /// Does one step.
    pub(crate) fn step(&mut self, step: Step) {
        let pair = &mut self.pair;
        match step {
            Step::Submit { queue, count, ring, nsid, command } => {
                if !pair.driver.submission.contains_key(&queue) {
                    return;
                }
                for _ in 0..count {
                    if !self.pair.driver.is_full(queue) && (queue != 3 || !self.gone) {
                        let entry = self.entry(nsid, command);
                        let cid = self.pair.push(queue, entry);
                        self.pushed.push((queue, cid));
                    }
                }
                self.pair.ring_tail(queue, if self.gone { Ring::Register } else { ring });
            }
            Step::Fetch(count) if !pair.asleep => {
                for _ in 0..count {
                    let Some(command) = pair.group.poll_command(&pair.memory, &pair.registers) else { break };
                    let _ = write!(self.told, "{command:?}");
                    pair.in_flight.push(command);
                }
            }
            Step::Finish { place, fails } if !pair.in_flight.is_empty() => {
                let command = pair.in_flight.remove(usize::from(place) % pair.in_flight.len());
                let status = if pair.group.is_resetting() {
                    Status::SUCCESS
                } else if fails {
                    [Status::WRITE_FAULT, Status::ABORT_REQUESTED][usize::from(place) % 2]
                } else {
                    pair.storage.execute(&pair.memory, command)
                };
                let completed: Completed = pair.complete(command, status);
                let _ = write!(self.told, "{completed:?}");
            }
            Step::Reap { queue, count, ring }
                if pair.driver.completion.contains_key(&queue) && (queue != 2 || !self.gone) =>
            {
                let mut taken = 0;
                for _ in 0..count {
                    if let Some(entry) = pair.driver.pop(&pair.memory, queue) {
                        let _ = write!(self.told, "{entry:?}");
                        taken += 1;
                    }
                }
                if taken > 0 {
                    pair.ring_head(queue, if self.gone { Ring::Register } else { ring });
                }
            }
            Step::Interrupts { later_ns } => {
                pair.now_ns += later_ns;
                let _ = write!(self.told, "{:?}", pair.group.interrupt_deadline_ns());
                while let Some(vector) = pair.group.poll_interrupt(pair.now_ns) {
                    let _ = write!(self.told, "vector {vector}");
                }
            }
            Step::Sleep => {
                pair.asleep = pair.group.arm(&pair.memory, &pair.registers, false)
                    == doorbell_core::group::Armed::Sleep;
                let _ = write!(self.told, "asleep {}", pair.asleep);
            }
            Step::Level => {
                let level = pair.group.is_level_asserted(&pair.memory, &pair.registers);
                let _ = write!(self.told, "level {level}");
            }
            Step::Message => {
                let message = pair.group.poll_message();
                self.busy &= !matches!(message, Some(GroupMessage::Reply(_)));
                let _ = write!(self.told, "{message:?}");
                if message == Some(GroupMessage::Reply(GroupReply::ResetDone)) {
                    self.begin_again();
                }
            }
            Step::Cancel => {
                let _ = write!(self.told, "cancel {:?}", pair.group.poll_cancel());
            }
            Step::Configure(which) if !self.busy && !pair.group.is_resetting() => {
                while pair.deliver() {}
                let pages = &self.pages[usize::from(which) * 2..];
                let buffer = DoorbellBuffer { shadow: pages[0], event_idx: pages[1] };
                pair.driver.buffer = Some(buffer);
                self.request(GroupRequest::SetDoorbellBuffer(buffer));
            }
            Step::ClearBuffer if !self.busy => {
                pair.driver.buffer = None;
                self.request(GroupRequest::ClearDoorbellBuffer);
            }
            Step::Deliver => {
                pair.deliver();
            }
            Step::Abort(place) if !self.pushed.is_empty() && !pair.group.is_resetting() => {
                // One of the newest: some of them are in flight.
                let (sqid, cid) =
                    *self.pushed.iter().rev().take(8).nth(usize::from(place) % 8).unwrap_or(&(1, 0));
                self.request(GroupRequest::Abort { sqid, cid });
            }
            Step::Delete { queue } if !self.busy && !pair.group.is_resetting() => {
                pair.driver.submission.remove(&queue);
                self.request(GroupRequest::DeleteSubmissionQueue { qid: queue });
            }
            Step::Create { queue } if !self.busy && !pair.group.is_resetting() => self.create(queue),
            Step::Namespace { nsid, there: true, size_blocks } => {
                let block_shift = if nsid == 2 { 12 } else { 9 };
                let namespace = Namespace { size_blocks, block_shift, read_only: size_blocks == 5 };
                self.request(GroupRequest::SetNamespace { nsid, namespace });
            }
            Step::Namespace { nsid, there: false, .. } => {
                self.request(GroupRequest::RemoveNamespace { nsid });
            }
            Step::WriteCache(enabled) => self.request(GroupRequest::SetWriteCache { enabled }),
            Step::Coalescing { threshold_z, time_100us } => {
                self.request(GroupRequest::SetCoalescing(Coalescing { threshold_z, time_100us }));
            }
            Step::VectorCoalescing { vector, enabled } => {
                self.request(GroupRequest::SetVectorCoalescing { vector, enabled });
            }
            Step::Statistics => self.request(GroupRequest::ReportStatistics),
            Step::Reset => {
                pair.driver.submission.clear();
                pair.driver.completion.clear();
                pair.driver.buffer = None;
                self.request(GroupRequest::Reset);
            }
            Step::BadDoorbell { index } => {
                pair.registers[index as usize].store(1000, std::sync::atomic::Ordering::Relaxed);
                pair.asleep = false;
            }
            Step::Unmap { back } => {
                if self.gone == back {
                    pair.memory.remove_regions(GOING..GOING + 1);
                    if back {
                        pair.memory.add_region(GOING, GOING_BYTES, true);
                    }
                }
                self.gone = !back;
            }
            _ => {}
        }
    }

    fn create(&mut self, queue: u16) {
        let driver = &mut self.pair.driver;
        if driver.submission.contains_key(&queue) || !driver.completion.contains_key(&(1 + queue / 3)) {
            return;
        }
        let base = if queue == 3 { GOING } else { self.data + 8 * 4096 + u64::from(queue) * 4096 };
        let ring = DriverQueue { base, size: 8, position: 0, sqhd: 0, phase: false };
        let request = GroupRequest::CreateSubmissionQueue {
            qid: queue,
            cqid: 1 + queue / 3,
            base,
            size: 8,
            page_shift: 13,
        };
        self.pair.driver.submission.insert(queue, ring);
        self.request(request);
    }

    /// After a reset: new queues.
    fn begin_again(&mut self) {
        let base = self.pair.allocate(0);
        self.step(Step::Unmap { back: true });
        self.pair.create_cq(1, self.start.sizes[0], Some(1));
        create_going_cq(&mut self.pair, self.start.sizes[1]);
        self.pair.create_sq(1, 1, 5);
        self.pair.free_from(base);
    }

    /// Lets the driver go on as long as there is anything; then what everything looks like.
    pub(crate) fn end(mut self) -> (String, Vec<u8>, Vec<u32>) {
        for round in 0..40_u8 {
            self.step(Step::Unmap { back: true });
            self.step(Step::Message);
            self.step(Step::Deliver);
            self.step(Step::Fetch(4));
            for _ in 0..3 {
                self.step(Step::Finish { place: round, fails: false });
            }
            self.step(Step::Interrupts { later_ns: 50_000 });
            for queue in 1..3 {
                self.step(Step::Reap { queue, count: 5, ring: Ring::Register });
            }
            self.step(Step::Sleep);
        }
        let _ = write!(self.told, "{:?}{:?}", self.pair.group.statistics(), self.pair.group.dropped_events());
        for statistics in self.pair.group.queue_statistics() {
            let _ = write!(self.told, "{statistics:?}");
        }
        let memory = self.pair.memory.peek(doorbell_core::testing::pair::RAM_BASE, 1 << 18);
        let load =
            |register: &std::sync::atomic::AtomicU32| register.load(std::sync::atomic::Ordering::Relaxed);
        let registers = self.pair.registers.iter().take(16).map(load).collect();
        (self.told, memory, registers)
    }
}

/// A completion queue of identifier 2 in the memory that can go.
fn create_going_cq(pair: &mut Machine, size: u32) {
    let base = GOING_CQ;
    pair.memory.fill(base, 4096, 0);
    let request = GroupRequest::CreateCompletionQueue { qid: 2, base, size, vector: Some(2), coalesce: true };
    assert_eq!(pair.request(request), Some(GroupReply::Done));
    pair.driver.completion.insert(2, DriverQueue { base, size, position: 0, sqhd: 0, phase: true });
}
