//! Queues, commands and namespaces come and go.

use std::cell::RefCell;

use doorbell_core::command::Operation;
use doorbell_core::group::Completed;
use doorbell_core::memory::{Access, DmaError, DmaMemory};
use doorbell_core::message::{
    Coalescing, GroupEvent, GroupMessage, GroupReply, GroupRequest, GroupStatistics,
};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::queue_entry::CommandFlags;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::entry::{DataPointer, command, flush, on_blocks};
use doorbell_core::testing::pair::{RAM_BASE, RAM_BYTES};
use doorbell_core::testing::{RamMemory, ShadowRule};

use crate::Pair;
use doorbell_core::engine::GroupEngine as _;

/// Field case 13.
#[test]
fn a_completion_after_a_reset_writes_and_reads_nothing() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    pair.submit(1, flush(1));
    pair.submit(1, flush(u32::MAX));
    assert_eq!(pair.fetch(), 2);
    // The storage answers after the reset was asked for: it waits, then nothing is written.
    assert_eq!(pair.reset(), None);
    assert!(pair.group.is_resetting());
    pair.memory.watch(RAM_BASE..RAM_BASE + RAM_BYTES);
    let commands = std::mem::take(&mut pair.in_flight);
    assert_eq!(pair.complete(commands[0], Status::SUCCESS), Completed::Dropped);
    assert_eq!(pair.reply(), None);
    // The other never answers: the host knows that it can't and gives it up.
    pair.group.abandon_commands();
    assert_eq!(pair.reply(), Some(GroupReply::ResetDone));
    for command in commands {
        assert_eq!(pair.complete(command, Status::SUCCESS), Completed::Stale);
    }
    assert_eq!(pair.memory.watched_accesses(), 0);
    pair.create_cq(1, 8, None);
    pair.create_sq(1, 1, 8);
    for _ in 0..20 {
        assert_eq!(pair.execute(1, flush(1)), Status::SUCCESS);
    }
    assert_eq!(pair.request(GroupRequest::RemoveNamespace { nsid: 1 }), Some(GroupReply::Done));
}

/// Giving commands up is for resets only; anywhere else the driver would wait for ever.
#[test]
fn commands_are_abandoned_only_while_a_reset_waits() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    pair.submit(1, flush(1));
    pair.fetch();
    pair.group.abandon_commands();
    assert_eq!(pair.finish(0), Completed::Posted);
}

/// Field case 14, on one thread.
#[test]
fn sixty_four_queue_pairs_come_and_go_a_thousand_times() {
    let mut pair = Pair::<65, 128, 2>::default();
    pair.add_namespace(1, 8, 9);
    let rings: Vec<(u64, u64)> = (0..64).map(|_| (pair.allocate(4096), pair.allocate(4096))).collect();
    for round in 0..1000 {
        if round % 100 == 50 {
            pair.configure_shadow(ShadowRule::Linux);
        }
        let free = pair.allocate(0);
        for (qid, _) in (1..=64).zip(&rings) {
            pair.create_cq(qid, 4, Some(qid));
            pair.create_sq(qid, qid, 4);
        }
        for qid in 1..=64 {
            pair.submit(qid, flush(1));
        }
        assert_eq!(pair.run().len(), 64);
        if round % 3 == 0 {
            assert_eq!(pair.reset(), Some(GroupReply::ResetDone));
        } else {
            for qid in 1..=64 {
                let request = GroupRequest::DeleteSubmissionQueue { qid };
                assert_eq!(pair.request(request), Some(GroupReply::Done));
            }
            for qid in 1..=64 {
                let request = GroupRequest::DeleteCompletionQueue { qid };
                assert_eq!(pair.request(request), Some(GroupReply::Done));
            }
        }
        pair.free_from(free);
    }
    assert_eq!(pair.group.in_flight(), 0);
}

