//! A running controller moves between engines; its guest notices nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_core::spec::queue_entry::CompletionQueueEntry;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::{DriverCommand, QueuePair, ShadowRule};
use doorbell_vhost::ctl::protocol::{Answer, Command};
use doorbell_vhost::device::DeviceConfig;
use doorbell_vhost::engine::Hosting;

use crate::rig::{IOVA, READ, Rig, WRITE, await_that, image, pattern, prp, shadow};

/// Commands in flight on each queue.
const DEPTH: u64 = 64;
const BYTES: u32 = 4096;
const ROUNDS: u64 = 10;

/// The module with the exports of a live upgrade.
fn module() -> PathBuf {
    let path = std::env::var_os("DOORBELL_UPGRADE_MODULE").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/module/doorbell-upgrade.wasm"),
        PathBuf::from,
    );
    assert!(path.exists(), "{} isn't there: `cargo xtask module` builds it", path.display());
    path
}

fn upgrade(rig: &Rig, module: Option<PathBuf>) -> Result<Duration, String> {
    match rig.ask(Command::Upgrade { module })? {
        Answer::Upgraded { pause_ns, .. } => Ok(Duration::from_nanos(pause_ns)),
        other => panic!("{other:?}"),
    }
}

/// Each of 64 lanes writes to a place of its own, reads it back and compares, over and over; counts how often.
fn verify_until(
    memory: &ClientMemory,
    queue: &mut QueuePair,
    nsid: u32,
    buffers: u64,
    place: u64,
    over: &AtomicBool,
    verified: &AtomicU64,
) {
    let at = |lane: u64| buffers + lane * u64::from(BYTES);
    let command = |opcode, lane: u64| {
        let slba = (place + lane) * u64::from(BYTES) / 512;
        DriverCommand::transfer(opcode, nsid, slba, BYTES / 512, prp(IOVA + at(lane), BYTES))
    };
    let content = |lane: u64, version: u64| pattern(place << 40 | lane << 32 | version, BYTES as usize);
    let mut lanes = vec![(0_u64, WRITE); DEPTH as usize];
    let mut by_cid = vec![0; 65536];
    for lane in 0..DEPTH {
        memory.write(at(lane), &content(lane, 0));
        by_cid[usize::from(queue.submit(&command(WRITE, lane)).expect("room"))] = lane;
    }
    queue.ring().unwrap();
    let mut silent_since = std::time::Instant::now();
    while queue.in_flight() > 0 {
        let mut ended = Vec::new();
        // Identifiers are free for the next command from here on.
        let mut take =
            |entry: CompletionQueueEntry| ended.push((by_cid[usize::from(entry.cid)], entry.status));
        queue.poll(DEPTH as usize, &mut take).unwrap();
        if ended.is_empty() {
            assert!(silent_since.elapsed() < crate::rig::LONG, "{} commands got lost", queue.in_flight());
            std::thread::yield_now();
            continue;
        }
        silent_since = std::time::Instant::now();
        for (lane, status) in ended {
            let (version, opcode) = &mut lanes[lane as usize];
            assert!(status.is_success(), "lane {lane}, opcode {opcode}: {status:?}");
            if *opcode == WRITE {
                *opcode = READ;
                memory.zero(at(lane), u64::from(BYTES));
            } else {
                let mut found = vec![0; BYTES as usize];
                memory.read(at(lane), &mut found);
                assert!(found == content(lane, *version), "lane {lane} differs");
                verified.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    continue;
                }
                *version += 1;
                *opcode = WRITE;
                memory.write(at(lane), &content(lane, *version));
            }
            by_cid[usize::from(queue.submit(&command(*opcode, lane)).expect("room"))] = lane;
        }
        queue.ring().unwrap();
    }
}

