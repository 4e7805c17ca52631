//! Rings that no driver would write, and messages that no frontend would send: the queue or the session ends,
//! the server doesn't.

use super::frontend::{F_INDIRECT, Frontend, Served, code, count, data_place, header_place};
use super::memory::GUEST;
use super::ring::{INDIRECT, NEXT, WRITE, descriptor};

/// What is written into ring and descriptors of a running queue.
type Trick = fn(&mut Frontend);

fn offer(frontend: &mut Frontend, head: u16) {
    frontend.queues[0].ring.offer(&frontend.memory, head);
}

fn describe(frontend: &Frontend, index: u16, offset: u64, len: u32, flags: u16, next: u16) {
    frontend.queues[0].ring.describe(&frontend.memory, index, offset, len, flags, next);
}

const TRICKS: &[(&str, Trick)] = &[
    ("index far ahead", |frontend| {
        let ring = frontend.queues[0].ring.clone();
        frontend.memory.set_u16(ring.available + 2, ring.next_available.wrapping_add(65));
    }),
    ("head out of range", |frontend| offer(frontend, 64)),
    ("head twice in one turn, while a slow one is in flight", |frontend| {
        // The second look finds the chain broken in any case.
        describe(frontend, 5, 0, 16, NEXT, 64);
        offer(frontend, 5);
        offer(frontend, 5);
    }),
    ("next out of range", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        describe(frontend, head + 1, data_place(0, 0), 512, NEXT, 64);
        offer(frontend, head);
    }),
    ("circle", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        describe(frontend, head + 1, data_place(0, 0), 512, NEXT, head);
        offer(frontend, head);
    }),
    ("itself", |frontend| {
        describe(frontend, 7, data_place(0, 0), 0, NEXT, 7);
        offer(frontend, 7);
    }),
    ("address outside memory", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        let ring = frontend.queues[0].ring.clone();
        ring.describe_at(&frontend.memory, head + 1, 0x1000, 512, NEXT, head + 2);
        offer(frontend, head);
    }),
    ("over the end of memory", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        describe(frontend, head + 1, super::memory::SIZE - 256, 512, NEXT, head + 2);
        offer(frontend, head);
    }),
    ("over the end of addresses", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        let ring = frontend.queues[0].ring.clone();
        ring.describe_at(&frontend.memory, head + 1, u64::MAX - 100, 512, NEXT, head + 2);
        offer(frontend, head);
    }),
    ("status in front of data", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        describe(frontend, head + 1, header_place(0, 0) + 32, 1, WRITE | NEXT, head + 2);
        describe(frontend, head + 2, data_place(0, 0), 512, 0, 0);
        offer(frontend, head);
    }),
    ("no status", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        describe(frontend, head + 1, data_place(0, 0), 512, 0, 0);
        offer(frontend, head);
    }),
    ("no header", |frontend| {
        let head = frontend.prepare(0, 0, 1, 0, 512);
        describe(frontend, head, header_place(0, 0), 15, NEXT, head + 2);
        offer(frontend, head);
    }),
    ("indirect in indirect", |frontend| {
        let mut table = descriptor(GUEST + header_place(0, 0), 16, INDIRECT, 0);
        table.extend(descriptor(GUEST, 16, 0, 0));
        frontend.memory.write(data_place(0, 5), &table);
        describe(frontend, 0, data_place(0, 5), 32, INDIRECT, 0);
        offer(frontend, 0);
    }),
    ("indirect that goes on", |frontend| {
        describe(frontend, 0, data_place(0, 5), 32, INDIRECT | NEXT, 1);
        offer(frontend, 0);
    }),
    ("indirect table of 17 bytes", |frontend| {
        describe(frontend, 0, data_place(0, 5), 17, INDIRECT, 0);
        offer(frontend, 0);
    }),
    ("empty indirect table", |frontend| {
        describe(frontend, 0, data_place(0, 5), 0, INDIRECT, 0);
        offer(frontend, 0);
    }),
    ("huge indirect table", |frontend| {
        describe(frontend, 0, data_place(0, 5), 1 << 20, INDIRECT, 0);
        offer(frontend, 0);
    }),
    ("circle in an indirect table", |frontend| {
        let table = descriptor(GUEST + header_place(0, 0), 1, NEXT, 0);
        frontend.memory.write(data_place(0, 5), &table);
        describe(frontend, 0, data_place(0, 5), 16, INDIRECT, 0);
        offer(frontend, 0);
    }),
];

