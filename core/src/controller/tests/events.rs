//! Asynchronous events.

use super::*;

#[test]
fn event_requests_are_held_and_one_more_is_refused() {
    let mut bench = Bench::enabled();
    for _ in 0..4 {
        bench.submit(AER);
        assert_eq!(bench.peek_completions(), []);
    }
    let status = bench.fails(AER);
    assert_eq!((status.code_type(), status.code()), (1, 0x05));
    bench.ok(identify(1, 0));
}

#[test]
fn abort_ends_a_held_event_request() {
    let mut bench = Bench::enabled();
    let cid = bench.submit(AER);
    bench.submit(entry(0x08, 0, u32::from(cid) << 16, 0));
    let mut completions = bench.completions();
    completions.sort_by_key(|completion| completion.cid);
    assert_eq!(completions.len(), 2);
    assert_eq!((completions[0].cid, completions[0].status), (cid, Status::ABORT_REQUESTED));
    assert_eq!((completions[1].status, completions[1].result), (Status::SUCCESS, 0));
    // Its place is free again.
    for _ in 0..4 {
        bench.submit(AER);
    }
    assert_eq!(bench.peek_completions(), []);
}

#[test]
fn an_invalid_doorbell_value_raises_an_error_event_and_is_dropped() {
    let mut bench = Bench::enabled();
    let cid = bench.submit(AER);
    bench.registers[0].store(ENTRIES, Ordering::Relaxed);
    bench.run();
    let completions = bench.completions();
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].cid, completions[0].result), (cid, 0x0001_0100));
    bench.ok(identify(1, 0));
    for value in [0xffff, 0x1_0001, u32::MAX] {
        bench.registers[0].store(value, Ordering::Relaxed);
        bench.run();
    }
    bench.ok(identify(1, 0));
    assert_eq!(bench.controller.smart_counters().error_log_entries, 4);
}

#[test]
fn a_head_beyond_the_tail_is_dropped() {
    let mut bench = Bench::enabled();
    bench.submit(identify(1, 0));
    bench.registers[1].store(5, Ordering::Relaxed);
    bench.run();
    assert_eq!(bench.controller.smart_counters().error_log_entries, 1);
    assert_eq!(bench.completions().len(), 1);
    bench.ok(identify(1, 0));
}

#[test]
fn a_group_s_invalid_doorbell_is_told_once_until_the_error_log_is_read() {
    let mut bench = Bench::enabled();
    let event = GroupEvent::InvalidDoorbell { qid: 1, completion: false, value: 0xffff };
    for _ in 0..3 {
        bench.submit(AER);
    }
    for _ in 0..3 {
        bench.controller.handle_group_message(1, GroupMessage::Event(event));
        bench.run();
    }
    assert_eq!(bench.completions().len(), 1);
    let mut retained = get_log(1, 0, 64);
    retained[10] |= 1 << 15;
    bench.ok(retained);
    bench.controller.handle_group_message(1, GroupMessage::Event(event));
    bench.run();
    assert_eq!(bench.completions(), [], "Retain Asynchronous Event clears nothing");
    bench.ok(get_log(1, 0, 64));
    bench.controller.handle_group_message(1, GroupMessage::Event(event));
    bench.run();
    assert_eq!(bench.completions().len(), 1);
}

#[test]
fn an_event_without_a_request_waits_for_one() {
    let mut bench = Bench::enabled();
    bench.registers[0].store(ENTRIES, Ordering::Relaxed);
    bench.run();
    let cid = bench.submit(AER);
    let completions = bench.completions();
    assert_eq!((completions[0].cid, completions[0].result), (cid, 0x0001_0100));
}

#[test]
fn a_trapped_write_to_a_doorbell_of_no_queue_raises_its_own_event() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(1, 15, 0));
    for (offset, data) in [
        (0x1008, &[1u8, 0, 0, 0][..]),
        (0x1010, &[1, 0, 0, 0]),
        (0x1ffc, &[1, 0, 0, 0]),
        (0x100c, &[1, 0]),
        (0x100e, &[1, 0, 0, 0]),
        (0xffff_fffc, &[1, 0, 0, 0]),
    ] {
        bench.submit(AER);
        bench.controller.handle_doorbell_write(&bench.registers, offset, data);
        bench.run();
        let completions = bench.completions();
        assert_eq!(completions.len(), 1, "{offset:#x}");
        assert_eq!(completions[0].result, 0x0001_0000, "{offset:#x}");
        bench.ok(get_log(1, 0, 64));
    }
    assert!(bench.registers[2..].iter().all(|register| register.load(Ordering::Relaxed) == 0));
    bench.controller.handle_doorbell_write(&bench.registers, 0x100c, &3u32.to_le_bytes());
    assert_eq!(bench.registers[3].load(Ordering::Relaxed), 3);
}

#[test]
fn temperature_events_follow_their_configuration() {
    let mut bench = Bench::enabled();
    let cid = bench.submit(AER);
    // Over threshold below the composite temperature of 313 kelvins.
    bench.ok(set_feature(4, 300));
    bench.run();
    assert_eq!(bench.completions(), [], "not configured");
    bench.submit(set_feature(0x0b, 1 << 1));
    let completions = bench.completions();
    assert_eq!(completions.len(), 2);
    assert!(completions.iter().any(|entry| (entry.cid, entry.result) == (cid, 0x0002_0101)));
    assert_eq!(bench.data(get_log(2, 0, 512))[0], 1 << 1, "Critical Warning");
    bench.ok(set_feature(4, 343));
    assert_eq!(bench.data(get_log(2, 0, 512))[0], 0);
    bench.submit(AER);
    bench.controller.set_temperature(350);
    bench.run();
    assert_eq!(bench.completions().len(), 1);
}

#[test]
fn a_full_completion_queue_stops_fetching_and_events() {
    let mut bench = Bench::enabled();
    bench.submit(AER);
    // One entry is always free, and the request is held.
    for _ in 0..ENTRIES - 2 {
        bench.put(identify(1, 0));
    }
    bench.ring();
    bench.run();
    assert_eq!(bench.peek_completions().len(), ENTRIES as usize - 2);
    bench.put(identify(1, 0));
    bench.put(identify(1, 0));
    bench.ring();
    bench.run();
    assert_eq!(bench.peek_completions().len(), 1, "the queue is full now");
    bench.registers[0].store(ENTRIES + 1, Ordering::Relaxed);
    bench.run();
    assert_eq!(bench.peek_completions(), []);
    // The driver takes what there is: the waiting command comes, and the event once the value has been seen.
    bench.registers[1].store(bench.head, Ordering::Relaxed);
    bench.run();
    let completions = bench.peek_completions();
    assert_eq!(completions.len(), 2);
    assert_eq!(completions.iter().filter(|entry| entry.result == 0x0001_0100).count(), 1);
}