/// Ends the workers, whatever ends the test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ten times there and back while two queues on two pollers verify RAM and a file at depth 64.
fn there_and_back(mode: DoorbellMode, on_file: bool, change: fn(&mut DeviceConfig)) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f");
    image(&file, 16 << 20);
    let second = if on_file { format!("file={}", file.display()) } else { "ram=16M".to_owned() };
    let rig = Rig::start(&["ram=16M", &second], |config| {
        config.hosting = Hosting::Native;
        config.pollers = 2;
        change(config);
    });
    let mut nvme = rig.driver();
    if matches!(mode, DoorbellMode::Shadow(_)) {
        nvme.enable_shadow().unwrap();
    }
    let buffers = nvme.allocate(2 * DEPTH * u64::from(BYTES)).unwrap();
    let queues: Vec<_> =
        (0..2).map(|_| nvme.create_queue_pair(128, DEPTH as u16, mode, false).unwrap()).collect();
    let memory = Arc::clone(nvme.memory());
    let over = AtomicBool::new(false);
    let verified = [AtomicU64::new(0), AtomicU64::new(0)];
    let pauses = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let ending = Over(&over);
        let workers: Vec<_> = (1..)
            .zip(queues)
            .map(|(nsid, mut queue)| {
                let (memory, over, verified) = (&memory, &over, &verified[nsid as usize - 1]);
                let buffers = buffers + u64::from(nsid - 1) * DEPTH * u64::from(BYTES);
                scope.spawn(move || {
                    verify_until(memory, &mut queue, nsid, buffers, 64 * u64::from(nsid), over, verified)
                })
            })
            .collect();
        for round in 0..ROUNDS {
            for to in [Some(module()), None] {
                let engine =
                    to.as_ref().map_or("native".into(), |path| format!("sandbox {}", path.display()));
                let pause = std::thread::scope(|scope| {
                    let asking = scope.spawn(|| upgrade(&rig, to));
                    while !asking.is_finished() {
                        nvme.client().serve().unwrap();
                        std::thread::yield_now();
                    }
                    asking.join().unwrap()
                });
                pauses.lock().unwrap().push(pause.unwrap_or_else(|error| panic!("round {round}: {error}")));
                // On both queues, everything that was in flight and as much again.
                let seen = verified.each_ref().map(|count| count.load(Ordering::Relaxed));
                await_that("I/O goes on", || {
                    nvme.client().serve().unwrap();
                    verified.iter().zip(seen).all(|(now, seen)| now.load(Ordering::Relaxed) > seen + DEPTH)
                });
                assert!(nvme.is_ready().unwrap(), "CSTS.RDY");
                assert_eq!(nvme.identify().unwrap().blocks, (16 << 20) / 512);
                let stat = rig.stat();
                assert_eq!((stat.engine, stat.connections, stat.namespaces.len()), (engine, 1, 2));
                assert!(stat.queues.iter().all(|queue| queue.errors == 0));
            }
        }
        drop(ending);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let pauses = pauses.into_inner().unwrap();
    println!("{mode:?}: pauses at depth 64: {pauses:?}");
    assert!(pauses.iter().max().unwrap() < &Duration::from_millis(100));
}

#[test]
fn verified_io_goes_on_through_twenty_upgrades() {
    there_and_back(DoorbellMode::Mapped, true, |_| {});
}

#[test]
fn so_it_does_with_shadow_doorbells() {
    there_and_back(DoorbellMode::Shadow(ShadowRule::Linux), true, shadow);
}

#[test]
fn so_it_does_with_a_message_a_doorbell() {
    // With a file on a disk this sometimes takes seconds; nobody knows yet whether that is the disk's doing.
    there_and_back(DoorbellMode::Posted, false, shadow);
}

/// Namespaces come and go before, between and after upgrades.
#[test]
fn admin_work_goes_on_in_every_engine() {
    let rig = Rig::start(&["ram=16M"], |config| {
        config.hosting = Hosting::Native;
        config.pollers = 2;
    });
    let mut nvme = rig.driver();
    let mut there = 1;
    for to in [Some(module()), None, Some(module()), Some(module()), None] {
        upgrade(&rig, to).unwrap();
        let Ok(Answer::Namespace { nsid }) = rig.ask(Command::NamespaceAdd { spec: "ram=1M".into() }) else {
            panic!("no namespace")
        };
        there += 1;
        let resize = Command::NamespaceResize { nsid, size_bytes: 2 << 20 };
        assert_eq!(rig.ask(resize), Ok(Answer::Namespace { nsid }));
        if there > 3 {
            assert_eq!(rig.ask(Command::NamespaceRemove { nsid }), Ok(Answer::Namespace { nsid }));
            there -= 1;
        }
        assert_eq!(rig.stat().namespaces.len(), there);
        assert_eq!(nvme.identify().unwrap().blocks, (16 << 20) / 512);
    }
    nvme.shut_down().unwrap();
    nvme.restart().unwrap();
    assert!(nvme.is_ready().unwrap());
}

/// What can't be gone on with is refused in one sentence, and the engine of before goes on.
#[test]
fn a_module_that_can_not_take_over_changes_nothing() {
    let rig = Rig::start(&["ram=16M"], |config| {
        config.hosting = Hosting::Native;
        config.pollers = 2;
    });
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 << 10).unwrap();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let without = module().with_file_name("doorbell.wasm");
    assert!(without.exists(), "`cargo xtask module` builds it");
    let folder = tempfile::tempdir().unwrap();
    let nonsense = folder.path().join("nonsense.wasm");
    std::fs::write(&nonsense, b"nonsense").unwrap();
    for (module, why) in [
        (without, "can't be upgraded"),
        (nonsense, "not a module"),
        (folder.path().join("nowhere.wasm"), "can't be read"),
    ] {
        let refused = upgrade(&rig, Some(module)).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(rig.stat().engine, "native");
        crate::rig::verify(&mut nvme, &mut queue, buffer, &[0, 800], BYTES);
    }
    upgrade(&rig, Some(module())).unwrap();
    crate::rig::verify(&mut nvme, &mut queue, buffer, &[0, 800], BYTES);
}
