//! What was acknowledged survives SIGKILL.
//!
//! The test runs itself again as the victim, which writes versions of blocks at random and reports
//! each acknowledgement in shared memory; the test kills it and looks at the image.

#![expect(unsafe_code, reason = "maps a page shared with the victim")]

mod storage_harness;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use doorbell_vhost::storage::{Direct, Operation, Storage, StorageConfig, Submission};
use storage_harness::{Memory, Poller, directory, file, qcow2, segment};

const CHILD: &str = "DOORBELL_STORAGE_KILL_CHILD";
const BLOCK: u64 = 4096;
/// Far apart, so that a qcow2 image allocates clusters and tables all the time.
const STRIDE: u64 = 128 << 10;
const BLOCKS: u64 = 4096;
const SIZE: u64 = STRIDE * BLOCKS;
const DEPTH: usize = 16;

/// The last acknowledged version of each block.
fn acknowledged(path: &Path) -> &'static [AtomicU32] {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("shared page");
    let len = BLOCKS as usize * 4;
    // SAFETY: a new mapping of a file of this length, never unmapped.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &file,
            0,
        )
    }
    .expect("map");
    // SAFETY: mapped for ever, aligned to a page, and only ever used as atomics.
    unsafe { std::slice::from_raw_parts(base.cast::<AtomicU32>(), BLOCKS as usize) }
}

fn config(kind: &str, path: &Path) -> StorageConfig {
    let path = path.to_owned();
    match kind {
        "qcow2" => StorageConfig::Qcow2 { path, read_only: false },
        "direct" => StorageConfig::File { path, read_only: false, direct: Direct::On },
        _ => StorageConfig::File { path, read_only: false, direct: Direct::Off },
    }
}

#[test]
#[ignore = "runs in the processes that the other tests kill"]
fn victim() {
    let Ok(arguments) = std::env::var(CHILD) else { panic!("{CHILD} names no image") };
    let [kind, image, shared, seed] = arguments.split('|').collect::<Vec<_>>()[..] else { panic!() };
    let storage = config(kind, image.as_ref()).open().expect("open");
    let acknowledged = acknowledged(shared.as_ref());
    let mut versions: Vec<u32> = acknowledged.iter().map(|version| version.load(Ordering::Relaxed)).collect();
    let mut poller = Poller::new(&*storage);
    let mut memory = Memory::new(DEPTH * BLOCK as usize, 0);
    let mut random: u64 = seed.parse().expect("seed");
    // Slot of memory: which block it writes.
    let mut writing = [None; DEPTH];
    loop {
        for slot in 0..DEPTH {
            if writing[slot].is_some() {
                continue;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (random >> 33) % BLOCKS;
            if writing.contains(&Some(block)) {
                continue;
            }
            let version = versions[block as usize] + 1;
            versions[block as usize] = version;
            let bytes = &mut memory.bytes()[slot * BLOCK as usize..][..BLOCK as usize];
            fill(bytes, block, version);
            let one = [segment(bytes)];
            let operation = Operation::Write { fua: random.is_multiple_of(64) };
            assert_eq!(
                poller.submit(slot as u64, operation, block * STRIDE, BLOCK, &one),
                Submission::Queued
            );
            writing[slot] = Some(block);
        }
        poller.context.submit_batch();
        poller.context.reap(&mut |slot, result| {
            result.expect("write");
            if let Some(block) = writing[slot as usize].take() {
                acknowledged[block as usize].store(versions[block as usize], Ordering::Relaxed);
            }
        });
    }
}

fn fill(bytes: &mut [u8], block: u64, version: u32) {
    for word in bytes.chunks_exact_mut(16) {
        word[..8].copy_from_slice(&block.to_le_bytes());
        word[8..].copy_from_slice(&u64::from(version).to_le_bytes());
    }
}

fn survives(kind: &str, rounds: u64) {
    let directory = directory();
    let image = match kind {
        "qcow2" => qcow2(directory.path(), "disk.qcow2", &SIZE.to_string()),
        _ => file(directory.path(), "disk.img", SIZE),
    };
    let shared = file(directory.path(), "acknowledged", BLOCKS * 4);
    let acknowledged = acknowledged(&shared);
    let mut total = 0;
    for round in 0..rounds {
        let arguments = format!("{kind}|{}|{}|{}", image.display(), shared.display(), round * 77 + 1);
        let mut victim = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "victim", "--ignored", "--nocapture"])
            .env(CHILD, arguments)
            .stdout(Stdio::null())
            .spawn()
            .expect("victim");
        let sum =
            || acknowledged.iter().map(|version| u64::from(version.load(Ordering::Relaxed))).sum::<u64>();
        let (start, before) = (Instant::now(), sum());
        while sum() < before + 50 {
            assert!(start.elapsed() < Duration::from_secs(60), "the victim writes nothing");
            assert!(victim.try_wait().expect("wait").is_none(), "the victim died by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50 + round * 13 % 100));
        victim.kill().expect("SIGKILL");
        victim.wait().expect("wait");
        total = sum();
        if kind == "qcow2" {
            // QEMU's own judgement: leaked clusters (3) waste room, anything else is damage.
            let check = Command::new("qemu-img").args(["check", "-f", "qcow2"]).arg(&image).output();
            let check = check.expect("qemu-img");
            assert!(matches!(check.status.code(), Some(0 | 3)), "round {round}: {check:?}");
            let raw = directory.path().join("raw.img");
            storage_harness::qemu_img(&[
                "convert",
                "-f",
                "qcow2",
                "-O",
                "raw",
                image.to_str().expect("path"),
                raw.to_str().expect("path"),
            ]);
            verify(&*config("buffered", &raw).open().expect("raw"), acknowledged);
        }
        verify(&*config(kind, &image).open().expect("reopen"), acknowledged);
    }
    println!("{kind}: {total} writes acknowledged in {rounds} lives, none lost");
}

fn verify(storage: &dyn Storage, acknowledged: &[AtomicU32]) {
    let mut poller = Poller::new(storage);
    for (block, last) in (0..).zip(acknowledged) {
        let bytes = poller.read(block * STRIDE, BLOCK as usize).expect("read");
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        let last = last.load(Ordering::Relaxed);
        assert!(version >= last, "block {block}: version {last} was acknowledged, {version} is there");
        let mut wanted = vec![0; BLOCK as usize];
        if version > 0 {
            fill(&mut wanted, block, version);
        }
        assert!(bytes == wanted, "block {block} is torn");
        // A write that was in flight may have landed; the next life counts on from it.
        acknowledged[block as usize].store(version, Ordering::Relaxed);
    }
}

#[test]
fn qcow2_survives_sigkill() {
    survives("qcow2", 8);
}

#[test]
fn direct_file_survives_sigkill() {
    survives("direct", 4);
}

#[test]
fn buffered_file_survives_sigkill() {
    survives("buffered", 4);
}