/// Field case 17.
#[test]
fn delete_sq_completes_after_the_queue_s_commands_have() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    pair.create_sq(2, 1, 8);
    for _ in 0..3 {
        pair.submit(1, flush(1));
    }
    pair.submit(2, flush(1));
    assert_eq!(pair.fetch(), 4);
    pair.submit(1, flush(1));
    assert_eq!(pair.request(GroupRequest::DeleteSubmissionQueue { qid: 1 }), None);
    // What wasn't fetched is not fetched any more, the other queue goes on.
    pair.submit(2, flush(1));
    assert_eq!(pair.fetch(), 1);
    for expected in [None, None, Some(GroupReply::Done)] {
        assert_eq!(pair.finish(0), Completed::Posted);
        assert_eq!(pair.reply(), expected);
    }
    assert_eq!(pair.run().len(), 5);
    let unknown = pair.request(GroupRequest::DeleteSubmissionQueue { qid: 1 });
    assert_eq!(unknown, Some(GroupReply::Failed(Status::INVALID_QUEUE_IDENTIFIER.dnr())));
}

/// Guest memory that keeps the address of every dword stored.
struct Recorder {
    memory: RamMemory,
    stores: RefCell<Vec<u64>>,
}

impl DmaMemory for Recorder {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.memory.read(address, buffer)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.memory.write(address, bytes)
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        self.memory.load_u32(address)
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.stores.borrow_mut().push(address);
        self.memory.store_u32(address, value)
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        self.memory.compare_exchange_u32(address, current, new)
    }
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        self.memory.check(address, len_bytes, access)
    }
}

/// Field case 20.
#[test]
fn the_dword_with_the_phase_is_written_last_at_the_wrap_too() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 3);
    let base = pair.driver.completion[&1].base;
    let spare = RamMemory::new(RAM_BASE, RAM_BYTES);
    let recorder = Recorder { memory: std::mem::replace(&mut pair.memory, spare), stores: Vec::new().into() };
    for turn in 0..10_u64 {
        pair.driver.push(&recorder.memory, 1, &flush(1));
        pair.driver.ring_tail(&recorder.memory, &pair.registers, 1, pair.driver.ring);
        let command = pair.group.poll_command(&recorder, &pair.registers).expect("a command");
        recorder.stores.borrow_mut().clear();
        let _ = pair.group.complete(&recorder, command.tag, Status::SUCCESS);
        pair.group.flush(&recorder, &pair.registers);
        let entry = base + turn % 3 * 16;
        assert_eq!(*recorder.stores.borrow(), [entry, entry + 4, entry + 8, entry + 12]);
        assert!(pair.driver.pop(&recorder.memory, 1).is_some());
        assert!(pair.driver.pop(&recorder.memory, 1).is_none());
        pair.driver.ring_head(&recorder.memory, &pair.registers, 1, pair.driver.ring);
    }
}

/// Field case 21: namespaces.
#[test]
fn unknown_and_inactive_namespaces_are_told_apart() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    for (nsid, status) in [
        (0, Status::INVALID_NAMESPACE.dnr()),
        (2, Status::INVALID_FIELD.dnr()),
        (1000, Status::INVALID_NAMESPACE.dnr()),
        (0xffff_fffe, Status::INVALID_NAMESPACE.dnr()),
    ] {
        assert_eq!(pair.execute(1, flush(nsid)), status);
        let read =
            on_blocks(NvmOpcode::READ, nsid, 0, 1, DataPointer { low: RAM_BASE, ..Default::default() });
        assert_eq!(pair.execute(1, read), status);
    }
    let read = on_blocks(NvmOpcode::READ, u32::MAX, 0, 1, DataPointer::default());
    assert_eq!(pair.execute(1, read), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(pair.execute(1, flush(u32::MAX)), Status::SUCCESS);
}

