//! When the host calls the module, and what it leaves for one call.

use doorbell_core::engine::GroupEngine;
use doorbell_core::message::{Coalescing, GroupReply, GroupRequest};
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::PairOf;
use doorbell_core::testing::entry::{DataPointer, flush, on_blocks};

use crate::group::ModuleGroup;

/// A driver with one queue pair of 128 entries, and `count` reads on their way.
fn reads(count: u64) -> PairOf<ModuleGroup> {
    let mut pair = PairOf::<ModuleGroup>::with_queues(128, 128);
    let buffer = pair.allocate(4096);
    let data = DataPointer { low: buffer, high: 0, is_sgl: false };
    for at in 0..count {
        let _ = pair.push(1, on_blocks(NvmOpcode::READ, 1, at * 8, 8, data));
    }
    pair.ring_tail(1, pair.driver.ring);
    pair
}

#[test]
fn a_group_without_work_makes_no_call() {
    let mut pair = reads(1);
    assert_eq!(pair.run().len(), 1);
    assert_eq!(pair.fetch(), 0);
    let before = pair.group.calls();
    assert_eq!(pair.fetch(), 0);
    assert_eq!(pair.group.calls(), before);
}

#[test]
fn a_head_that_moves_makes_no_call_while_there_is_room() {
    let mut pair = reads(1);
    assert_eq!(pair.fetch(), 1);
    let _ = pair.finish(0);
    assert_eq!(pair.fetch(), 0);
    let before = pair.group.calls();
    assert_eq!(pair.reap(1).len(), 1);
    assert_eq!(pair.fetch(), 0);
    assert_eq!(pair.group.calls(), before);
}

#[test]
fn half_of_a_large_batch_is_posted_before_its_end_and_shares_its_interrupt() {
    let mut pair = reads(32);
    for _ in 0..20 {
        let command = pair.group.poll_command(&pair.memory, &pair.registers).expect("a command");
        let _ = pair.group.complete(&pair.memory, command.tag, Status::SUCCESS);
    }
    assert_eq!(pair.reap(1).len(), 16);
    assert_eq!(pair.group.poll_interrupt(1), None, "four more are to come with it");
    for _ in 20..32 {
        let command = pair.group.poll_command(&pair.memory, &pair.registers).expect("a command");
        let _ = pair.group.complete(&pair.memory, command.tag, Status::SUCCESS);
    }
    assert!(pair.group.poll_command(&pair.memory, &pair.registers).is_none());
    assert_eq!(pair.reap(1).len(), 16);
    assert_eq!(pair.group.poll_interrupt(1), Some(1));
    assert_eq!(pair.group.poll_interrupt(1), None);
}

#[test]
fn one_call_posts_a_batch_and_fetches_the_next() {
    let mut pair = reads(8);
    assert_eq!(pair.fetch(), 8);
    let before = pair.group.calls();
    for command in std::mem::take(&mut pair.in_flight) {
        let _ = pair.group.complete(&pair.memory, command.tag, Status::SUCCESS);
    }
    let data = DataPointer { low: pair.allocate(4096), high: 0, is_sgl: false };
    let _ = pair.submit(1, on_blocks(NvmOpcode::READ, 1, 0, 8, data));
    assert!(pair.group.poll_command(&pair.memory, &pair.registers).is_some());
    assert_eq!(pair.group.calls(), before + 1);
    assert_eq!(pair.reap(1).len(), 8);
}

#[test]
fn a_flush_posts_more_than_the_module_s_list_holds() {
    let mut pair = PairOf::<ModuleGroup>::with_queues(512, 512);
    for _ in 0..400 {
        let _ = pair.push(1, flush(1));
    }
    pair.ring_tail(1, pair.driver.ring);
    assert_eq!(pair.fetch(), 400);
    for command in std::mem::take(&mut pair.in_flight) {
        let _ = pair.group.complete(&pair.memory, command.tag, Status::SUCCESS);
    }
    pair.group.flush(&pair.memory, &pair.registers);
    assert_eq!(pair.reap(1).len(), 400);
}

#[test]
fn a_queue_that_rang_while_no_slot_was_free_is_fetched_when_one_is() {
    let mut pair = PairOf::<ModuleGroup>::with_queues(2048, 2048);
    pair.create_cq(2, 16, None);
    pair.create_sq(2, 2, 16);
    for _ in 0..1024 {
        let _ = pair.push(1, flush(1));
    }
    pair.ring_tail(1, pair.driver.ring);
    assert_eq!(pair.fetch(), 1024, "as many as the module has slots");
    let _ = pair.submit(2, flush(1));
    assert_eq!(pair.fetch(), 0);
    for command in std::mem::take(&mut pair.in_flight) {
        let _ = pair.group.complete(&pair.memory, command.tag, Status::SUCCESS);
    }
    assert_eq!(pair.fetch(), 1, "without another register write");
}

#[test]
fn a_busy_queue_does_not_hold_a_coalesced_interrupt_back() {
    let mut pair = PairOf::<ModuleGroup>::with_queues(64, 64);
    pair.create_cq(2, 64, None);
    pair.create_sq(2, 2, 64);
    let coalescing = Coalescing { threshold_z: 0, time_100us: 1 };
    assert_eq!(pair.request(GroupRequest::SetCoalescing(coalescing)), Some(GroupReply::Done));
    for qid in [1, 2, 2, 2, 2] {
        let _ = pair.submit(qid, flush(1));
        let command = pair.group.poll_command(&pair.memory, &pair.registers).expect("a command");
        // It waits for the next turn, so at no look at interrupts everything has been posted.
        let _ = pair.group.complete(&pair.memory, command.tag, Status::SUCCESS);
        pair.now_ns += 1_000_000;
        pair.interrupt();
    }
    assert_eq!(pair.interrupts.get(&1), Some(&1));
}

#[test]
fn a_coalesced_interrupt_is_still_due_when_the_device_sleeps() {
    let mut pair = PairOf::<ModuleGroup>::with_queues(64, 64);
    let coalescing = Coalescing { threshold_z: 9, time_100us: 2 };
    assert_eq!(pair.request(GroupRequest::SetCoalescing(coalescing)), Some(GroupReply::Done));
    let _ = pair.submit(1, flush(1));
    assert_eq!(pair.fetch(), 1);
    let _ = pair.finish(0);
    pair.interrupt();
    let due_ns = pair.group.interrupt_deadline_ns();
    assert_eq!(due_ns, Some(pair.now_ns + 200_000));
    assert!(pair.sleep());
    assert_eq!(pair.group.interrupt_deadline_ns(), due_ns);
}
