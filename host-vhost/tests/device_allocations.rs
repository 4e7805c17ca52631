//! On the way of a command nothing is allocated.
//!
//! A binary of its own, because its allocator counts what the poller's thread allocates.

#![expect(unreachable_pub, reason = "test modules share items")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::ShadowRule;

mod counting;
#[expect(dead_code, reason = "made for more tests than this")]
#[path = "device/rig.rs"]
mod rig;

use counting::{ALLOCATIONS, WATCHED};
use rig::{IOVA, READ, Rig, WRITE, collect, image, shadow, threads, transfer};

#[test]
fn ten_thousand_commands_allocate_nothing_on_their_poller() {
    let folder = tempfile::tempdir().unwrap();
    image(&folder.path().join("f"), 16 << 20);
    let file = format!("file={}/f", folder.path().display());
    for namespace in ["ram=16M", &file] {
        for sleeping in [false, true] {
            let rig = Rig::start(&[namespace], |config| {
                if sleeping {
                    shadow(config);
                }
            });
            let mut nvme = rig.driver();
            let buffer = nvme.allocate(32 * 8192).unwrap();
            let mode = if sleeping {
                nvme.enable_shadow().unwrap();
                DoorbellMode::ShadowEventFd(ShadowRule::Linux)
            } else {
                DoorbellMode::Mapped
            };
            let mut queue = nvme.create_queue_pair(64, 32, mode, true).unwrap();
            let mut commands = |count: u64| {
                for round in 0..count / 32 {
                    for at in 0..32 {
                        let opcode = if (round + at) % 2 == 0 { READ } else { WRITE };
                        // Across a page now and then.
                        let iova = IOVA + buffer + at * 8192 + (round % 3) * 512;
                        queue.submit(&transfer(opcode, at * 16, iova, 4096)).unwrap();
                    }
                    queue.ring().unwrap();
                    assert!(collect(&mut nvme, &mut queue, 32).iter().all(|status| status.is_success()));
                    if round % 64 == 0 {
                        // So that it sleeps and wakes too.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            };
            commands(2_000);
            let (poller, _) = threads().into_iter().find(|(_, name)| name == "poller-0").unwrap();
            ALLOCATIONS.store(0, Ordering::Relaxed);
            WATCHED.store(poller.parse().unwrap(), Ordering::Relaxed);
            commands(10_000);
            let found = ALLOCATIONS.load(Ordering::Relaxed);
            // That it can see any: the report that a person asks for is allocated.
            drop(rig.stat());
            let seen = ALLOCATIONS.load(Ordering::Relaxed);
            WATCHED.store(0, Ordering::Relaxed);
            assert_eq!(found, 0, "{namespace}, sleeping: {sleeping}");
            assert!(seen > 0);
        }
    }
}
