//! On the way of a virtio request nothing is allocated, whether it is logged for a migration or not.
//!
//! A binary of its own, because its allocator counts what the poller's thread allocates.

#![expect(unreachable_pub, reason = "test modules share items")]

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

mod counting;
#[expect(dead_code, reason = "made for more tests than this")]
#[path = "vhost_user/frontend.rs"]
mod frontend;
#[expect(dead_code, reason = "made for more tests than this")]
#[path = "vhost_user/memory.rs"]
mod memory;
#[expect(dead_code, reason = "made for more tests than this")]
#[path = "vhost_user/ring.rs"]
mod ring;

use counting::{ALLOCATIONS, WATCHED};
use frontend::{F_EVENT_IDX, F_LOG_ALL, Frontend, Served, code};
use memory::{GUEST, SIZE};

/// The number of the thread of that name.
fn thread(name: &str) -> i32 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let named = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let task = tasks.into_iter().find(|task| named(task.path())).expect("a thread of that name");
    task.file_name().to_str().unwrap().parse().unwrap()
}

/// So many reads and writes, twenty at a time.
fn requests(frontend: &mut Frontend, count: u64) {
    for round in 0..count / 20 {
        for place in 0..20 {
            let kind = u32::from((round + u64::from(place)) % 2 == 0);
            let head = frontend.prepare(0, place, kind, u64::from(place) * 8, 4096);
            frontend.queues[0].ring.offer(&frontend.memory, head);
        }
        frontend.kick(0);
        for _ in 0..20 {
            frontend.queues[0].ring.used(&frontend.memory);
        }
        if round % 64 == 0 {
            // So that it sleeps and wakes too.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn ten_thousand_requests_allocate_nothing_on_their_poller() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for more in ["", ",direct=off"] {
        for features in [0, F_LOG_ALL] {
            let served = Served::new(&format!("file={}{more}", file.path().display()), 1, 1);
            let mut frontend = Frontend::connect(&served.socket);
            frontend.negotiate(features | F_EVENT_IDX);
            let log_bytes = (GUEST + SIZE) / 4096 / 8;
            let log = std::fs::File::from(
                rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
            );
            log.set_len(log_bytes).unwrap();
            let payload = [log_bytes, 0].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
            frontend.send(code::SET_LOG_BASE, &payload, &[log.as_fd()]);
            frontend.receive(code::SET_LOG_BASE);
            frontend.add_ring(64);
            frontend.start(0, 0);
            frontend.set_addresses(0, Some(GUEST));
            requests(&mut frontend, 2_000);
            ALLOCATIONS.store(0, Ordering::Relaxed);
            WATCHED.store(thread("blk-poller-0"), Ordering::Relaxed);
            requests(&mut frontend, 10_000);
            let found = ALLOCATIONS.load(Ordering::Relaxed);
            // That it can see any: a queue that is given back is allocated.
            frontend.stop(0);
            frontend.start(0, 12_000);
            requests(&mut frontend, 20);
            let seen = ALLOCATIONS.load(Ordering::Relaxed);
            WATCHED.store(0, Ordering::Relaxed);
            assert_eq!(found, 0, "{more}, features {features:#x}");
            assert!(seen > 0);
        }
    }
}