#[test]
fn a_broken_ring_stops_alone() {
    let served = Served::new("ram=1M", 2, 1);
    for (name, trick) in TRICKS {
        let mut frontend = Frontend::connect(&served.socket);
        frontend.negotiate(F_INDIRECT);
        frontend.add_ring(64);
        frontend.add_ring(64);
        frontend.start(0, 0);
        frontend.start(1, 0);
        assert_eq!(frontend.request(4, 0, 0), (0, 1));
        trick(&mut frontend);
        frontend.kick(0);
        let start = std::time::Instant::now();
        while count(&frontend.queues[0].err) == 0 {
            assert!(start.elapsed().as_secs() < 30, "{name}: not noticed");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // Nothing was completed, the other queue of the same poller works, and the ring can be stopped.
        assert_eq!(frontend.queues[0].ring.used_index(&frontend.memory), 1, "{name}");
        let head = frontend.prepare(1, 0, 4, 0, 0);
        frontend.queues[1].ring.offer(&frontend.memory, head);
        frontend.kick(1);
        assert_eq!(frontend.queues[1].ring.used(&frontend.memory), (u32::from(head), 1), "{name}");
        frontend.stop(0);
    }
}

#[test]
fn a_request_of_too_many_pieces_fails_and_the_ring_goes_on() {
    let served = Served::new("ram=8M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(F_INDIRECT);
    frontend.add_ring(64);
    frontend.start(0, 0);
    frontend.prepare(0, 0, 1, 0, 512);
    let mut table = descriptor(GUEST + header_place(0, 0), 16, NEXT, 1);
    for index in 0..1500_u16 {
        table.extend(descriptor(GUEST + data_place(0, 0), 512, NEXT, index + 2));
    }
    table.extend(descriptor(GUEST + header_place(0, 0) + 32, 1, WRITE, 0));
    frontend.memory.write(data_place(0, 5), &table);
    describe(&frontend, 0, data_place(0, 5), table.len() as u32, INDIRECT, 0);
    assert_eq!(frontend.run(0), (1, 1));
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}

#[test]
fn truncated_memory_stops_the_ring_and_nothing_else() {
    let served = Served::new("ram=1M", 1, 1);
    let frontend = served.frontend();
    frontend.memory.file.set_len(0).unwrap();
    frontend.kick(0);
    let start = std::time::Instant::now();
    while count(&frontend.queues[0].err) == 0 {
        assert!(start.elapsed().as_secs() < 30, "not noticed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(frontend);
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}

#[test]
fn malformed_messages_end_their_session_only() {
    let served = Served::new("ram=1M", 1, 1);
    let whole = |code, payload: &[u8]| (code, 1, payload.len() as u32, payload.to_vec());
    let mut messages = vec![
        whole(0, &[]),
        whole(9999, &[]),
        whole(code::SET_FEATURES, &[1; 7]),
        whole(code::SET_FEATURES, &[0; 9]),
        whole(code::GET_FEATURES, &[0; 8]),
        whole(code::SET_MEM_TABLE, &[0; 8]),
        whole(code::SET_MEM_TABLE, &[0xFF; 40]),
        whole(code::SET_VRING_NUM, &super::frontend::state(0, 3)),
        whole(code::SET_VRING_NUM, &super::frontend::state(0, 0)),
        whole(code::SET_VRING_NUM, &super::frontend::state(0, 65_536)),
        whole(code::SET_VRING_NUM, &super::frontend::state(1, 64)),
        whole(code::SET_VRING_BASE, &super::frontend::state(0, 65_536)),
        whole(code::SET_VRING_ADDR, &[0xFF; 40]),
        whole(
            code::SET_VRING_ADDR,
            &[0, 0, 0, 0, 0, 0, 0, 0, 8].into_iter().chain([0; 31]).collect::<Vec<_>>(),
        ),
        whole(code::GET_VRING_BASE, &super::frontend::state(77, 0)),
        whole(code::SET_VRING_KICK, &0_u64.to_le_bytes()),
        whole(code::SET_VRING_CALL, &7_u64.to_le_bytes()),
        whole(code::SET_VRING_ENABLE, &super::frontend::state(0, 2)),
        whole(code::SET_VRING_ENABLE, &super::frontend::state(9, 1)),
        whole(code::SET_PROTOCOL_FEATURES, &u64::MAX.to_le_bytes()),
        whole(code::SET_INFLIGHT_FD, &[0; 24]),
        whole(code::GET_INFLIGHT_FD, &[0xFF; 24]),
        whole(code::ADD_MEM_REG, &[0; 40]),
        whole(code::SET_CONFIG, &[0; 4]),
    ];
    // A size that is a lie, a wrong version, a reply.
    messages.extend([
        (code::SET_FEATURES, 1, u32::MAX, vec![]),
        (code::SET_FEATURES, 1, 4097, vec![0; 4097]),
        (code::GET_FEATURES, 2, 0, vec![]),
        (code::GET_FEATURES, 5, 0, vec![]),
    ]);
    for (code, flags, size, payload) in messages {
        let mut frontend = Frontend::connect(&served.socket);
        frontend.negotiate(0);
        frontend.send_raw(code, flags, size, &payload, &[]);
        assert!(frontend.is_closed(), "message {code} of {size} bytes");
    }
    // Half a message, and gone.
    let mut frontend = Frontend::connect(&served.socket);
    frontend.send_raw(code::SET_FEATURES, 1, 8, &[1, 2, 3], &[]);
    drop(frontend);
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}

#[test]
fn rings_outside_memory_are_refused() {
    let served = Served::new("ram=1M", 1, 1);
    for change in [1 << 40, super::memory::SIZE - 16] {
        let mut frontend = Frontend::connect(&served.socket);
        frontend.negotiate(0);
        frontend.add_ring(64);
        frontend.queues[0].ring.descriptors += change;
        frontend.set_up(0, 0);
        let enable = super::frontend::state(0, 1);
        assert!(!frontend.try_command(code::SET_VRING_ENABLE, &enable, &[]), "{change}");
    }
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}

/// Good requests of which some bytes were changed at random. Whatever a queue makes of them, it can be stopped, and
/// used entries are of heads that were offered.
#[test]
fn random_changes_to_requests_never_hold_the_server_up() {
    let served = Served::new("ram=1M", 1, 1);
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (mut completed, mut broken) = (0, 0);
    for _ in 0..500 {
        let mut frontend = Frontend::connect(&served.socket);
        frontend.negotiate(F_INDIRECT | super::frontend::F_EVENT_IDX);
        frontend.add_ring(64);
        let table = frontend.queues[0].ring.descriptors;
        let mut heads = Vec::new();
        for place in 0..20 {
            let kind = [0, 1, 4, 8, 11, 13][next(6) as usize];
            heads.push(frontend.prepare(0, place, kind, next(2100), 512 * next(100) as u32));
        }
        for _ in 0..next(12) {
            // Somewhere in a descriptor, with a weakness for its flags and its next.
            let field = [next(16), 12, 14][next(3) as usize];
            let value = [next(256), next(8)][next(2) as usize];
            frontend.memory.write(table + 16 * next(60) + field, &[value as u8]);
        }
        for _ in 0..16 {
            let head = if next(100) == 0 { next(65_536) as u16 } else { heads[next(20) as usize] };
            offer(&mut frontend, head);
        }
        let offered = frontend.memory.read(frontend.queues[0].ring.available + 4, 32);
        let offered: Vec<u32> =
            offered.chunks(2).map(|head| u16::from_le_bytes([head[0], head[1]]).into()).collect();
        frontend.start(0, 0);
        frontend.kick(0);
        // It comes back when the queue has looked at them, or has given up.
        let start = std::time::Instant::now();
        while frontend.queues[0].ring.used_index(&frontend.memory) != 16
            && count(&frontend.queues[0].err) == 0
            && start.elapsed().as_millis() < 200
        {
            std::thread::yield_now();
        }
        let base = frontend.stop(0);
        assert!(base <= 16, "{base}");
        broken += u32::from(base < 16);
        while let Some((head, _)) = frontend.queues[0].ring.try_used(&frontend.memory) {
            assert!(offered.contains(&head), "{head} of {offered:?}");
            completed += 1;
        }
    }
    println!("{completed} requests completed, {broken} rings broken");
    assert!(completed > 1000 && broken > 50, "{completed} requests completed, {broken} rings broken");
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(4, 0, 0), (0, 1));
}
