//! The controller together with queue groups that really work: what a driver sees over whole lives.

use super::*;

/// Guest addresses of the I/O queues: 64 KiB for each identifier, the completion queue in the upper half.
fn ring(qid: u16) -> u64 {
    0x40_0000 + u64::from(qid) * 0x1_0000
}

/// The driver's side of one I/O queue pair of 16 entries.
struct Pair {
    qid: u16,
    tail: u32,
    head: u32,
    phase: bool,
    cid: u16,
}

impl Pair {
    fn create(bench: &mut Bench, qid: u16) -> Self {
        bench.memory.fill(ring(qid), 0x1_0000, 0);
        bench.ok(with_prp1(create_cq(qid.into(), 15, 1), ring(qid) + 0x8000));
        bench.ok(with_prp1(create_sq(qid.into(), 15, qid.into()), ring(qid)));
        Self { qid, tail: 0, head: 0, phase: true, cid: 0 }
    }

    fn delete(self, bench: &mut Bench) {
        bench.ok(entry(0x00, 0, self.qid.into(), 0));
        bench.ok(entry(0x04, 0, self.qid.into(), 0));
    }

    /// A read of one block, rung by the shadow too where one is in use; returns its identifier.
    fn read(&mut self, bench: &mut Bench, nsid: u32) -> u16 {
        self.cid += 1;
        let mut dwords = entry(0x02, nsid, 0, 0);
        dwords[0] |= u32::from(self.cid) << 16;
        let bytes: Vec<u8> = dwords.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        bench.memory.poke(ring(self.qid) + u64::from(self.tail) * 64, &bytes);
        self.tail = (self.tail + 1) % 16;
        self.write_doorbell(bench, 0, self.tail);
        bench.run();
        self.cid
    }

    fn write_doorbell(&self, bench: &Bench, which: u16, value: u32) {
        let index = usize::from(2 * self.qid + which);
        if let Some(buffer) = bench.controller.doorbell_buffer() {
            bench.memory.poke(buffer.shadow + index as u64 * 4, &value.to_le_bytes());
        }
        bench.registers[index].store(value, Ordering::Relaxed);
    }

    /// The next completion, if there is one.
    fn completion(&mut self, bench: &mut Bench) -> Option<CompletionQueueEntry> {
        let address = ring(self.qid) + 0x8000 + u64::from(self.head) * 16;
        let dwords = [0, 4, 8, 12].map(|offset| bench.memory.peek_u32(address + offset));
        let completion = CompletionQueueEntry::from_dwords(dwords);
        if completion.phase != self.phase {
            return None;
        }
        self.head = (self.head + 1) % 16;
        self.phase ^= self.head == 0;
        self.write_doorbell(bench, 1, self.head);
        bench.run();
        Some(completion)
    }

    fn reads(&mut self, bench: &mut Bench, count: usize) {
        for round in 0..count {
            let cid = self.read(bench, 1);
            let completion = self.completion(bench).unwrap_or_else(|| panic!("read {round} is lost"));
            assert_eq!((completion.cid, completion.status), (cid, Status::SUCCESS));
        }
        assert_eq!(self.completion(bench), None, "a command ran twice");
    }
}

fn whole() -> Bench {
    let mut bench = Bench::new();
    bench.real = vec![QueueGroup::new(GroupConfig::DEFAULT), QueueGroup::new(GroupConfig::DEFAULT)];
    bench.controller.add_namespace(None, namespace(1)).expect("good");
    bench.enable();
    bench
}

fn reset(bench: &mut Bench) {
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    bench.enable();
}

fn configure_doorbell_buffer(bench: &mut Bench) {
    bench.ok(with_prp2(with_prp1(entry(0x7c, 0, 0, 0), SHADOW), EVENT_IDX));
}

#[test]
fn queues_before_and_after_doorbell_buffer_config_and_made_again_work_alike() {
    let mut bench = whole();
    let mut first = Pair::create(&mut bench, 1);
    first.reads(&mut bench, 20);
    configure_doorbell_buffer(&mut bench);
    first.reads(&mut bench, 20);
    let mut second = Pair::create(&mut bench, 2);
    second.reads(&mut bench, 20);
    second.delete(&mut bench);
    let mut again = Pair::create(&mut bench, 2);
    again.reads(&mut bench, 20);
    configure_doorbell_buffer(&mut bench);
    again.reads(&mut bench, 20);
    first.reads(&mut bench, 20);
}

