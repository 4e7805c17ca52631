//! Creating and deleting I/O queues, Abort, Doorbell Buffer Config.

use super::*;

#[test]
fn every_queue_identifier_is_checked() {
    let mut bench = Bench::enabled();
    for qid in [0, 65, 66, 1_000, 65_535] {
        assert_eq!(bench.fails(create_cq(qid, 15, 0)), Status::INVALID_QUEUE_IDENTIFIER, "{qid}");
    }
    for qid in 1..=64 {
        bench.ok(create_cq(qid, 15, 0));
        assert_eq!(bench.fails(create_cq(qid, 15, 0)), Status::INVALID_QUEUE_IDENTIFIER, "{qid}");
    }
    for qid in [0, 65, 66, 1_000, 65_535] {
        assert_eq!(bench.fails(create_sq(qid, 15, 1)), Status::INVALID_QUEUE_IDENTIFIER, "{qid}");
    }
    for qid in 1..=64 {
        bench.ok(create_sq(qid, 15, 65 - qid));
        assert_eq!(bench.fails(create_sq(qid, 15, 1)), Status::INVALID_QUEUE_IDENTIFIER, "{qid}");
    }
    let cqids: Vec<u16> = bench.groups.iter().flat_map(|group| &group.requests).filter_map(cqid).collect();
    assert_eq!(cqids.len(), 128);
}

/// The completion queue that a request is for.
fn cqid(request: &GroupRequest) -> Option<u16> {
    match request {
        GroupRequest::CreateCompletionQueue { qid, .. } => Some(*qid),
        GroupRequest::CreateSubmissionQueue { cqid, .. } => Some(*cqid),
        _ => None,
    }
}

#[test]
fn a_submission_queue_goes_to_the_group_of_its_completion_queue() {
    let mut bench = Bench::enabled();
    for qid in 1..=4 {
        bench.ok(create_cq(qid, 15, 0));
    }
    for (sqid, cqid) in [(1, 4), (2, 3), (3, 3), (4, 1)] {
        bench.ok(create_sq(sqid, 15, cqid));
    }
    let of = |group: usize| bench.requests(group).iter().filter_map(cqid).collect::<Vec<u16>>();
    assert_eq!(of(0), [1, 3, 3, 3, 1]);
    assert_eq!(of(1), [2, 4, 4]);
}

#[test]
fn queue_sizes_are_2_to_mqes_plus_1() {
    for max_queue_entries in [2, 64, 256, 1_024, 65_536u32] {
        let config = ControllerConfig { max_queue_entries, ..ControllerConfig::DEFAULT };
        let mut bench = Bench::with_config(config);
        bench.enable();
        assert_eq!(bench.read64(0) & 0xffff, u64::from(max_queue_entries) - 1);
        let most_z = max_queue_entries - 1;
        assert_eq!(bench.fails(create_cq(1, 0, 0)), Status::INVALID_QUEUE_SIZE);
        if most_z < 65_535 {
            assert_eq!(bench.fails(create_cq(1, most_z + 1, 0)), Status::INVALID_QUEUE_SIZE);
            assert_eq!(bench.fails(create_cq(1, 65_535, 0)), Status::INVALID_QUEUE_SIZE);
        }
        bench.ok(create_cq(1, most_z, 0));
        assert_eq!(bench.fails(create_sq(1, 0, 1)), Status::INVALID_QUEUE_SIZE);
        bench.ok(create_sq(1, most_z, 1));
        let sizes = bench.requests(0).iter().map(|request| match request {
            GroupRequest::CreateCompletionQueue { size, .. }
            | GroupRequest::CreateSubmissionQueue { size, .. } => *size,
            other => panic!("{other:?}"),
        });
        assert!(sizes.eq([max_queue_entries; 2]));
    }
}

#[test]
fn every_vector_is_checked() {
    let mut bench = Bench::enabled();
    for iv in [64, 65, 2_047, 65_535] {
        assert_eq!(bench.fails(create_cq(1, 15, iv)), Status::INVALID_INTERRUPT_VECTOR, "{iv}");
    }
    for iv in 0..64 {
        bench.ok(create_cq(iv + 1, 15, iv));
    }
}

