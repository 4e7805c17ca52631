//! Groups that stand still while a namespace changes its size.

use std::sync::Arc;
use std::time::Duration;

use doorbell_core::spec::status::Status;
use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::ctl::protocol::{Answer, Command};
use doorbell_vhost::device::DeviceConfig;
use doorbell_vhost::storage::fault::{Fault, FaultRule};

use crate::rig::{IOVA, LONG, READ, Rig, WRITE, collect, pattern, plain, run, shadow, transfer, verify};

const HOLD: Fault = Fault::Hold { cancellable: true };

/// The resize waits for commands in flight; what is rung meanwhile runs afterwards, without a second ring.
#[test]
fn a_doorbell_rung_while_paused_needs_no_second_ring() {
    for (mode, change) in
        [(DoorbellMode::Mapped, (|_| {}) as fn(&mut DeviceConfig)), (DoorbellMode::Posted, shadow)]
    {
        let (rig, faults) = Rig::with_faults(16 << 20, change);
        let mut nvme = rig.driver();
        let buffer = nvme.allocate(128 << 10).unwrap();
        let mut first = nvme.create_queue_pair(64, 32, mode, false).unwrap();
        let mut second = nvme.create_queue_pair(64, 32, mode, false).unwrap();
        for round in 0..3u64 {
            faults.set(vec![FaultRule::all(HOLD)]);
            first.submit(&transfer(READ, 0, IOVA + buffer, 4096)).unwrap();
            first.ring().unwrap();
            assert!(faults.wait_for(1, LONG));
            let size_bytes = (16 << 20) + ((round + 1) << 20);
            let answer = std::thread::scope(|scope| {
                let asking = scope.spawn(|| rig.ask(Command::NamespaceResize { nsid: 1, size_bytes }));
                // Paused by now, and it can't go on before the command in flight ends.
                std::thread::sleep(Duration::from_millis(400));
                faults.clear();
                for at in 0..16 {
                    second.submit(&transfer(READ, at * 8, IOVA + buffer + 4096 * (at + 1), 4096)).unwrap();
                }
                second.ring().unwrap();
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(second.poll(16, &mut |_| {}).unwrap(), 0, "a paused group fetched");
                faults.release();
                asking.join().unwrap()
            });
            assert_eq!(answer, Ok(Answer::Namespace { nsid: 1 }));
            assert!(collect(&mut nvme, &mut second, 16).iter().all(|status| status.is_success()));
            assert!(collect(&mut nvme, &mut first, 1)[0].is_success());
            assert_eq!(nvme.identify().unwrap().blocks, size_bytes / 512);
            // What is new can be used.
            verify(&mut nvme, &mut first, buffer, &[size_bytes / 512 - 8], 4096);
        }
    }
}

#[test]
fn a_namespace_shrinks_under_load() {
    for storage in ["ram=16M", "file=FOLDER/f"] {
        let folder = tempfile::tempdir().unwrap();
        crate::rig::image(&folder.path().join("f"), 16 << 20);
        let storage = storage.replace("FOLDER", &folder.path().display().to_string());
        let rig = Rig::start(&[&storage], |config| config.pollers = 2);
        let mut nvme = rig.driver();
        let buffer = nvme.allocate(64 << 10).unwrap();
        let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
        verify(&mut nvme, &mut queue, buffer, &[0, 16000], 16384);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                for megabytes in [8, 4, 12, 2, 16] {
                    let size_bytes = megabytes << 20;
                    let answer = rig.ask(Command::NamespaceResize { nsid: 1, size_bytes });
                    assert_eq!(answer, Ok(Answer::Namespace { nsid: 1 }));
                }
            });
            let mut at = 0;
            while !asking.is_finished() {
                for _ in 0..16 {
                    at = (at + 4093) % (32768 - 8);
                    queue.submit(&transfer(READ, at, IOVA + buffer + 4096, 4096)).unwrap();
                }
                queue.ring().unwrap();
                for status in collect(&mut nvme, &mut queue, 16) {
                    let beyond = plain(status) == Status::LBA_OUT_OF_RANGE;
                    assert!(status.is_success() || beyond, "{status:?}");
                }
            }
            asking.join().unwrap();
        });
        // The first block has lived through it all, the last is new.
        let memory = Arc::clone(nvme.memory());
        for (slba, expected) in [(0, pattern(1, 16384)), (16000, vec![0; 16384])] {
            assert!(run(&mut nvme, &mut queue, &transfer(READ, slba, IOVA + buffer, 16384)).is_success());
            let mut found = vec![0; 16384];
            memory.read(buffer, &mut found);
            assert!(found == expected, "{storage} at {slba}");
        }
    }
}

/// A storage that doesn't let go of its commands can't be resized; the guest goes on.
#[test]
fn a_resize_that_can_not_be_is_given_up() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 << 10).unwrap();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    faults.set(vec![FaultRule { range_bytes: 0..4096, applies: |_| true, fault: HOLD }]);
    queue.submit(&transfer(READ, 0, IOVA + buffer, 4096)).unwrap();
    queue.ring().unwrap();
    assert!(faults.wait_for(1, LONG));
    let refused = rig.ask(Command::NamespaceResize { nsid: 1, size_bytes: 8 << 20 }).unwrap_err();
    assert!(refused.contains("commands in flight") && refused.contains("try again"), "{refused}");
    // Everything else runs, at the old size.
    let last = transfer(WRITE, 32760, IOVA + buffer, 4096);
    assert!(run(&mut nvme, &mut queue, &last).is_success());
    faults.clear();
    faults.release();
    assert!(collect(&mut nvme, &mut queue, 1)[0].is_success());
    assert_eq!(nvme.identify().unwrap().blocks, 32768);
    let resized = rig.ask(Command::NamespaceResize { nsid: 1, size_bytes: 8 << 20 });
    assert_eq!(resized, Ok(Answer::Namespace { nsid: 1 }));
    assert_eq!(plain(run(&mut nvme, &mut queue, &last)), Status::LBA_OUT_OF_RANGE);
}
