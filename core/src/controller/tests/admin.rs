//! Dispatch and features.

use super::*;
use crate::message::Coalescing;

#[test]
fn sgls_and_fused_commands_are_refused() {
    let mut bench = Bench::enabled();
    for flags in [0x4000, 0x8000, 0xc000, 0x0100, 0x0200, 0x0300] {
        let mut command = identify(1, 0);
        command[0] |= flags;
        assert_eq!(bench.fails(command), Status::INVALID_FIELD, "{flags:#x}");
    }
}

#[test]
fn unknown_opcodes_are_refused_with_do_not_retry() {
    let mut bench = Bench::enabled();
    for opcode in [0x03, 0x0d, 0x10, 0x14, 0x15, 0x18, 0x80, 0x84, 0xc0, 0xff] {
        bench.submit(entry(opcode, 0, 0, 0));
        assert_eq!(bench.completions()[0].status, Status::INVALID_OPCODE.dnr(), "{opcode:#x}");
    }
    assert_eq!(bench.controller.smart_counters().error_log_entries, 0, "probing fills no log");
}

#[test]
fn completions_carry_sqhd_and_alternate_the_phase() {
    let mut bench = Bench::enabled();
    for round in 1..=3 * ENTRIES {
        bench.submit(get_feature(0x0b, 0));
        let completion = bench.completions()[0];
        assert_eq!(u32::from(completion.sqhd), round % ENTRIES);
    }
}

#[test]
fn every_mandatory_feature_answers_every_select() {
    let mut bench = Bench::with_namespace();
    for fid in [0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b] {
        let nsid = u32::from(fid == 0x05);
        let mut values = Vec::new();
        for select in 0..4 {
            let mut get = get_feature(fid | select << 8, 0);
            get[1] = nsid;
            values.push(bench.ok(get));
        }
        assert_eq!(values[0], values[1], "current is default, {fid:#x}");
        assert_eq!(values[1], values[2], "saved is default, {fid:#x}");
        let capabilities = if fid == 0x05 { 0b110 } else { 0b100 };
        assert_eq!(values[3], capabilities, "{fid:#x}");
        for select in 4..8 {
            assert_eq!(bench.fails(get_feature(fid | select << 8, 0)), Status::INVALID_FIELD);
        }
        let mut save = set_feature(fid | 1 << 31, values[0]);
        save[1] = nsid;
        let status = bench.fails(save);
        assert_eq!((status.code_type(), status.code()), (1, 0x0d), "{fid:#x}");
    }
}

#[test]
fn other_features_are_invalid_field() {
    let mut bench = Bench::enabled();
    for fid in [0x00, 0x03, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x80, 0x81, 0xc0, 0xd0, 0xff] {
        for select in 0..4 {
            assert_eq!(bench.fails(get_feature(fid | select << 8, 0)), Status::INVALID_FIELD, "{fid:#x}");
        }
        assert_eq!(bench.fails(set_feature(fid, 0)), Status::INVALID_FIELD, "{fid:#x}");
    }
}

#[test]
fn features_keep_what_is_set() {
    let mut bench = Bench::with_namespace();
    for (fid, set, got) in [
        (0x01, 0x0302_0105, 0x0302_0105),
        (0x02, 0x20, 0x20),
        (0x06, 0, 0),
        (0x08, 0x0a0b, 0x0a0b),
        (0x0a, 1, 1),
        (0x0b, 0x1ff, 0x1ff),
        (0x0b, 0xffff_ffff, 0x1ff),
    ] {
        bench.ok(set_feature(fid, set));
        assert_eq!(bench.ok(get_feature(fid, 0)), got, "{fid:#x}");
    }
    assert_eq!(bench.fails(set_feature(0x02, 1)), Status::INVALID_FIELD, "there is one power state");
}

