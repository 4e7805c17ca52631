//! Doorbell rules: registers, shadow doorbells, sleeping and waking.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use doorbell_core::doorbell::{Doorbell, head_index, tail_index};
use doorbell_core::group::GroupConfig;
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::{DoorbellBuffer, GroupEvent, GroupReply, GroupRequest};
use doorbell_core::spec::status::Status;
use doorbell_core::testing::entry::flush;
use doorbell_core::testing::{PairOf, RamMemory, Ring, ShadowRule, TestGroup};

use crate::Pair;
#[allow(unused_imports, reason = "a sandboxed group has its methods by the trait alone")]
use doorbell_core::engine::GroupEngine as _;

const RULES: [ShadowRule; 2] = [ShadowRule::Linux, ShadowRule::Spdk];

/// A region of its own, which can be taken away or is read-only.
const APART: u64 = 0x8000_0000;

fn flush_many<G: TestGroup>(pair: &mut PairOf<G>, sqid: u16, n: usize) {
    for _ in 0..n {
        assert_eq!(pair.execute(sqid, flush(1)), Status::SUCCESS);
    }
}

/// Field cases 1 and 2.
#[test]
fn a_reset_forgets_the_shadow_buffers_and_goes_back_to_registers() {
    for rule in RULES {
        let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
        let buffer = pair.configure_shadow(rule);
        flush_many(&mut pair, 1, 20);
        assert_eq!(pair.reset(), Some(GroupReply::ResetDone));
        for page in [buffer.shadow, buffer.event_idx] {
            pair.memory.fill(page, 4096, 0x5a);
            pair.memory.watch(page..page + 4096);
            pair.create_cq(1, 8, Some(1));
            pair.create_sq(1, 1, 8);
            flush_many(&mut pair, 1, 20);
            assert_eq!(pair.memory.watched_accesses(), 0);
            assert_eq!(pair.memory.peek(page, 4096), [0x5a; 4096]);
            assert_eq!(pair.reset(), Some(GroupReply::ResetDone));
        }
    }
}

/// Field case 3.
#[test]
fn queues_work_before_and_after_doorbell_buffer_config_and_recreated() {
    for rule in RULES {
        let mut pair = Pair::<8, 64, 2>::with_queues(8, 16);
        pair.create_sq(2, 1, 4);
        flush_many(&mut pair, 1, 5);
        pair.configure_shadow(rule);
        flush_many(&mut pair, 2, 9);
        pair.create_cq(3, 4, Some(3));
        pair.create_sq(3, 3, 16);
        pair.create_sq(4, 3, 2);
        for round in 0..5 {
            for sqid in 1..=4 {
                flush_many(&mut pair, sqid, 7 + round);
            }
            // The shadow still holds what the old queues left; creation seeds it anew.
            for request in [
                GroupRequest::DeleteSubmissionQueue { qid: 3 },
                GroupRequest::DeleteSubmissionQueue { qid: 4 },
                GroupRequest::DeleteCompletionQueue { qid: 3 },
            ] {
                assert_eq!(pair.request(request), Some(GroupReply::Done));
            }
            pair.create_cq(3, 4, Some(3));
            pair.create_sq(4, 3, 8);
            pair.create_sq(3, 3, 16);
        }
        assert!(pair.events.is_empty());
    }
}

/// Field case 5: a driver that never touches the shadow, and one that does.
#[test]
fn register_writes_are_written_through_to_an_unused_shadow() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    let buffer = pair.configure_shadow(ShadowRule::Linux);
    pair.driver.ring = Ring::Register;
    flush_many(&mut pair, 1, 50);
    let offset = u64::from(tail_index(1)) * 4;
    assert_eq!(pair.memory.peek_u32(buffer.shadow + offset), pair.driver.submission[&1].position);
    pair.driver.ring = Ring::Shadow(ShadowRule::Linux);
    flush_many(&mut pair, 1, 50);
    pair.driver.ring = Ring::Register;
    flush_many(&mut pair, 1, 50);
}

/// A move of nearly a whole ring counts by whichever way it comes.
#[test]
fn a_register_move_of_most_of_the_ring_counts_after_the_shadow_was_used() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 16);
    pair.configure_shadow(ShadowRule::Linux);
    flush_many(&mut pair, 1, 3);
    pair.driver.ring = Ring::Register;
    for n in 1..=7 {
        for _ in 0..n {
            pair.push(1, flush(1));
        }
        pair.ring_tail(1, Ring::Register);
        assert_eq!(pair.run().len(), n);
    }
}

