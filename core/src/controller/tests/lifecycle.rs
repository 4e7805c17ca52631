//! Enabling, resets and shutdown.

use super::*;
use crate::message::CommandError;

/// What the driver's registers hold when a configuration is impossible: CFS, not RDY.
fn is_fatal(mut bench: Bench) -> bool {
    bench.run();
    bench.read32(CSTS) == 0b10
}

fn configured(aqa: u32, asq: u64, acq: u64, cc: u32) -> Bench {
    let mut bench = Bench::new();
    bench.write32(0x24, aqa);
    bench.write64(0x28, asq);
    bench.write64(0x30, acq);
    bench.write32(CC, cc);
    bench
}

#[test]
fn impossible_configurations_are_fatal() {
    const GOOD: (u32, u64, u64, u32) = (0x001f_001f, ASQ, ACQ, 0x0046_0001);
    let (aqa, asq, acq, cc) = GOOD;
    assert!(!is_fatal(configured(aqa, asq, acq, cc)));
    assert!(is_fatal(configured(0x001f_0000, asq, acq, cc)), "submission queue of one entry");
    assert!(is_fatal(configured(0x0000_001f, asq, acq, cc)), "completion queue of one entry");
    assert!(is_fatal(configured(aqa, RAM_BYTES, acq, cc)), "submission queue outside memory");
    assert!(is_fatal(configured(aqa, asq, u64::MAX, cc)), "completion queue outside memory");
    assert!(is_fatal(configured(aqa, asq, acq, cc | 5 << 7)), "memory page too large");
    assert!(is_fatal(configured(aqa, asq, acq, cc | 1 << 7)), "queues not aligned to the memory page");
    assert!(is_fatal(configured(aqa, asq, acq, cc | 1 << 4)), "command set");
    assert!(is_fatal(configured(aqa, asq, acq, cc | 1 << 11)), "arbitration");
    assert!(!is_fatal(configured(aqa, 0x1_0000, 0x2_0000, cc | 4 << 7)), "pages of 64 KiB");
    assert!(!is_fatal(configured(aqa, asq, acq, 1)), "entry sizes may be set after enabling");
}

#[test]
fn a_reset_clears_fatal_status() {
    let mut bench = configured(0, ASQ, ACQ, 0x0046_0001);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0b10);
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    bench.enable();
}

#[test]
fn ready_falls_only_after_every_group_has_answered() {
    let mut bench = Bench::enabled();
    bench.groups[1].hold = true;
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!(bench.requests(0), [GroupRequest::Reset]);
    assert_eq!(bench.requests(1), [GroupRequest::Reset]);
    assert_eq!(bench.read32(CSTS), 1);
    assert!(!bench.controller.quiesced());
    bench.groups[1].release();
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    assert!(bench.controller.quiesced());
}

#[test]
fn enabling_during_a_reset_waits_for_it() {
    let mut bench = Bench::enabled();
    bench.groups[0].hold = true;
    bench.write32(CC, 0x0046_0000);
    bench.write32(CC, 0x0046_0001);
    bench.run();
    bench.groups[0].release();
    bench.enable();
    bench.ok(identify(1, 0));
}

#[test]
fn doorbells_are_zeroed_after_a_reset_and_before_ready() {
    let mut bench = Bench::enabled();
    bench.registers.iter().for_each(|register| register.store(7, Ordering::Relaxed));
    bench.groups[0].hold = true;
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert!(bench.registers[5].load(Ordering::Relaxed) == 7, "a group may still look at it");
    bench.groups[0].release();
    bench.run();
    assert!(bench.registers.iter().all(|register| register.load(Ordering::Relaxed) == 0));
    bench.registers.iter().for_each(|register| register.store(9, Ordering::Relaxed));
    bench.enable();
    assert!(bench.registers.iter().all(|register| register.load(Ordering::Relaxed) == 0));
}

