//! Messages: features, configuration, the life of a ring, memory slots, the in-flight region.

use std::os::fd::AsFd;

use super::frontend::{F_FLUSH, Frontend, Served, code, count, data_place, pattern, state};
use super::memory::{GUEST, SIZE, USER};

#[test]
fn features_and_configuration_are_complete_and_read_in_pieces() {
    let served = Served::new("ram=8M,block=4096", 5, 1);
    let mut frontend = Frontend::connect(&served.socket);
    let offered = frontend.ask_u64(code::GET_FEATURES);
    // SIZE_MAX, SEG_MAX, BLK_SIZE, FLUSH, TOPOLOGY, CONFIG_WCE, MQ, DISCARD, WRITE_ZEROES, INDIRECT_DESC,
    // EVENT_IDX, the protocol's own, VERSION_1; no RO, GEOMETRY, SECURE_ERASE, not packed (34). No dirty log (26):
    // what is in memory can't migrate.
    let bits = [1, 2, 6, 9, 10, 11, 12, 13, 14, 28, 29, 30, 32];
    assert_eq!(offered, bits.iter().fold(0, |all, bit| all | 1_u64 << bit));
    frontend.negotiate(0);
    assert_eq!(frontend.ask_u64(code::GET_QUEUE_NUM), 5);
    assert_eq!(frontend.ask_u64(code::GET_MAX_MEM_SLOTS), 509);
    // The sizes that QEMU 7.2 and newer ones ask for.
    let whole = frontend.config(0, 96);
    assert_eq!(frontend.config(0, 60), whole[..60]);
    assert_eq!(frontend.config(34, 2), [5, 0]);
    assert_eq!(frontend.config(20, 4), 4096_u32.to_le_bytes());
    assert_eq!(whole[..8], 16_384_u64.to_le_bytes());
    // writeback is the one field that can be written.
    let set = |value: u8| {
        let mut payload: Vec<u8> = [32_u32, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        payload.push(value);
        payload
    };
    frontend.command(code::SET_CONFIG, &set(0), &[]);
    assert_eq!(frontend.config(32, 1), [0]);
    frontend.command(code::SET_CONFIG, &set(1), &[]);
    assert_eq!(frontend.config(32, 1), [1]);
    assert!(!frontend.try_command(code::SET_CONFIG, &set(2), &[]));
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let served = Served::new("ram=8M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    let features = frontend.features | 1 << 34;
    assert!(!frontend.try_command(code::SET_FEATURES, &features.to_le_bytes(), &[]));
    assert!(frontend.is_closed());
    // And the next frontend is served.
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}

#[test]
fn entries_that_are_there_before_any_kick_are_done() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    frontend.add_ring(64);
    for place in 0..3 {
        let head = frontend.prepare(0, place, 4, 0, 0);
        frontend.queues[0].ring.offer(&frontend.memory, head);
    }
    frontend.set_up(0, 0);
    // Not before it is enabled.
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(frontend.queues[0].ring.used_index(&frontend.memory), 0);
    frontend.command(code::SET_VRING_ENABLE, &state(0, 1), &[]);
    for place in 0..3 {
        assert_eq!(frontend.queues[0].ring.used(&frontend.memory), (3 * place, 1));
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(count(&frontend.queues[0].call) > 0);
}

#[test]
fn a_stopped_ring_says_where_it_is_and_continues_there() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    frontend.add_ring(64);
    // A ring that has been used for a while elsewhere.
    let (ring, memory) = (&mut frontend.queues[0].ring, &frontend.memory);
    (ring.next_available, ring.next_used) = (65_530, 65_530);
    memory.set_u16(ring.available + 2, 65_530);
    memory.set_u16(ring.used + 2, 65_530);
    let mut base = 65_530_u16;
    for round in 0..20_u16 {
        frontend.start(0, base);
        for _ in 0..round {
            assert_eq!(frontend.request(4, 0, 0), (0, 1));
        }
        base = base.wrapping_add(round);
        assert_eq!(frontend.stop(0), base);
        // A stopped ring does nothing.
        if round == 10 {
            let head = frontend.prepare(0, 1, 4, 0, 0);
            frontend.queues[0].ring.offer(&frontend.memory, head);
            frontend.kick(0);
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(frontend.queues[0].ring.used_index(&frontend.memory), base);
            frontend.start(0, base);
            assert_eq!(frontend.queues[0].ring.used(&frontend.memory), (3, 1));
            base = base.wrapping_add(1);
            assert_eq!(frontend.stop(0), base);
        }
    }
    // A reboot: all begins at 0.
    let (ring, memory) = (&mut frontend.queues[0].ring, &frontend.memory);
    (ring.next_available, ring.next_used) = (0, 0);
    memory.set_u16(ring.available + 2, 0);
    memory.set_u16(ring.used + 2, 0);
    frontend.start(0, 0);
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
    assert_eq!(frontend.stop(0), 1);
}

#[test]
fn a_stop_waits_for_what_is_in_flight() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    let served = Served::new(&format!("file={}", file.path().display()), 1, 1);
    let mut frontend = served.frontend();
    let mut base = 0_u16;
    for round in 0..50_u8 {
        for place in 0..20 {
            let head = frontend.prepare(0, place, 1, 128 * u64::from(place), 65_536);
            frontend.memory.write(data_place(0, place), &pattern(round, 65_536));
            frontend.queues[0].ring.offer(&frontend.memory, head);
        }
        frontend.kick(0);
        let stopped = frontend.stop(0);
        // Whatever was taken is used, and the rest is still there.
        assert_eq!(frontend.queues[0].ring.used_index(&frontend.memory), stopped);
        frontend.start(0, stopped);
        for _ in 0..20 {
            assert_eq!(frontend.queues[0].ring.used(&frontend.memory).1, 1);
        }
        base = base.wrapping_add(20);
        assert_eq!(frontend.stop(0), base);
        frontend.start(0, base);
        assert_eq!(frontend.read_blocks(128 * 19, 65_536), pattern(round, 65_536));
        base = base.wrapping_add(1);
    }
}