#[test]
fn a_queue_without_interrupts_has_no_vector() {
    let mut bench = Bench::enabled();
    let mut command = create_cq(1, 15, 5_000);
    command[11] &= !0b10;
    bench.ok(command);
    assert!(matches!(bench.requests(0), [GroupRequest::CreateCompletionQueue { vector: None, .. }]));
}

#[test]
fn a_submission_queue_needs_its_completion_queue() {
    let mut bench = Bench::enabled();
    for cqid in [0, 1, 64, 65, 65_535] {
        let status = bench.fails(create_sq(1, 15, cqid));
        assert_eq!((status.code_type(), status.code()), (1, 0x00), "{cqid}");
    }
}

#[test]
fn queue_memory_is_contiguous_aligned_and_there() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(2, 15, 0));
    for create in [create_cq(1, 15, 0), create_sq(1, 15, 2)] {
        let mut scattered = create;
        scattered[11] &= !1;
        assert_eq!(bench.fails(scattered), Status::INVALID_FIELD);
        assert_eq!(bench.fails(with_prp1(create, QUEUE + 8)), Status::PRP_OFFSET_INVALID);
        assert_eq!(bench.fails(with_prp1(create, QUEUE + 2_048)), Status::PRP_OFFSET_INVALID);
        for outside in [RAM_BYTES, 0xfe00_0000, 0xffff_ffff_ffff_f000] {
            assert_eq!(bench.fails(with_prp1(create, outside)), Status::DATA_TRANSFER_ERROR, "{outside:#x}");
        }
    }
    assert_eq!(
        bench.fails(with_prp1(create_cq(1, 4_095, 0), RAM_BYTES - 4_096)),
        Status::DATA_TRANSFER_ERROR
    );
}

#[test]
fn entry_sizes_are_checked_when_a_queue_is_created() {
    let mut bench = Bench::enabled();
    bench.write32(CC, 0x0045_0001);
    bench.ok(create_cq(1, 15, 0));
    assert_eq!(bench.fails(create_sq(1, 15, 1)), Status::INVALID_QUEUE_SIZE);
    bench.write32(CC, 0x0006_0001);
    assert_eq!(bench.fails(create_cq(2, 15, 0)), Status::INVALID_QUEUE_SIZE);
    bench.write32(CC, 0x0046_0001);
    bench.ok(create_sq(1, 15, 1));
}

#[test]
fn a_completion_queue_in_use_is_not_deleted() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(1, 15, 0));
    bench.ok(create_sq(1, 15, 1));
    bench.ok(create_sq(2, 15, 1));
    let (delete_cq, delete_sq) = (|qid| entry(0x04, 0, qid, 0), |qid| entry(0x00, 0, qid, 0));
    assert_eq!(bench.fails(delete_cq(1)), Status::INVALID_QUEUE_DELETION);
    bench.ok(delete_sq(2));
    assert_eq!(bench.fails(delete_cq(1)), Status::INVALID_QUEUE_DELETION);
    bench.ok(delete_sq(1));
    bench.ok(delete_cq(1));
    for qid in [0, 1, 2, 65, 65_535] {
        assert_eq!(bench.fails(delete_cq(qid)), Status::INVALID_QUEUE_IDENTIFIER);
        assert_eq!(bench.fails(delete_sq(qid)), Status::INVALID_QUEUE_IDENTIFIER);
    }
    bench.ok(create_cq(1, 15, 0));
}

#[test]
fn deleting_a_submission_queue_completes_when_its_group_says_so() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(1, 15, 0));
    bench.ok(create_sq(1, 15, 1));
    bench.groups[0].hold = true;
    bench.submit(entry(0x00, 0, 1, 0));
    bench.submit(identify(1, 0));
    assert_eq!(bench.peek_completions(), [], "commands of the queue are in flight");
    bench.groups[0].release();
    bench.run();
    assert_eq!(bench.completions().len(), 2);
}