#[test]
fn doorbells_before_ready_or_of_no_queue_start_nothing() {
    let mut bench = Bench::new();
    bench.registers[0].store(5, Ordering::Relaxed);
    bench.controller.handle_doorbell_write(&bench.registers, 0x1000, &5u32.to_le_bytes());
    bench.run();
    bench.enable();
    assert_eq!(bench.peek_completions(), []);
    assert_eq!(bench.ok(get_feature(0x0b, 0)), 0);
}

#[test]
fn a_reset_overtakes_a_request_and_its_old_answer_counts_for_nothing() {
    let mut bench = Bench::enabled();
    bench.groups[0].hold = true;
    bench.submit(create_cq(1, 15, 0));
    assert_eq!(bench.requests(0).len(), 1);
    bench.write32(CC, 0x0046_0000);
    assert!(!bench.poll());
    assert_eq!(bench.controller.poll_group_request(), Some((0, GroupRequest::Reset)));
    assert_eq!(bench.controller.poll_group_request(), Some((1, GroupRequest::Reset)));
    bench.reply(1, GroupReply::ResetDone);
    bench.reply(0, GroupReply::Done);
    assert!(!bench.poll());
    assert_eq!(bench.read32(CSTS), 1, "the answer was to the older request");
    bench.reply(0, GroupReply::ResetDone);
    assert!(!bench.poll());
    assert_eq!(bench.read32(CSTS), 0);
    assert_eq!(bench.peek_completions(), [], "the command is gone without a completion");
}

#[test]
fn a_reset_forgets_queues_features_and_event_requests() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(1, 15, 0));
    bench.ok(create_sq(1, 15, 1));
    bench.ok(set_feature(0x0b, 0x1ff));
    bench.ok(set_feature(0x08, 0x0a0b));
    bench.submit(AER);
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!(bench.peek_completions(), []);
    bench.enable();
    assert_eq!(bench.ok(get_feature(0x0b, 0)), 0);
    assert_eq!(bench.ok(get_feature(0x08, 0)), 0);
    assert_eq!(bench.ok(get_feature(0x07, 0)), 63 << 16 | 63);
    bench.ok(create_cq(1, 15, 0));
}

#[test]
fn every_kind_of_reset_clears_the_registers() {
    for kind in [ResetKind::Flr, ResetKind::Nssr, ResetKind::D3hot, ResetKind::Disconnect] {
        let mut bench = Bench::enabled();
        bench.write32(0x0c, 1);
        bench.controller.reset(kind);
        bench.run();
        assert_eq!(bench.read32(CC), 0, "{kind:?}");
        assert_eq!((bench.read32(0x24), bench.read64(0x28), bench.read64(0x30)), (0, 0, 0), "{kind:?}");
        assert_eq!(bench.read32(0x0c), 0, "{kind:?}");
        let nssro = if kind == ResetKind::Nssr { 0x10 } else { 0 };
        assert_eq!(bench.read32(CSTS), nssro, "{kind:?}");
        assert_eq!(bench.requests(0), [GroupRequest::Reset], "{kind:?}");
    }
}

#[test]
fn subsystem_reset_needs_its_signature_and_leaves_nssro_until_cleared() {
    let mut bench = Bench::enabled();
    bench.write32(0x20, 0x4e56_4d66);
    assert_eq!(bench.read32(CC), 0x0046_0001);
    bench.write32(0x20, 0x4e56_4d65);
    bench.run();
    assert_eq!((bench.read32(CC), bench.read32(CSTS)), (0, 0x10));
    bench.write32(CSTS, 0x10);
    assert_eq!(bench.read32(CSTS), 0);
}

#[test]
fn a_reset_of_a_disabled_controller_asks_nothing_of_groups() {
    let mut bench = Bench::new();
    bench.controller.reset(ResetKind::Flr);
    bench.run();
    assert!(bench.controller.quiesced());
    assert!(bench.requests(0).is_empty());
}

