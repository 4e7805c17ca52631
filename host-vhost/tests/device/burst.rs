//! System calls of a burst: one `io_uring_enter` for a batch, one eventfd write for an interrupt.

use std::time::Duration;

use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::ShadowRule;

use crate::rig::{IOVA, READ, Rig, collect, image, shadow, transfer};

/// Commands that a poller takes in one turn.
const BATCH: u64 = 32;

#[test]
fn a_batch_is_one_io_uring_enter_and_an_interrupt_one_write() {
    let folder = tempfile::tempdir().unwrap();
    image(&folder.path().join("f"), 16 << 20);
    let rig = Rig::start(&[&format!("file={}/f", folder.path().display())], shadow);
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 * 4096).unwrap();
    nvme.enable_shadow().unwrap();
    let mode = DoorbellMode::ShadowEventFd(ShadowRule::Linux);
    let mut queue = nvme.create_queue_pair(128, 64, mode, true).unwrap();
    let (mut enters, mut interrupts) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        // It writes its counters when it rests.
        std::thread::sleep(Duration::from_millis(20));
        let before = rig.stat();
        for at in 0..64 {
            queue.submit(&transfer(READ, at * 8, IOVA + buffer + at * 4096, 4096)).unwrap();
        }
        queue.ring().unwrap();
        assert!(collect(&mut nvme, &mut queue, 64).iter().all(|status| status.is_success()));
        std::thread::sleep(Duration::from_millis(20));
        let after = rig.stat();
        enters.push(after.pollers[0].io_uring_enters - before.pollers[0].io_uring_enters);
        interrupts.push(after.interrupts - before.interrupts);
    }
    println!("burst of 64 file reads: enters {enters:?}, interrupts {interrupts:?}");
    // 64 commands in batches of 32, whatever the disk does meanwhile.
    assert!(enters.iter().all(|enters| *enters <= 64 / BATCH), "{enters:?}");
    while queue.wait(Duration::ZERO).unwrap() {}
    assert_eq!(queue.interrupts(), rig.stat().queues[0].interrupts, "each is one write of the eventfd");
}

/// Completions of one turn share an interrupt.
#[test]
fn a_burst_to_memory_is_two_batches_and_two_interrupts() {
    let rig = Rig::start(&["ram=16M"], shadow);
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 * 4096).unwrap();
    let mut queue = nvme.create_queue_pair(128, 64, DoorbellMode::Posted, true).unwrap();
    for _ in 0..20 {
        let before = rig.stat();
        for at in 0..64 {
            queue.submit(&transfer(READ, at * 8, IOVA + buffer + at * 4096, 4096)).unwrap();
        }
        queue.ring().unwrap();
        assert!(collect(&mut nvme, &mut queue, 64).iter().all(|status| status.is_success()));
        let after = rig.stat();
        assert!((1..=2).contains(&(after.interrupts - before.interrupts)), "{before:?} {after:?}");
        assert_eq!(after.pollers[0].io_uring_enters, 0);
    }
    while queue.wait(Duration::ZERO).unwrap() {}
    assert_eq!(queue.interrupts(), rig.stat().queues[0].interrupts);
}