#[test]
fn what_a_group_refuses_is_refused_and_changes_nothing() {
    let mut bench = Bench::enabled();
    bench.groups[0].fail_next = Some(Status::INTERNAL_ERROR);
    assert_eq!(bench.fails(create_cq(1, 15, 0)), Status::INTERNAL_ERROR);
    assert_eq!(bench.fails(create_sq(1, 15, 1)), Status::COMPLETION_QUEUE_INVALID);
    bench.ok(create_cq(1, 15, 0));
}

#[test]
fn abort_says_truly_whether_it_did() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(1, 15, 0));
    bench.ok(create_sq(1, 15, 1));
    let abort = |sqid: u32, cid: u32| entry(0x08, 0, cid << 16 | sqid, 0);
    assert_eq!(bench.ok(abort(1, 7)), 1, "the group found nothing");
    bench.groups[0].aborts = true;
    assert_eq!(bench.ok(abort(1, 7)), 0);
    assert_eq!(bench.requests(0).last(), Some(&GroupRequest::Abort { sqid: 1, cid: 7 }));
    assert_eq!(bench.ok(abort(2, 7)), 1, "no such queue");
    assert_eq!(bench.ok(abort(0, 7)), 1, "no such admin command");
}

fn doorbell_buffer(shadow: u64, event_idx: u64) -> Entry {
    with_prp2(with_prp1(entry(0x7c, 0, 0, 0), shadow), event_idx)
}

#[test]
fn doorbell_buffers_are_checked_before_anything_changes() {
    let mut bench = Bench::enabled();
    for (shadow, event_idx, status) in [
        (SHADOW, SHADOW, Status::INVALID_FIELD),
        (SHADOW + 4, EVENT_IDX, Status::INVALID_FIELD),
        (SHADOW, EVENT_IDX + 2_048, Status::INVALID_FIELD),
        (RAM_BYTES, EVENT_IDX, Status::DATA_TRANSFER_ERROR),
        (SHADOW, 0xfe00_1000, Status::DATA_TRANSFER_ERROR),
        (0xffff_ffff_ffff_f000, EVENT_IDX, Status::DATA_TRANSFER_ERROR),
    ] {
        assert_eq!(bench.fails(doorbell_buffer(shadow, event_idx)), status, "{shadow:#x} {event_idx:#x}");
    }
    bench.memory = std::mem::take(&mut bench.memory).with_read_only_region(1 << 32, 0x2000);
    assert_eq!(bench.fails(doorbell_buffer(SHADOW, 1 << 32)), Status::DATA_TRANSFER_ERROR);
    assert_eq!(bench.fails(doorbell_buffer(1 << 32, EVENT_IDX)), Status::DATA_TRANSFER_ERROR);
    assert!(bench.requests(0).is_empty());
    assert_eq!(bench.controller.doorbell_buffer(), None);
}

#[test]
fn doorbell_buffers_reach_every_group_and_seed_the_admin_entries() {
    let mut bench = Bench::enabled();
    bench.memory.fill(SHADOW, 4096, 0xaa);
    bench.memory.fill(EVENT_IDX, 4096, 0xaa);
    bench.ok(doorbell_buffer(SHADOW, EVENT_IDX));
    let buffer = DoorbellBuffer { shadow: SHADOW, event_idx: EVENT_IDX };
    for group in 0..2 {
        assert_eq!(bench.requests(group), [GroupRequest::SetDoorbellBuffer(buffer)]);
    }
    assert_eq!(bench.controller.doorbell_buffer(), Some(buffer));
    assert_eq!((bench.memory.peek_u32(SHADOW), bench.memory.peek_u32(EVENT_IDX)), (1, 1));
    assert_eq!(bench.memory.peek_u32(SHADOW + 4), 1, "head after the completion was taken");
    assert_eq!(bench.memory.peek_u32(SHADOW + 8), 0xaaaa_aaaa, "entries of the groups' queues");
    bench.ok(doorbell_buffer(EVENT_IDX, SHADOW));
    bench.ok(identify(1, 0));
}

#[test]
fn a_driver_that_never_touches_its_admin_shadow_works() {
    let mut bench = Bench::enabled();
    bench.ok(doorbell_buffer(SHADOW, EVENT_IDX));
    for _ in 0..3 * ENTRIES {
        bench.ok(get_feature(0x0b, 0));
    }
}