/// A register write that arrives after later shadow values must not run commands a second time.
#[test]
fn a_late_posted_register_write_does_not_go_back() {
    for size in [2, 3, 4, 8] {
        for late in 1..3 * size as usize {
            let config = GroupConfig { posted_registers: true, ..GroupConfig::DEFAULT };
            let mut pair = Pair::<4, 64, 2>::new(config);
            pair.add_namespace(1, 8, 9);
            pair.create_cq(1, 64, None);
            pair.create_sq(1, 1, size);
            pair.driver.posted = Some(VecDeque::new());
            pair.configure_shadow(ShadowRule::Linux);
            // Armed, so that the first move writes the register; something else wakes the device.
            assert!(pair.sleep());
            for _ in 0..late {
                pair.submit(1, flush(1));
                pair.asleep = false;
                pair.fetch();
                assert_eq!(pair.in_flight.len(), 1);
                let _ = pair.finish(0);
                assert_eq!(pair.reap(1).len(), 1);
            }
            assert!(pair.driver.register_writes > 0);
            while pair.deliver() {
                pair.fetch();
            }
            assert_eq!(pair.in_flight.len(), 0, "size {size}, {late} commands late");
        }
    }
}

/// Field case 6.
#[test]
fn a_cq_filled_to_its_last_entry_and_drained_by_the_exact_rule_makes_progress() {
    for rule in RULES {
        let mut pair = Pair::<4, 64, 2>::with_queues(64, 4);
        pair.configure_shadow(rule);
        for _ in 0..40 {
            for _ in 0..3 {
                pair.submit(1, flush(1));
            }
            assert_eq!(pair.fetch(), 3);
            while !pair.in_flight.is_empty() {
                let _ = pair.finish(0);
            }
            assert!(pair.sleep());
            assert_eq!(pair.reap(1).len(), 3);
        }
    }
}

/// Field case 7: the driver drains by shadow only and submits nothing more.
#[test]
fn full_cq_stops_fetching_and_its_head_wakes_every_queue_on_it() {
    for rule in RULES {
        for queues in 1..=3 {
            let mut pair = Pair::<8, 64, 2>::with_queues(16, 4);
            for qid in 2..=queues {
                pair.create_sq(qid, 1, 16);
            }
            pair.configure_shadow(rule);
            // EventIdx is behind the head from here on, no longer at it as the buffers were seeded.
            flush_many(&mut pair, 1, 10);
            pair.asleep = false;
            for qid in 1..=queues {
                for _ in 0..5 {
                    pair.submit(qid, flush(1));
                }
            }
            assert_eq!(pair.fetch(), 3);
            let full: u64 = pair.queue_statistics().iter().map(|queue| queue.cq_full).sum();
            assert!(full > 0);
            while !pair.in_flight.is_empty() {
                let _ = pair.finish(0);
            }
            assert_eq!(pair.fetch(), 0);
            assert!(pair.sleep());
            assert_eq!(pair.run().len(), usize::from(queues) * 5);
        }
    }
}

/// Field case 8.
#[test]
fn while_polling_linux_writes_no_register_and_spdk_one_a_filled_ring() {
    const TURNS: u64 = 320;
    for (rule, depth, allowed) in [
        (ShadowRule::Linux, 1, 2),
        (ShadowRule::Linux, 15, 2),
        (ShadowRule::Spdk, 1, 2),
        // Each turn fills the ring, and the completion queue.
        (ShadowRule::Spdk, 15, 2 * TURNS + 2),
    ] {
        let mut pair = Pair::<4, 64, 2>::with_queues(16, 16);
        pair.configure_shadow(rule);
        let before = pair.driver.register_writes;
        for _ in 0..TURNS {
            for _ in 0..depth {
                pair.push(1, flush(1));
            }
            pair.ring_tail(1, pair.driver.ring);
            // The device polls and never sleeps.
            assert_eq!(pair.fetch(), depth);
            while !pair.in_flight.is_empty() {
                let _ = pair.finish(0);
            }
            assert_eq!(pair.reap(1).len(), depth);
        }
        let writes = pair.driver.register_writes - before;
        assert!(writes <= allowed, "{rule:?} at depth {depth}: {writes} register writes");
    }
}

/// Field case 8, the step from polling to sleep.
#[test]
fn a_move_between_the_last_poll_and_arming_keeps_the_device_awake() {
    for rule in RULES {
        let mut pair = Pair::<4, 64, 2>::with_queues(16, 16);
        pair.configure_shadow(rule);
        for _ in 0..40 {
            assert_eq!(pair.fetch(), 0);
            pair.submit(1, flush(1));
            assert!(!pair.sleep());
            assert_eq!(pair.run().len(), 1);
            pair.asleep = false;
        }
        let lost: u64 = pair.queue_statistics().iter().map(|queue| queue.rearms_lost).sum();
        assert_eq!(lost, 40);
    }
}

