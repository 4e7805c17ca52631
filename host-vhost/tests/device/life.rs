//! Queues that come and go, resets, many queues on several pollers.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::ShadowRule;

use crate::rig::{IOVA, READ, Rig, collect, run, shadow, transfer, verify};

/// 64 queue pairs come and go while one queue keeps its poller busy.
#[test]
fn queues_come_and_go_under_full_load() {
    let rig = Rig::start(&["ram=16M"], |config| config.pollers = 2);
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(128 << 10).unwrap();
    let mut busy: Vec<_> =
        (0..2).map(|_| nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap()).collect();
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        for queue in &mut busy {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let read = transfer(READ, 0, IOVA + buffer, 4096);
                    while queue.in_flight() < 32 && queue.submit(&read).is_some() {}
                    queue.ring().unwrap();
                    queue.poll(32, &mut |entry| assert!(entry.status.is_success())).unwrap();
                    std::thread::yield_now();
                }
            });
        }
        let mut rounds = 0;
        // The memory of deleted queues isn't used again, so each round has a little.
        while let Ok(mut queue) = nvme.create_queue_pair(2, 1, DoorbellMode::Mapped, false) {
            if rounds % 4 == 0 {
                let read = transfer(READ, 8, IOVA + buffer + 4096, 4096);
                assert!(run(&mut nvme, &mut queue, &read).is_success());
            }
            nvme.delete_queue_pair(3).unwrap();
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
        rounds
    });
    assert!(rounds > 1000, "{rounds}");
    let completed: Vec<_> = busy.iter().map(|queue| queue.completed()).collect();
    assert!(completed.iter().all(|completed| *completed > 0), "{completed:?}");
}

#[test]
fn all_64_queues_come_and_go() {
    let rig = Rig::start(&["ram=16M"], |config| config.pollers = 2);
    let mut nvme = rig.driver();
    for _ in 0..20 {
        let buffer = nvme.allocate(4096).unwrap();
        let mut queues: Vec<_> =
            (0..64).map(|_| nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap()).collect();
        for (at, queue) in (0..).zip(&mut queues) {
            verify(&mut nvme, queue, buffer, &[at], 512);
        }
        for qid in (1..=64).rev() {
            nvme.delete_queue_pair(qid).unwrap();
        }
        nvme.restart().unwrap();
    }
    assert!(rig.stat().queues.is_empty());
}

#[test]
fn resets_under_load_lose_nothing() {
    for mode in [DoorbellMode::Mapped, DoorbellMode::Posted] {
        let change = |config: &mut doorbell_vhost::device::DeviceConfig| {
            if mode == DoorbellMode::Posted {
                shadow(config);
            }
            config.pollers = 2;
        };
        let rig = Rig::start(&["ram=16M"], change);
        let mut nvme = rig.driver();
        for round in 0..150 {
            if mode == DoorbellMode::Posted {
                nvme.enable_shadow().unwrap();
            }
            let mode = match (mode, round % 2) {
                (DoorbellMode::Posted, 0) => DoorbellMode::Shadow(ShadowRule::Linux),
                (mode, _) => mode,
            };
            let buffer = nvme.allocate(64 << 10).unwrap();
            let mut queues: Vec<_> =
                (0..3).map(|_| nvme.create_queue_pair(64, 32, mode, false).unwrap()).collect();
            for queue in &mut queues {
                for at in 0..32 {
                    queue.submit(&transfer(READ, at * 8, IOVA + buffer, 4096)).unwrap();
                }
                queue.ring().unwrap();
            }
            if round % 3 == 0 {
                for queue in &mut queues {
                    assert!(collect(&mut nvme, queue, 32).iter().all(|status| status.is_success()));
                }
                verify(&mut nvme, &mut queues[1], buffer, &[3, 900], 4096);
            }
            nvme.restart().unwrap();
        }
    }
}

#[test]
fn three_pollers_serve_many_queues() {
    let rig = Rig::start(&["ram=16M"], |config| config.pollers = 3);
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 << 10).unwrap();
    let mut queues: Vec<_> =
        (0..12).map(|_| nvme.create_queue_pair(32, 16, DoorbellMode::Mapped, false).unwrap()).collect();
    for (at, queue) in (0..).zip(&mut queues) {
        verify(&mut nvme, queue, buffer, &[at * 128, at * 128 + 64], 16384);
    }
    let statistics = rig.stat();
    let mut groups: Vec<_> = statistics.queues.iter().map(|queue| queue.group).collect();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups, [0, 1, 2]);
    assert!(statistics.queues.iter().all(|queue| queue.commands == 4));
    assert_eq!((statistics.read_commands, statistics.write_commands), (24, 24));
}