#[test]
fn a_driver_that_uses_its_admin_shadow_works() {
    let mut bench = Bench::enabled();
    bench.ok(doorbell_buffer(SHADOW, EVENT_IDX));
    let mut written = bench.tail;
    for round in 0..3 * ENTRIES {
        let old = bench.tail;
        bench.put(get_feature(0x0b, 0));
        bench.memory.poke(SHADOW, &bench.tail.to_le_bytes());
        // The driver's rule: a register write only where EventIdx lies between the old tail and the new.
        let event_idx = bench.memory.peek_u32(EVENT_IDX) as u16;
        if (bench.tail as u16).wrapping_sub(event_idx).wrapping_sub(1)
            < (bench.tail as u16).wrapping_sub(old as u16)
        {
            bench.ring();
            written += 1;
        }
        bench.run();
        let completions = bench.peek_completions();
        assert_eq!(completions.len(), 1, "round {round}");
        bench.memory.poke(SHADOW + 4, &bench.head.to_le_bytes());
        bench.run();
    }
    assert!(written > 0, "an idle controller asks for register writes");
}

#[test]
fn a_reset_forgets_the_buffers_before_anything_is_written() {
    for reset in 0..5 {
        let mut bench = Bench::enabled();
        bench.ok(doorbell_buffer(SHADOW, EVENT_IDX));
        bench.memory.watch(SHADOW..EVENT_IDX + 4096);
        match reset {
            0 => bench.write32(CC, 0x0046_0000),
            1 => bench.controller.reset(ResetKind::Flr),
            2 => bench.controller.reset(ResetKind::Nssr),
            3 => bench.controller.reset(ResetKind::D3hot),
            _ => bench.controller.reset(ResetKind::Disconnect),
        }
        bench.run();
        bench.write32(CSTS, 0x10);
        bench.enable();
        bench.ok(create_cq(1, 15, 0));
        for _ in 0..2 * ENTRIES {
            bench.ok(get_feature(0x0b, 0));
        }
        assert_eq!(bench.memory.watched_accesses(), 0, "reset {reset}");
    }
}

#[test]
fn unmapping_the_buffers_gives_them_up_everywhere() {
    let mut bench = Bench::enabled();
    bench.ok(doorbell_buffer(SHADOW, EVENT_IDX));
    bench.groups.iter_mut().for_each(FakeGroup::forget);
    bench.controller.handle_unmap(EVENT_IDX + 4096, 1 << 20);
    assert!(bench.controller.quiesced(), "not the buffers");
    bench.groups[1].hold = true;
    bench.controller.handle_unmap(EVENT_IDX + 4095, 1);
    bench.run();
    assert_eq!(bench.requests(0), [GroupRequest::ClearDoorbellBuffer]);
    assert!(!bench.controller.quiesced());
    bench.groups[1].release();
    bench.run();
    assert!(bench.controller.quiesced());
    bench.memory.watch(SHADOW..EVENT_IDX + 4096);
    bench.ok(identify(1, 0));
    assert_eq!(bench.memory.watched_accesses(), 0);
}

#[test]
fn buffers_that_vanish_while_groups_take_them_are_given_up() {
    let mut bench = Bench::enabled();
    bench.groups[1].hold = true;
    bench.submit(doorbell_buffer(SHADOW, EVENT_IDX));
    bench.controller.handle_unmap(SHADOW, 4096);
    bench.groups[1].release();
    bench.run();
    let completions = bench.completions();
    assert_eq!(completions[0].status.code(), Status::DATA_TRANSFER_ERROR.code());
    assert_eq!(bench.requests(0).last(), Some(&GroupRequest::ClearDoorbellBuffer));
    assert_eq!(bench.controller.doorbell_buffer(), None);
}

#[test]
fn doorbell_buffers_that_are_not_offered_are_an_unknown_opcode() {
    let mut bench =
        Bench::with_config(ControllerConfig { doorbell_buffer: false, ..ControllerConfig::DEFAULT });
    bench.enable();
    assert_eq!(bench.fails(doorbell_buffer(SHADOW, EVENT_IDX)), Status::INVALID_OPCODE);
    assert_eq!(bench.data(identify(1, 0))[256..258], [0, 0]);
}