/// Field case 9.
#[test]
fn doorbell_buffer_config_twice_and_over_garbage_loses_nothing() {
    for rule in RULES {
        let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
        for round in 0..6 {
            flush_many(&mut pair, 1, 5);
            let buffer = DoorbellBuffer { shadow: pair.allocate(4096), event_idx: pair.allocate(4096) };
            // Garbage, and values that would be in range.
            pair.memory.fill(buffer.shadow, 4096, if round % 2 == 0 { 0xff } else { 0 });
            pair.memory.fill(buffer.event_idx, 4096, 0xee);
            // Rung by the old way, not looked at yet.
            pair.submit(1, flush(1));
            assert_eq!(pair.request(GroupRequest::SetDoorbellBuffer(buffer)), Some(GroupReply::Done));
            pair.driver.buffer = Some(buffer);
            pair.driver.ring = Ring::Shadow(rule);
            assert_eq!(pair.run().len(), 1);
            // The same pages again, with a move in the shadow that wasn't looked at.
            pair.submit(1, flush(1));
            assert_eq!(pair.request(GroupRequest::SetDoorbellBuffer(buffer)), Some(GroupReply::Done));
            assert_eq!(pair.run().len(), 1);
            // What belongs to no queue is left alone.
            assert_eq!(pair.memory.peek(buffer.event_idx + 16, 4080), vec![0xee; 4080]);
        }
        assert!(pair.events.is_empty());
    }
}

/// Field case 9: a buffer that can't be written.
#[test]
fn a_refused_doorbell_buffer_leaves_the_old_one_in_use() {
    for rule in RULES {
        let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
        pair.memory.add_region(APART, 4096, false);
        let good = pair.configure_shadow(rule);
        flush_many(&mut pair, 1, 3);
        for bad in [
            DoorbellBuffer { shadow: APART, event_idx: pair.allocate(4096) },
            DoorbellBuffer { shadow: pair.allocate(4096), event_idx: APART },
            DoorbellBuffer { shadow: 0xffff_ffff_ffff_f000, event_idx: 0xffff_ffff_ffff_e000 },
        ] {
            let reply = pair.request(GroupRequest::SetDoorbellBuffer(bad));
            assert_eq!(reply, Some(GroupReply::Failed(Status::DATA_TRANSFER_ERROR)));
            pair.push(1, flush(1));
            let tail = pair.driver.submission[&1].position;
            let _ = rule.store(&pair.memory, good, tail_index(1), tail);
            pair.asleep = false;
            assert_eq!(pair.run().len(), 1);
        }
    }
}

/// The pages of an old buffer may be gone by the time a new one comes.
#[test]
fn a_vanished_old_buffer_does_not_fail_a_new_one() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    pair.memory.add_region(APART, 8192, true);
    let old = DoorbellBuffer { shadow: APART, event_idx: APART + 4096 };
    assert_eq!(pair.request(GroupRequest::SetDoorbellBuffer(old)), Some(GroupReply::Done));
    pair.memory.remove_regions(APART..APART + 1);
    pair.configure_shadow(ShadowRule::Linux);
    flush_many(&mut pair, 1, 20);
    assert!(pair.events.is_empty());
}

/// Buffers that vanish under a running controller: a fatal event, and no access to them after it.
#[test]
fn lost_buffer_memory_is_fatal_and_not_touched_again() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    let buffer = DoorbellBuffer { shadow: APART, event_idx: APART + 4096 };
    for poll in [true, false] {
        pair.memory.add_region(APART, 8192, true);
        assert_eq!(pair.request(GroupRequest::SetDoorbellBuffer(buffer)), Some(GroupReply::Done));
        pair.memory.remove_regions(APART..APART + 1);
        if poll {
            assert_eq!(pair.fetch(), 0);
        } else {
            assert!(!pair.sleep());
        }
        assert_eq!(pair.reply(), None);
        assert_eq!(pair.events.pop(), Some(GroupEvent::Fatal { qid: 1 }));
        pair.memory.watch(APART..APART + 8192);
        pair.fetch();
        assert!(pair.sleep());
        assert_eq!(pair.memory.watched_accesses(), 0);
    }
}