/// Field case 21: Abort acts, and says truly whether it did.
#[test]
fn abort_says_whether_the_command_was_aborted() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    let first = pair.submit(1, flush(1));
    let second = pair.submit(1, flush(1));
    assert_eq!(pair.fetch(), 2);
    let missing = [(1, 77), (2, first)];
    for (sqid, cid) in missing {
        let reply = pair.request(GroupRequest::Abort { sqid, cid });
        assert_eq!(reply, Some(GroupReply::Abort { aborted: false }));
    }
    // The host can cancel this one.
    assert_eq!(pair.request(GroupRequest::Abort { sqid: 1, cid: second }), None);
    assert_eq!(pair.group.poll_cancel(), Some(pair.in_flight[1].tag));
    assert_eq!(pair.group.poll_cancel(), None);
    let command = pair.in_flight.remove(1);
    let _ = pair.complete(command, Status::ABORT_REQUESTED);
    assert_eq!(pair.reply(), Some(GroupReply::Abort { aborted: true }));
    // That one ends by itself before the host could.
    assert_eq!(pair.request(GroupRequest::Abort { sqid: 1, cid: first }), None);
    let _ = pair.finish(0);
    assert_eq!(pair.reply(), Some(GroupReply::Abort { aborted: false }));
    let taken = pair.run();
    assert_eq!((taken[0].cid, taken[0].status), (second, Status::ABORT_REQUESTED));
    assert_eq!((taken[1].cid, taken[1].status), (first, Status::SUCCESS));
}

/// A reset overtakes a request whose reply waits; only the reset is answered.
#[test]
fn a_reset_overtakes_a_pending_request() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    let cid = pair.submit(1, flush(1));
    pair.fetch();
    assert_eq!(pair.request(GroupRequest::Abort { sqid: 1, cid }), None);
    assert_eq!(pair.reset(), None);
    assert_eq!(pair.group.poll_cancel(), None);
    let command = pair.in_flight.remove(0);
    assert_eq!(pair.complete(command, Status::ABORT_REQUESTED), Completed::Dropped);
    assert_eq!(pair.reply(), Some(GroupReply::ResetDone));
    assert_eq!(pair.reply(), None);
}

/// Field case 23.
#[test]
fn queues_of_65536_entries_wrap() {
    let mut pair = Pair::<4, 16, 2>::with_queues(65_536, 65_536);
    for rule in [None, Some(ShadowRule::Linux), Some(ShadowRule::Spdk)] {
        if let Some(rule) = rule {
            pair.configure_shadow(rule);
        }
        let mut done = 0;
        for burst in [1, 65_535, 40_000, 65_535] {
            for _ in 0..burst {
                pair.push(1, flush(1));
            }
            assert_eq!(pair.driver.is_full(1), burst == 65_535);
            pair.ring_tail(1, pair.driver.ring);
            // The command table is smaller than the queue.
            done += pair.run().len();
        }
        assert_eq!(done, 1 + 65_535 + 40_000 + 65_535);
        pair.completed.clear();
    }
    assert!(pair.events.is_empty());
}

#[test]
fn completions_may_come_in_any_order_and_carry_the_present_sqhd() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    let cids: Vec<u16> = (0..3).map(|_| pair.submit(1, flush(1))).collect();
    pair.fetch();
    let _ = pair.finish(2);
    let _ = pair.finish(0);
    let _ = pair.finish(0);
    let taken = pair.reap(1);
    assert_eq!(taken.iter().map(|entry| entry.cid).collect::<Vec<_>>(), [cids[2], cids[0], cids[1]]);
    assert!(taken.iter().all(|entry| entry.sqhd == 3 && entry.sqid == 1));
}

/// A queue that always has commands doesn't starve the other, whichever is scarce: slots or entries of the
/// completion queue.
#[test]
fn queues_take_turns() {
    for cq_size in [256, 5] {
        let mut pair = Pair::<4, 8, 2>::with_queues(128, cq_size);
        pair.create_sq(2, 1, 128);
        for _ in 0..100 {
            pair.push(1, flush(1));
            pair.push(2, flush(1));
        }
        for sqid in 1..=2 {
            pair.ring_tail(sqid, pair.driver.ring);
        }
        let order: Vec<u16> = pair.run().iter().map(|entry| entry.sqid).collect();
        assert_eq!(order.len(), 200);
        assert!(order[..64].contains(&2) && order[..64].contains(&1));
    }
}

