//! Storage that is slow or never answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::storage::fault::{Fault, FaultRule};

use crate::rig::{IOVA, LONG, READ, Rig, await_that, collect, pattern, run, transfer, verify};

const HOLD: Fault = Fault::Hold { cancellable: true };
const DEAF: Fault = Fault::Hold { cancellable: false };

#[test]
fn a_reset_ends_commands_that_their_storage_never_answers() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    for _ in 0..20 {
        let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
        let buffer = nvme.allocate(64 << 10).unwrap();
        let memory = Arc::clone(nvme.memory());
        verify(&mut nvme, &mut queue, buffer, &[0, 8], 4096);
        faults.set(vec![FaultRule::all(HOLD)]);
        memory.write(buffer, &pattern(99, 65536));
        for slba in 0..16 {
            queue.submit(&transfer(READ, slba * 8, IOVA + buffer + slba * 4096, 4096)).unwrap();
        }
        queue.ring().unwrap();
        assert!(faults.wait_for(16, LONG));
        let start = Instant::now();
        nvme.disable().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        // The late answers.
        faults.clear();
        faults.release();
        std::thread::sleep(Duration::from_millis(5));
        let mut found = vec![0; 65536];
        memory.read(buffer, &mut found);
        assert!(found == pattern(99, 65536), "a command of before the reset wrote memory");
        assert_eq!(queue.poll(16, &mut |_| {}).unwrap(), 0, "a command of before the reset completed");
        nvme.restart().unwrap();
    }
}

#[test]
fn a_reset_waits_for_a_storage_that_can_not_be_stopped() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let buffer = nvme.allocate(4096).unwrap();
    faults.set(vec![FaultRule::all(DEAF)]);
    queue.submit(&transfer(READ, 0, IOVA + buffer, 4096)).unwrap();
    queue.ring().unwrap();
    assert!(faults.wait_for(1, LONG));
    // CC.EN 0 by itself; `disable` would wait.
    nvme.client().region_write(0, 0x14, &[0; 4]).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(nvme.is_ready().unwrap(), "the storage may still write guest memory");
    faults.clear();
    faults.release();
    nvme.disable().unwrap();
    nvme.restart().unwrap();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let buffer = nvme.allocate(4096).unwrap();
    verify(&mut nvme, &mut queue, buffer, &[1, 77], 4096);
}

#[test]
fn an_unmap_is_answered_after_the_last_access() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let lent = ClientMemory::new(0x10_0000, 1 << 20, false).unwrap();
    for round in 0..10 {
        nvme.client().map(&lent, false).unwrap();
        lent.write(0, &pattern(7, 65536));
        faults.set(vec![FaultRule::all(Fault::Delay(Duration::from_millis(100)))]);
        for slba in 0..16 {
            queue.submit(&transfer(READ, slba * 8, 0x10_0000 + slba * 4096, 4096)).unwrap();
        }
        queue.ring().unwrap();
        assert!(faults.wait_for(16, LONG));
        nvme.client().unmap(&lent).unwrap();
        assert_eq!(faults.waiting(), 0, "round {round}: answered with commands in flight");
        // Nothing touches it any more.
        lent.write(0, &pattern(8, 65536));
        std::thread::sleep(Duration::from_millis(5));
        let mut found = vec![0; 65536];
        lent.read(0, &mut found);
        assert!(found == pattern(8, 65536));
        assert!(collect(&mut nvme, &mut queue, 16).iter().all(|status| status.is_success()));
        faults.clear();
        // What is gone is gone.
        assert!(!run(&mut nvme, &mut queue, &transfer(READ, 0, 0x10_0000, 4096)).is_success());
    }
}

#[test]
fn an_unmap_does_not_wait_longer_than_the_host_cancels() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let lent = ClientMemory::new(0x10_0000, 1 << 20, false).unwrap();
    nvme.client().map(&lent, false).unwrap();
    faults.set(vec![FaultRule::all(HOLD)]);
    queue.submit(&transfer(READ, 0, 0x10_0000, 4096)).unwrap();
    queue.ring().unwrap();
    assert!(faults.wait_for(1, LONG));
    let start = Instant::now();
    nvme.client().unmap(&lent).unwrap();
    assert!(start.elapsed() > Duration::from_millis(900), "{:?}", start.elapsed());
    let statuses = collect(&mut nvme, &mut queue, 1);
    assert_eq!(statuses, [doorbell_core::spec::status::Status::ABORT_REQUESTED]);
}

#[test]
fn a_server_stops_with_commands_in_flight() {
    let (mut rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let buffer = nvme.allocate(4096).unwrap();
    faults.set(vec![FaultRule::all(HOLD)]);
    queue.submit(&transfer(READ, 0, IOVA + buffer, 4096)).unwrap();
    queue.ring().unwrap();
    assert!(faults.wait_for(1, LONG));
    let start = Instant::now();
    rig.server = None;
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(!rig.socket.exists());
}

/// Resets that wait for a storage are remembered, but not without end.
#[test]
fn a_client_that_piles_up_requests_is_given_up() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let buffer = nvme.allocate(4096).unwrap();
    faults.set(vec![FaultRule::all(DEAF)]);
    queue.submit(&transfer(READ, 0, IOVA + buffer, 4096)).unwrap();
    queue.ring().unwrap();
    assert!(faults.wait_for(1, LONG));
    // DEVICE_RESET.
    let message = [0, 0, 13, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let connection = nvme.client().connection().clone();
    let pile_up = || {
        let sent = (0..100).try_for_each(|_| connection.send(&message, &[]));
        sent.and_then(|()| connection.flush())
    };
    (0..20).for_each(|_| pile_up().unwrap());
    assert!(rig.stat().connected, "a few are nothing unusual");
    await_that("it is given up", || pile_up().is_err() || !rig.stat().connected);
    faults.clear();
    faults.release();
    drop((queue, nvme, connection));
    assert!(rig.driver().is_ready().unwrap());
}