#[test]
fn memory_comes_and_goes_in_slots_while_the_queue_runs() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = served.frontend();
    let slot = |guest: u64, user: u64| {
        let mut payload = vec![0; 8];
        payload.extend([guest, SIZE, user, 0].iter().flat_map(|value| value.to_le_bytes()));
        payload
    };
    let (guest, user) = (GUEST + SIZE, USER + 2 * SIZE);
    let other = frontend.memory.file.try_clone().unwrap();
    for round in 0..20_u8 {
        frontend.command(code::ADD_MEM_REG, &slot(guest, user), &[other.as_fd()]);
        // The same bytes under another address.
        let head = frontend.prepare(0, 0, 1, 8, 512);
        frontend.memory.write(data_place(0, 0), &[round; 512]);
        let ring = frontend.queues[0].ring.clone();
        ring.describe(&frontend.memory, head + 1, SIZE + data_place(0, 0), 512, 1, head + 2);
        assert_eq!(frontend.run(head), (0, 1));
        assert_eq!(frontend.read_blocks(8, 512), [round; 512]);
        frontend.command(code::REM_MEM_REG, &slot(guest, user), &[]);
        frontend.set_memory();
        assert_eq!(frontend.request(4, 0, 0), (0, 1));
    }
    assert!(!frontend.try_command(code::REM_MEM_REG, &slot(guest, user), &[]));
}

#[test]
fn writes_are_durable_for_a_driver_that_knows_no_flush() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let served = Served::new(&format!("file={}", file.path().display()), 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    let features = frontend.features & !F_FLUSH;
    frontend.command(code::SET_FEATURES, &features.to_le_bytes(), &[]);
    frontend.add_ring(64);
    frontend.start(0, 0);
    assert_eq!(frontend.write_blocks(0, &pattern(1, 4096)), (0, 1));
    assert_eq!(frontend.read_blocks(0, 4096), pattern(1, 4096));
}

#[test]
fn what_an_earlier_backend_left_in_flight_is_completed_once_and_in_order() {
    let served = Served::new("ram=1M", 2, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    frontend.add_ring(64);
    frontend.add_ring(64);
    let ask = |queues: u16, size: u16| {
        let mut payload = vec![0; 16];
        payload.extend(queues.to_le_bytes());
        payload.extend(size.to_le_bytes());
        payload.extend([0; 4]);
        payload
    };
    frontend.send(code::GET_INFLIGHT_FD, &ask(2, 64), &[]);
    let (told, file) = frontend.receive(code::GET_INFLIGHT_FD);
    let file = file.unwrap();
    assert_eq!(told[..8], (2 * 1088_u64).to_le_bytes());
    // Queue 1: heads 9, 3 and 0 were taken in this order; 6 was used, which is all that the ring says.
    use std::os::unix::fs::FileExt;
    let put = |offset: u64, bytes: &[u8]| file.write_all_at(bytes, 1088 + offset).unwrap();
    put(8, &[1, 0, 64, 0]);
    for (head, counter) in [(9_u64, 4_u64), (3, 6), (0, 7), (6, 5)] {
        put(16 + 16 * head, &[1]);
        put(16 + 16 * head + 8, &counter.to_le_bytes());
    }
    // The last batch, 6, was published but not unmarked.
    put(12, &6_u16.to_le_bytes());
    for place in [3, 1, 0] {
        frontend.prepare(1, place, 4, 0, 0);
    }
    let (ring, memory) = (&mut frontend.queues[1].ring, &frontend.memory);
    for head in [9, 6, 3, 0] {
        ring.offer(memory, head);
    }
    ring.next_used = 1;
    memory.set_u16(ring.used + 2, 1);
    let waiting = frontend.prepare(1, 4, 4, 0, 0);
    frontend.queues[1].ring.offer(&frontend.memory, waiting);
    frontend.command(code::SET_INFLIGHT_FD, &told, &[file.as_fd()]);
    frontend.start(1, 1);
    for head in [9, 3, 0, 12] {
        assert_eq!(frontend.queues[1].ring.used(&frontend.memory), (head, 1));
    }
    assert_eq!(frontend.stop(1), 5);
    assert_eq!(frontend.queues[1].ring.used_index(&frontend.memory), 5);
    let mut marks = vec![0; 1088];
    file.read_exact_at(&mut marks, 1088).unwrap();
    assert!((0..64).all(|head| marks[16 + 16 * head] == 0));
    assert_eq!(marks[14..16], 5_u16.to_le_bytes());
}