#[test]
fn removing_a_namespace_waits_for_its_commands_and_for_flushes_of_all() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    pair.add_namespace(2, 8, 9);
    for nsid in [1, u32::MAX, 2] {
        pair.submit(1, flush(nsid));
    }
    pair.fetch();
    assert!(matches!(pair.in_flight[1].operation, Operation::FlushAll));
    assert_eq!(pair.request(GroupRequest::RemoveNamespace { nsid: 1 }), None);
    // New commands are refused at once.
    let cid = pair.submit(1, flush(1));
    assert_eq!(pair.fetch(), 0);
    let taken = pair.reap(1);
    assert_eq!((taken[0].cid, taken[0].status), (cid, Status::INVALID_FIELD.dnr()));
    let _ = pair.finish(0);
    assert_eq!(pair.reply(), None);
    let _ = pair.finish(0);
    assert_eq!(pair.reply(), Some(GroupReply::Done));
    assert_eq!(pair.group.in_flight(), 1);
    for nsid in [0, 1000, u32::MAX] {
        let reply = pair.request(GroupRequest::RemoveNamespace { nsid });
        assert_eq!(reply, Some(GroupReply::Failed(Status::INVALID_NAMESPACE.dnr())));
    }
}

/// Field case 19, the group's part.
#[test]
fn the_intx_level_falls_when_the_head_moves_in_the_shadow_alone() {
    for rule in [None, Some(ShadowRule::Linux)] {
        let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
        pair.create_cq(2, 8, None);
        pair.create_sq(2, 2, 8);
        if let Some(rule) = rule {
            pair.configure_shadow(rule);
        }
        let level = |pair: &mut Pair<4, 64, 2>| pair.group.is_level_asserted(&pair.memory, &pair.registers);
        assert!(!level(&mut pair));
        // Interrupts of this queue are disabled.
        pair.submit(2, flush(1));
        pair.fetch();
        let _ = pair.finish(0);
        assert!(!level(&mut pair));
        for _ in 0..20 {
            pair.submit(1, flush(1));
            pair.submit(1, flush(1));
            pair.asleep = false;
            pair.fetch();
            let _ = pair.finish(0);
            let _ = pair.finish(0);
            assert!(level(&mut pair));
            // Arming for a level arms the head, so the driver's move wakes the device.
            let armed = pair.group.arm(&pair.memory, &pair.registers, true);
            assert_eq!(armed, doorbell_core::group::Armed::Sleep);
            pair.asleep = true;
            assert!(pair.driver.pop(&pair.memory, 1).is_some());
            pair.ring_head(1, pair.driver.ring);
            assert!(!pair.asleep);
            assert!(level(&mut pair));
            assert_eq!(pair.reap(1).len(), 1);
            // Whoever looks at the doorbells first.
            assert_eq!(pair.fetch(), 0);
            assert!(!level(&mut pair));
        }
    }
}

#[test]
fn a_batch_is_one_interrupt_and_coalescing_waits_for_threshold_or_time() {
    let mut pair = Pair::<4, 64, 2>::with_queues(16, 16);
    let batch = |pair: &mut Pair<4, 64, 2>, n| {
        for _ in 0..n {
            pair.submit(1, flush(1));
        }
        pair.asleep = false;
        pair.fetch();
        while !pair.in_flight.is_empty() {
            let _ = pair.finish(0);
        }
        pair.interrupt();
        pair.reap(1);
        pair.interrupts.get(&1).copied().unwrap_or(0)
    };
    assert_eq!(batch(&mut pair, 5), 1);
    assert_eq!(batch(&mut pair, 1), 2);
    assert_eq!(batch(&mut pair, 0), 2);
    let coalescing = Coalescing { threshold_z: 3, time_100us: 2 };
    pair.request(GroupRequest::SetCoalescing(coalescing));
    assert_eq!(batch(&mut pair, 3), 2);
    assert_eq!(pair.group.interrupt_deadline_ns(), Some(200_000));
    assert_eq!(batch(&mut pair, 1), 3);
    assert_eq!(pair.group.interrupt_deadline_ns(), None);
    assert_eq!(batch(&mut pair, 1), 3);
    pair.now_ns = 199_999;
    assert_eq!(batch(&mut pair, 0), 3);
    pair.now_ns = 200_000;
    assert_eq!(batch(&mut pair, 0), 4);
    // A vector without coalescing.
    pair.request(GroupRequest::SetVectorCoalescing { vector: 1, enabled: false });
    assert_eq!(batch(&mut pair, 1), 5);
}