#[test]
fn feature_scope_is_checked() {
    let mut bench = Bench::with_namespace();
    let set = |fid, nsid, value| entry(0x09, nsid, fid, value);
    assert_eq!(bench.fails(set(0x0b, 1, 0)), Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
    assert_eq!(bench.fails(set(0x0b, 17, 0)), Status::INVALID_NAMESPACE);
    bench.ok(set(0x0b, 0xffff_ffff, 0));
    bench.ok(set(0x05, 1, 7));
    assert_eq!(bench.ok(entry(0x0a, 1, 0x05, 0)), 7);
    bench.ok(set(0x05, 0xffff_ffff, 9));
    assert_eq!(bench.ok(entry(0x0a, 1, 0x05, 0)), 9);
    assert_eq!(bench.fails(set(0x05, 0, 7)), Status::INVALID_NAMESPACE);
    assert_eq!(bench.fails(set(0x05, 2, 7)), Status::INVALID_FIELD, "inactive");
    assert_eq!(bench.fails(set(0x05, 1, 1 << 16)), Status::INVALID_FIELD, "DULBE");
}

#[test]
fn number_of_queues_is_granted_up_to_the_device_s() {
    let mut bench = Bench::enabled();
    assert_eq!(bench.ok(get_feature(7, 0)), 63 << 16 | 63);
    assert_eq!(bench.fails(set_feature(7, 0xffff)), Status::INVALID_FIELD);
    assert_eq!(bench.fails(set_feature(7, 0xffff_0000)), Status::INVALID_FIELD);
    assert_eq!(bench.ok(set_feature(7, 0xfffe_fffe)), 63 << 16 | 63);
    assert_eq!(bench.ok(set_feature(7, 1 << 16 | 3)), 1 << 16 | 3);
    assert_eq!(bench.ok(get_feature(7, 0)), 1 << 16 | 3);
    assert_eq!(bench.fails(create_cq(3, 15, 0)), Status::INVALID_QUEUE_IDENTIFIER);
    bench.ok(create_cq(2, 15, 0));
    assert_eq!(bench.fails(create_sq(5, 15, 2)), Status::INVALID_QUEUE_IDENTIFIER);
    let status = bench.fails(set_feature(7, 0));
    assert_eq!((status.code_type(), status.code()), (0, 0x0c), "Command Sequence Error");
    bench.ok(entry(0x04, 0, 2, 0));
    assert_eq!(bench.ok(set_feature(7, 0)), 0);
}

#[test]
fn temperature_thresholds_are_kept_over_and_under() {
    let mut bench = Bench::enabled();
    const OVER: u32 = 0;
    const UNDER: u32 = 1 << 20;
    assert_eq!(bench.ok(get_feature(4, OVER)), 343);
    assert_eq!(bench.ok(get_feature(4, UNDER)), 0);
    bench.ok(set_feature(4, OVER | 400));
    bench.ok(set_feature(4, UNDER | 0xf << 16 | 200));
    assert_eq!(bench.ok(get_feature(4, OVER)), 400);
    assert_eq!(bench.ok(get_feature(4, UNDER)), 200);
    for other in [1 << 16, 8 << 16, 2 << 20, 3 << 20] {
        assert_eq!(bench.fails(set_feature(4, other | 300)), Status::INVALID_FIELD, "{other:#x}");
        assert_eq!(bench.fails(get_feature(4, other)), Status::INVALID_FIELD, "{other:#x}");
    }
}

#[test]
fn coalescing_reaches_every_group_and_queues_created_later() {
    let mut bench = Bench::enabled();
    bench.ok(set_feature(8, 0x0a_0b));
    bench.ok(set_feature(9, 1 << 16 | 3));
    assert_eq!(bench.ok(get_feature(9, 3)), 1 << 16 | 3);
    assert_eq!(bench.ok(get_feature(9, 4)), 4);
    for iv in [64, 65_535] {
        assert_eq!(bench.fails(set_feature(9, iv)), Status::INVALID_FIELD);
        assert_eq!(bench.fails(get_feature(9, iv)), Status::INVALID_FIELD);
    }
    for group in 0..2 {
        assert_eq!(
            bench.requests(group),
            [
                GroupRequest::SetCoalescing(Coalescing { threshold_z: 0x0b, time_100us: 0x0a }),
                GroupRequest::SetVectorCoalescing { vector: 3, enabled: false },
            ]
        );
    }
    bench.ok(create_cq(1, 15, 3));
    bench.ok(create_cq(3, 15, 4));
    let coalesce: Vec<bool> = bench.requests(0)[2..]
        .iter()
        .map(|request| matches!(request, GroupRequest::CreateCompletionQueue { coalesce: true, .. }))
        .collect();
    assert_eq!(coalesce, [false, true]);
    bench.ok(set_feature(9, 3));
    assert_eq!(bench.ok(get_feature(9, 3)), 3);
}

#[test]
fn the_write_cache_feature_exists_with_a_write_cache_only() {
    let mut bench = Bench::enabled();
    assert_eq!(bench.ok(get_feature(6, 0)), 1);
    bench.ok(set_feature(6, 0));
    assert_eq!(bench.requests(1), [GroupRequest::SetWriteCache { enabled: false }]);
    assert_eq!(bench.ok(get_feature(6, 0)), 0);
    assert_eq!(bench.ok(get_feature(6 | 1 << 8, 0)), 1);
    let mut bench = Bench::with_config(ControllerConfig { write_cache: false, ..ControllerConfig::DEFAULT });
    bench.enable();
    assert_eq!(bench.fails(get_feature(6, 0)), Status::INVALID_FIELD);
    assert_eq!(bench.fails(set_feature(6, 1)), Status::INVALID_FIELD);
}

#[test]
fn one_poll_takes_a_bounded_number_of_commands() {
    let mut bench = Bench::enabled();
    for _ in 0..40 {
        bench.put(get_feature(0x0b, 0));
    }
    bench.ring();
    assert!(bench.poll());
    assert_eq!(bench.peek_completions().len(), 16);
    assert!(bench.poll());
    assert!(!bench.poll());
    assert_eq!(bench.peek_completions().len(), 24);
}