/// Field case 10.
#[test]
fn impossible_doorbell_values_are_dropped_with_one_event() {
    for shadow in [false, true] {
        for value in [8, 9, 0xffff, 0x1_0001, 0xffff_0001, 0x8000_0000, u32::MAX] {
            let mut pair = Pair::<4, 64, 2>::with_queues(8, 4);
            let buffer = shadow.then(|| pair.configure_shadow(ShadowRule::Linux));
            flush_many(&mut pair, 1, 3);
            let set = |pair: &mut Pair<4, 64, 2>, index: u32, value: u32| {
                if let Some(buffer) = buffer {
                    pair.memory.store_u32(buffer.shadow + u64::from(index) * 4, value).unwrap();
                } else {
                    pair.registers[index as usize].store(value, Ordering::Relaxed);
                }
                pair.asleep = false;
            };
            set(&mut pair, tail_index(1), value);
            assert_eq!(pair.fetch(), 0);
            pair.sleep();
            assert_eq!(pair.events, [GroupEvent::InvalidDoorbell { qid: 1, completion: false, value }]);
            assert_eq!(pair.fetch(), 0);
            assert!(pair.sleep());
            assert_eq!(pair.events.len(), 1);
            // The next good value works.
            flush_many(&mut pair, 1, 3);
            // The same for a head, while the completion queue is full.
            pair.events.clear();
            for _ in 0..4 {
                pair.submit(1, flush(1));
            }
            pair.asleep = false;
            assert_eq!(pair.fetch(), 3);
            while !pair.in_flight.is_empty() {
                let _ = pair.finish(0);
            }
            set(&mut pair, head_index(1), value);
            assert_eq!(pair.fetch(), 0);
            pair.sleep();
            assert_eq!(pair.events, [GroupEvent::InvalidDoorbell { qid: 1, completion: true, value }]);
            assert_eq!(pair.fetch(), 0);
            assert_eq!(pair.events.len(), 1);
            // By the driver's own rule the bad value hides the next move, so the device is woken here.
            pair.reap(1);
            pair.asleep = false;
            pair.run();
            assert_eq!(pair.completed.len(), 3 + 3 + 4);
        }
    }
}

#[test]
fn a_cq_head_beyond_the_tail_is_refused() {
    let mut pair = Pair::<4, 64, 2>::with_queues(16, 4);
    for _ in 0..6 {
        pair.submit(1, flush(1));
    }
    assert_eq!(pair.fetch(), 3);
    let _ = pair.finish(0);
    pair.registers[head_index(1) as usize].store(2, Ordering::Relaxed);
    assert_eq!(pair.fetch(), 0);
    pair.sleep();
    assert_eq!(pair.events, [GroupEvent::InvalidDoorbell { qid: 1, completion: true, value: 2 }]);
    pair.registers[head_index(1) as usize].store(1, Ordering::Relaxed);
    pair.asleep = false;
    assert_eq!(pair.fetch(), 1);
}

/// Field case 11.
#[test]
fn a_doorbell_rung_while_paused_is_found_after_resume_without_a_second_ring() {
    for shadow in [None, Some(ShadowRule::Linux), Some(ShadowRule::Spdk)] {
        let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
        if let Some(rule) = shadow {
            pair.configure_shadow(rule);
        }
        flush_many(&mut pair, 1, 3);
        pair.group.pause();
        pair.submit(1, flush(1));
        pair.asleep = false;
        assert_eq!(pair.fetch(), 0);
        assert!(pair.sleep());
        pair.group.resume();
        pair.asleep = false;
        assert_eq!(pair.run().len(), 1);
    }
}

/// A host that stands still must stay so while the driver resets the controller.
#[test]
fn a_reset_does_not_end_a_pause() {
    let mut pair = Pair::<4, 64, 2>::with_queues(8, 8);
    pair.submit(1, flush(1));
    pair.fetch();
    pair.group.pause();
    assert_eq!(pair.reset(), None);
    let command = pair.in_flight.remove(0);
    let _ = pair.complete(command, Status::SUCCESS);
    assert_eq!(pair.reply(), Some(GroupReply::ResetDone));
    pair.create_cq(1, 8, Some(1));
    pair.create_sq(1, 1, 8);
    pair.submit(1, flush(1));
    assert_eq!(pair.fetch(), 0);
    pair.group.resume();
    assert_eq!(pair.run().len(), 1);
}

/// Field case 15: registers of queues that don't exist.
#[test]
fn doorbells_of_absent_queues_are_ignored_and_cleared_at_creation() {
    let mut pair = Pair::<4, 64, 2>::default();
    pair.add_namespace(1, 8, 9);
    for register in &pair.registers {
        register.store(3, Ordering::Relaxed);
    }
    assert_eq!(pair.fetch(), 0);
    pair.create_cq(1, 8, None);
    pair.create_sq(1, 1, 8);
    assert_eq!(pair.fetch(), 0);
    flush_many(&mut pair, 1, 3);
    assert!(pair.events.is_empty());
}

#[test]
fn a_doorbell_beyond_the_register_file_reads_as_never_rung() {
    let memory = RamMemory::new(0, 4096);
    let mut doorbell = Doorbell::new(7);
    assert_eq!(doorbell.poll(&memory, &[], 0, 8), Ok(None));
    assert_eq!(doorbell.arm(&memory, &[], 0), Ok(false));
    let outside = DoorbellBuffer { shadow: u64::MAX - 8, event_idx: 0 };
    assert!(doorbell.attach(&memory, outside, 0).is_err());
    assert!(!doorbell.has_shadow());
    assert_eq!(doorbell.poll(&memory, &[], 0, 8), Ok(None));
}