#[test]
fn statistics_count_what_completed() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    let page = pair.allocate(8192);
    let data = DataPointer { low: page, high: page + 4096, is_sgl: false };
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
        assert_eq!(pair.execute(1, on_blocks(opcode, 1, 0, 16, data)), Status::SUCCESS);
    }
    assert_eq!(pair.execute(1, on_blocks(NvmOpcode::VERIFY, 1, 0, 16, data)), Status::SUCCESS);
    assert_eq!(pair.execute(1, on_blocks(NvmOpcode::READ, 1, 2048, 1, data)), Status::LBA_OUT_OF_RANGE.dnr());
    pair.submit(1, flush(1));
    pair.fetch();
    let command = pair.in_flight.remove(0);
    let _ = pair.complete(command, Status::UNRECOVERED_READ_ERROR);
    let expected = GroupStatistics {
        bytes_read: 3 * 8192,
        bytes_written: 8192,
        read_commands: 3,
        write_commands: 1,
        media_errors: 1,
        error_log_entries: 2,
    };
    assert_eq!(pair.request(GroupRequest::ReportStatistics), Some(GroupReply::Statistics(expected)));
    let queue = pair.queue_statistics()[0];
    assert_eq!((queue.commands, queue.errors, queue.bytes_read), (6, 2, 3 * 8192));
    assert_eq!(pair.reset(), Some(GroupReply::ResetDone));
    assert_eq!(pair.request(GroupRequest::ReportStatistics), Some(GroupReply::Statistics(expected)));
}

#[test]
fn what_is_not_supported_is_refused_with_its_status() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    for opcode in [0x03, 0x04, 0x0d, 0x19, 0x7f, 0x80, 0xff] {
        let entry = command(NvmOpcode(opcode), 1, DataPointer::default());
        assert_eq!(pair.execute(1, entry), Status::INVALID_OPCODE.dnr());
    }
    for fuse in 1..=3 {
        let mut entry = flush(1);
        entry.flags = CommandFlags::new().with_fuse(fuse);
        assert_eq!(pair.execute(1, entry), Status::INVALID_FIELD.dnr());
    }
    let read_only = Namespace { size_blocks: 2048, block_shift: 9, read_only: true };
    pair.request(GroupRequest::SetNamespace { nsid: 1, namespace: read_only });
    let data = DataPointer { low: RAM_BASE, ..Default::default() };
    for opcode in [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES] {
        let entry = on_blocks(opcode, 1, 0, 1, data);
        assert_eq!(pair.execute(1, entry), Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    assert_eq!(pair.execute(1, on_blocks(NvmOpcode::READ, 1, 0, 1, data)), Status::SUCCESS);
}

/// More failures than there is room for events must not hide that a queue is dead.
#[test]
fn a_flood_of_errors_does_not_hide_a_fatal_event() {
    let mut pair = Pair::<4, 64, 2>::default();
    pair.add_namespace(1, 8, 9);
    pair.create_cq(1, 64, None);
    pair.create_sq(1, 1, 64);
    pair.memory.add_region(0x8000_0000, 4096, true);
    let lost =
        GroupRequest::CreateSubmissionQueue { qid: 2, cqid: 1, base: 0x8000_0000, size: 8, page_shift: 12 };
    assert_eq!(pair.request(lost), Some(GroupReply::Done));
    pair.memory.remove_regions(0x8000_0000..0x8000_0001);
    for _ in 0..40 {
        pair.submit(1, flush(7));
    }
    pair.registers[4].store(1, std::sync::atomic::Ordering::Relaxed);
    pair.fetch();
    let mut events = Vec::new();
    while let Some(message) = pair.group.poll_message() {
        events.push(message);
    }
    assert!(events.contains(&GroupMessage::Event(GroupEvent::Fatal { qid: 2 })));
    assert!(pair.group.dropped_events() > 0);
    assert!(pair.sleep());
}