#[test]
fn after_a_reset_without_a_new_config_the_old_buffers_are_not_touched() {
    let mut bench = whole();
    let mut pair = Pair::create(&mut bench, 1);
    configure_doorbell_buffer(&mut bench);
    pair.reads(&mut bench, 20);
    bench.write32(CC, 0x0046_0000);
    bench.run();
    bench.memory.watch(SHADOW..EVENT_IDX + 4096);
    bench.enable();
    let mut pair = Pair::create(&mut bench, 1);
    pair.reads(&mut bench, 40);
    assert_eq!(bench.memory.watched_accesses(), 0);
}

#[test]
fn a_reset_with_commands_in_flight_waits_for_storage_and_completes_nothing() {
    let mut bench = whole();
    let mut pair = Pair::create(&mut bench, 1);
    bench.hold_io = true;
    pair.read(&mut bench, 1);
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!(bench.read32(CSTS), 1, "the command may still touch guest memory");
    bench.memory.watch(ring(0)..RAM_BYTES);
    bench.hold_io = false;
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    assert_eq!(bench.memory.watched_accesses(), 0);
    bench.enable();
    Pair::create(&mut bench, 1).reads(&mut bench, 20);
}

#[test]
fn deleting_a_queue_waits_for_its_commands() {
    let mut bench = whole();
    let mut pair = Pair::create(&mut bench, 1);
    bench.hold_io = true;
    pair.read(&mut bench, 1);
    bench.submit(entry(0x00, 0, 1, 0));
    assert_eq!(bench.peek_completions(), []);
    bench.hold_io = false;
    bench.run();
    assert_eq!(bench.completions().len(), 1);
    assert!(pair.completion(&mut bench).is_some());
}

#[test]
fn a_namespace_goes_once_its_commands_have_ended() {
    let mut bench = whole();
    assert!(bench.controller.poll_namespace_change().is_some());
    let mut pair = Pair::create(&mut bench, 1);
    bench.hold_io = true;
    pair.read(&mut bench, 1);
    bench.controller.remove_namespace(1).expect("there");
    bench.run();
    assert_eq!(bench.controller.poll_namespace_change(), None);
    pair.read(&mut bench, 1);
    let refused = pair.completion(&mut bench).expect("refused at once");
    assert!(!refused.status.is_success(), "{:?}", refused.status);
    bench.hold_io = false;
    bench.run();
    assert_eq!(bench.controller.poll_namespace_change(), Some(NamespaceChange::Removed { nsid: 1 }));
    assert_eq!(pair.completion(&mut bench).map(|completion| completion.status), Some(Status::SUCCESS));
}

#[test]
fn abort_of_a_command_that_is_gone_says_so() {
    let mut bench = whole();
    let mut pair = Pair::create(&mut bench, 1);
    pair.reads(&mut bench, 1);
    assert_eq!(bench.ok(entry(0x08, 0, 1 << 16 | 1, 0)), 1);
}

#[test]
fn smart_counts_what_the_groups_did() {
    let mut bench = whole();
    Pair::create(&mut bench, 1).reads(&mut bench, 7);
    Pair::create(&mut bench, 2).reads(&mut bench, 5);
    let page = bench.data(get_log(2, 0, 512));
    assert_eq!(page[32..48], 1u128.to_le_bytes(), "12 blocks are one data unit");
    assert_eq!(page[64..80], 12u128.to_le_bytes());
}

#[test]
fn many_queue_pairs_are_made_and_deleted_over_many_lives() {
    let mut bench = whole();
    for round in 0..20 {
        let mut pairs: Vec<Pair> = (1..=48).map(|qid| Pair::create(&mut bench, qid)).collect();
        for pair in &mut pairs {
            pair.reads(&mut bench, 3);
        }
        if round % 2 == 0 {
            pairs.into_iter().for_each(|pair| pair.delete(&mut bench));
        } else {
            reset(&mut bench);
        }
    }
}