#[test]
fn shutdown_completes_after_groups_have_stopped_and_the_host_has_flushed() {
    for (shn, abrupt) in [(1, false), (2, true)] {
        let mut bench = Bench::enabled();
        bench.flushes = false;
        bench.groups[1].hold = true;
        bench.write32(CC, 0x0046_0001 | shn << 14);
        bench.run();
        assert_eq!(bench.read32(CSTS), 0b0101, "shutdown processing occurring");
        assert!(bench.host_requests.is_empty(), "commands may be in flight");
        bench.groups[1].release();
        bench.run();
        assert_eq!(bench.host_requests, [HostRequest::FlushAll { abrupt }]);
        assert_eq!(bench.read32(CSTS), 0b0101);
        bench.controller.handle_host_reply(HostReply::FlushAll(Ok(())));
        assert_eq!(bench.read32(CSTS), 0b1001, "shutdown processing complete");
    }
}

#[test]
fn after_a_shutdown_no_command_runs_until_a_reset() {
    let mut bench = Bench::enabled();
    bench.write32(CC, 0x0046_4001);
    bench.run();
    bench.submit(identify(1, 0));
    assert_eq!(bench.peek_completions(), []);
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    bench.enable();
    bench.ok(identify(1, 0));
}

#[test]
fn a_reset_during_a_flush_ignores_its_reply() {
    let mut bench = Bench::enabled();
    bench.flushes = false;
    bench.write32(CC, 0x0046_4001);
    bench.run();
    bench.write32(CC, 0x0046_0000);
    bench.run();
    bench.enable();
    bench.controller.handle_host_reply(HostReply::FlushAll(Ok(())));
    assert_eq!(bench.read32(CSTS), 1);
    bench.ok(identify(1, 0));
}

#[test]
fn a_failed_flush_is_logged_and_the_shutdown_completes() {
    let mut bench = Bench::enabled();
    bench.flushes = false;
    bench.write32(CC, 0x0046_4001);
    bench.run();
    bench.controller.handle_host_reply(HostReply::FlushAll(Err(Status::WRITE_FAULT)));
    assert_eq!(bench.read32(CSTS), 0b1001);
    assert_eq!(bench.controller.smart_counters().error_log_entries, 1);
}

#[test]
fn a_queue_that_cannot_be_read_is_fatal() {
    let mut bench = Bench::enabled();
    bench.memory.remove_regions(0..1);
    bench.registers[0].store(1, Ordering::Relaxed);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0b11);
}

#[test]
fn a_group_s_fatal_event_is_fatal_unless_it_is_from_before_a_reset() {
    let mut bench = Bench::enabled();
    let fatal = GroupMessage::Event(GroupEvent::Fatal { qid: 3 });
    bench.controller.handle_group_message(0, fatal);
    assert_eq!(bench.read32(CSTS), 0b11);
    bench.write32(CC, 0x0046_0000);
    bench.controller.handle_group_message(0, fatal);
    bench.run();
    assert_eq!(bench.read32(CSTS), 0);
    let error = CommandError { sqid: 1, cid: 2, status: Status::WRITE_FAULT, lba: 3, nsid: 1 };
    bench.controller.handle_group_message(0, GroupMessage::Event(GroupEvent::CommandError(error)));
    assert_eq!(bench.controller.smart_counters().error_log_entries, 1);
}

#[test]
fn only_a_guest_that_vanishes_without_shutdown_is_an_unsafe_shutdown() {
    let mut bench = Bench::enabled();
    bench.controller.reset(ResetKind::Flr);
    assert_eq!(bench.controller.smart_counters().unsafe_shutdowns, 0);
    bench.run();
    bench.enable();
    bench.write32(CC, 0x0046_4001);
    bench.run();
    bench.controller.reset(ResetKind::Disconnect);
    assert_eq!(bench.controller.smart_counters().unsafe_shutdowns, 0);
    bench.run();
    bench.enable();
    bench.controller.reset(ResetKind::Disconnect);
    assert_eq!(bench.controller.smart_counters().unsafe_shutdowns, 1);
}

#[test]
fn a_thousand_resets_leave_nothing_behind() {
    let mut bench = Bench::with_namespace();
    for round in 0..1_000u32 {
        bench.ok(create_cq(1 + round % 64, 15, 0));
        bench.submit(AER);
        bench.write32(CC, 0x0046_0000);
        bench.run();
        bench.enable();
    }
    assert_eq!(bench.data(identify(2, 0))[0], 1);
}
