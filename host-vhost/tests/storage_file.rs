//! Files: system calls counted, errors, locks, sizes, cancellation, sleep and wake.

mod storage_harness;

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_vhost::storage::fault::{Fault, FaultRule, FaultStorage};
use doorbell_vhost::storage::{
    Direct, FileEngine, FileStorage, IoContextConfig, OpenError, Operation, Qcow2Storage, RamStorage,
    Storage, StorageConfig, StorageError, Submission,
};
use storage_harness::{Memory, Poller, directory, file, qcow2, segment};

const WRITE: Operation = Operation::Write { fua: false };

fn open(path: &std::path::Path, direct: Direct) -> FileStorage {
    FileStorage::open(path, false, direct, FileEngine::Auto).expect("open")
}

#[test]
fn a_batch_is_one_enter_and_an_empty_one_none() {
    let directory = directory();
    for direct in [Direct::On, Direct::Off] {
        let storage = open(&file(directory.path(), "disk.img", 16 << 20), direct);
        let mut poller = Poller::new(&storage);
        let mut memory = Memory::new(32 * 4096, 0);
        for round in 0..20 {
            let before = poller.context.enters();
            for at in 0..32_u64 {
                let one = [segment(&mut memory.bytes()[at as usize * 4096..][..4096])];
                let operation = if at % 2 == 0 { WRITE } else { Operation::Read };
                let offset = (round * 32 + at) * 4096;
                assert_eq!(poller.submit(at, operation, offset, 4096, &one), Submission::Queued);
            }
            assert_eq!(poller.submit(32, Operation::Flush, 0, 0, &[]), Submission::Queued);
            assert_eq!(poller.context.enters(), before, "submitting enters nothing");
            assert_eq!(poller.context.in_flight(), 33);
            let mut done = poller.finish(33);
            assert_eq!(poller.context.enters(), before + 1, "the batch and all its completions");
            poller.context.submit_batch();
            assert_eq!(poller.context.enters(), before + 1, "nothing to submit");
            done.sort_by_key(|(token, _)| *token);
            assert!(done.iter().enumerate().all(|(at, done)| *done == (at as u64, Ok(()))));
        }
    }
}

#[test]
fn several_files_share_one_enter() {
    let directory = directory();
    let storages: Vec<_> =
        (0..3).map(|at| open(&file(directory.path(), &format!("{at}.img"), 1 << 20), Direct::Auto)).collect();
    let mut first = Poller::new(&storages[0]);
    let mut queues: Vec<_> =
        storages[1..].iter().map(|storage| storage.open_queue(&mut first.context).expect("queue")).collect();
    let mut memory = Memory::new(4096, 0);
    let segments = memory.segments(&[4096]);
    assert_eq!(first.submit(0, Operation::Read, 0, 4096, &segments), Submission::Queued);
    for queue in &mut queues {
        std::mem::swap(&mut first.queue, queue);
        assert_eq!(first.submit(1, Operation::Read, 0, 4096, &segments), Submission::Queued);
    }
    first.finish(3);
    assert_eq!(first.context.enters(), 1);
}

#[test]
fn full_slots_answer_busy_and_free_again() {
    let directory = directory();
    let image = qcow2(directory.path(), "disk.qcow2", "1M");
    let storages: [Box<dyn Storage>; 2] = [
        Box::new(open(&file(directory.path(), "disk.img", 1 << 20), Direct::Auto)),
        Box::new(Qcow2Storage::open(&image, false).expect("qcow2")),
    ];
    for storage in storages {
        let config = IoContextConfig { slots: 4, max_segments: 2 };
        let mut poller = Poller::with(&*storage, config);
        let mut memory = Memory::new(4096, 0);
        let three = memory.segments(&[512, 512, 3072]);
        let segments = memory.segments(&[4096]);
        let refused = Submission::Complete(Err(StorageError::BadSegments));
        assert_eq!(poller.submit(0, Operation::Read, 0, 4096, &three), refused);
        for _ in 0..10 {
            for token in 0..4 {
                assert_eq!(poller.submit(token, Operation::Read, 0, 4096, &segments), Submission::Queued);
            }
            assert_eq!(poller.submit(4, Operation::Read, 0, 4096, &segments), Submission::Busy);
            poller.finish(4);
        }
    }
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let directory = directory();
    let raw = file(directory.path(), "disk.img", 1 << 20);
    let image = qcow2(directory.path(), "disk.qcow2", "1M");
    let configs = |read_only| {
        [
            StorageConfig::File { path: raw.clone(), read_only, direct: Direct::Auto },
            StorageConfig::Qcow2 { path: image.clone(), read_only },
        ]
    };
    for (write, read) in configs(false).into_iter().zip(configs(true)) {
        let first = write.open().expect("first");
        for second in [&write, &read] {
            let error = second.open().expect_err("locked");
            assert!(matches!(error, OpenError::Locked { .. }), "{error}");
            assert!(error.to_string().contains("in use"), "{error}");
        }
        // QEMU's own locks and ours see each other.
        let (StorageConfig::File { path, .. } | StorageConfig::Qcow2 { path, .. }) = &write else {
            unreachable!()
        };
        let qemu = Command::new("qemu-io").arg("-c").arg("read 0 512").arg(path).output();
        let qemu = qemu.expect("qemu-io (package qemu-utils)");
        assert!(String::from_utf8_lossy(&qemu.stderr).contains("lock"), "{qemu:?}");
        let mut poller = Poller::new(&*first);
        poller.write(0, &[1; 4096]).expect("write");
        drop(first);
        assert!(write.open().is_err(), "the queue holds the file");
        let Poller { mut context, queue } = poller;
        drop(queue);
        // The ring forgets the file in its next round.
        context.submit_batch();
        let readers: Vec<_> = (0..2).map(|_| read.open().expect("reader")).collect();
        assert!(write.open().is_err());
        drop(readers);
        write.open().expect("free again");
    }
}

#[test]
fn read_only_refuses_changes_and_reads() {
    let directory = directory();
    let path = file(directory.path(), "disk.img", 1 << 20);
    let image = qcow2(directory.path(), "disk.qcow2", "1M");
    let configs = [
        StorageConfig::File { path, read_only: true, direct: Direct::Auto },
        StorageConfig::Qcow2 { path: image, read_only: true },
    ];
    for config in configs {
        let storage = config.open().expect("open");
        assert!(storage.read_only() && !storage.volatile_cache());
        let mut poller = Poller::new(&*storage);
        assert_eq!(poller.write(0, &[1; 512]), Err(StorageError::ReadOnly));
        let zeroes = Operation::WriteZeroes { deallocate: true, fua: false };
        for operation in [zeroes, Operation::Deallocate] {
            assert_eq!(poller.run(operation, 0, 512, &[]), Err(StorageError::ReadOnly));
        }
        assert_eq!(poller.read(0, 512), Ok(vec![0; 512]));
        assert_eq!(poller.flush(), Ok(()));
        assert!(storage.resize(2 << 20).is_err());
    }
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let directory = directory();
    let missing = directory.path().join("missing.img");
    let open = |path: &std::path::Path| {
        FileStorage::open(path, false, Direct::Auto, FileEngine::Auto).expect_err("no storage").to_string()
    };
    assert!(open(&missing).contains("truncate -s 1G"), "{}", open(&missing));
    let qcow2 = Qcow2Storage::open(&missing, false).expect_err("no storage").to_string();
    assert!(qcow2.contains("qemu-img create -f qcow2"), "{qcow2}");
    assert!(open(directory.path()).contains("directory"));
    assert!(open("/dev/null".as_ref()).contains("neither"));
    let empty = file(directory.path(), "empty.img", 0);
    assert!(open(&empty).contains("empty"));
    let raw = file(directory.path(), "raw.img", 1 << 20);
    let not_qcow2 = Qcow2Storage::open(&raw, false).expect_err("raw").to_string();
    assert!(not_qcow2.contains("qcow2"), "{not_qcow2}");
    assert!(RamStorage::new(0).is_err() && RamStorage::new(u64::MAX).is_err());
}

#[test]
fn a_partial_last_sector_reads_zero_and_grows() {
    let directory = directory();
    for engine in [FileEngine::Auto, FileEngine::Threads] {
        let path = directory.path().join("odd.img");
        std::fs::write(&path, vec![7; 10_000]).expect("image");
        let storage = FileStorage::open(&path, false, Direct::Auto, engine).expect("open");
        assert_eq!(storage.size_bytes(), 10_240);
        let mut poller = Poller::new(&storage);
        let tail = poller.read(8192, 2048).expect("tail");
        assert!(tail[..1808].iter().all(|&byte| byte == 7) && tail[1808..].iter().all(|&byte| byte == 0));
        poller.write(9728, &[8; 512]).expect("last sector");
        assert_eq!(std::fs::metadata(&path).expect("metadata").len(), 10_240);
        // A file that somebody else cuts is an error, not zeroes.
        std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("cut");
        assert_eq!(poller.read(8192, 2048), Err(StorageError::Io(libc::EIO)));
    }
}

#[test]
fn resize_grows_and_shrinks_under_open_queues() {
    let directory = directory();
    let path = file(directory.path(), "disk.img", 1 << 20);
    let image = qcow2(directory.path(), "disk.qcow2", "1M");
    let storages: [Box<dyn Storage>; 2] =
        [Box::new(open(&path, Direct::Auto)), Box::new(Qcow2Storage::open(&image, false).expect("qcow2"))];
    for storage in storages {
        let mut poller = Poller::new(&*storage);
        assert_eq!(poller.write(1 << 20, &[1; 4096]), Err(StorageError::OutOfRange));
        storage.resize(8 << 20).expect("grow");
        assert_eq!(storage.size_bytes(), 8 << 20);
        poller.write((8 << 20) - 4096, &[1; 4096]).expect("write at the new end");
        assert_eq!(poller.read((8 << 20) - 4096, 4096), Ok(vec![1; 4096]));
        assert!(storage.resize(1000).is_err() && storage.resize(0).is_err());
        assert_eq!(storage.size_bytes(), 8 << 20);
    }
    let storage = open(&path, Direct::Auto);
    let mut poller = Poller::new(&storage);
    storage.resize(1 << 20).expect("shrink");
    assert_eq!(poller.read(1 << 20, 512), Err(StorageError::OutOfRange));
    assert_eq!(std::fs::metadata(&path).expect("metadata").len(), 1 << 20);
}

#[test]
fn cancelled_commands_are_reaped_exactly_once() {
    let directory = directory();
    let image = qcow2(directory.path(), "disk.qcow2", "256M");
    let raw = file(directory.path(), "disk.img", 256 << 20);
    let storages: [Box<dyn Storage>; 3] = [
        Box::new(open(&raw, Direct::Off)),
        Box::new(Qcow2Storage::open(&image, false).expect("qcow2")),
        Box::new(
            FileStorage::open(
                &file(directory.path(), "2.img", 256 << 20),
                false,
                Direct::On,
                FileEngine::Threads,
            )
            .expect("file"),
        ),
    ];
    for storage in storages {
        let mut poller = Poller::new(&*storage);
        let mut memory = Memory::new(1 << 20, 0);
        let segments = memory.segments(&[1 << 20]);
        for round in 0..5_u64 {
            for token in 0..64 {
                let operation = if token % 4 == 0 { Operation::Verify } else { WRITE };
                let submission = poller.submit(token, operation, token << 20, 1 << 20, &segments);
                assert_eq!(submission, Submission::Queued);
            }
            if round % 2 == 0 {
                poller.context.submit_batch();
            }
            assert!((0..64).rev().all(|token| poller.context.cancel(token)));
            assert!(!poller.context.cancel(1000));
            let mut done = poller.finish(64);
            done.sort_by_key(|(token, _)| *token);
            for (at, (token, result)) in done.iter().enumerate() {
                assert_eq!(*token, at as u64);
                assert!(matches!(result, Ok(()) | Err(StorageError::Cancelled)), "{result:?}");
            }
            assert_eq!(poller.context.in_flight(), 0);
            assert_eq!(poller.context.reap(&mut |_, _| panic!("twice")), 0);
        }
        poller.write(0, &[1; 4096]).expect("works afterwards");
    }
    drop(image);
    storage_harness::qemu_img(&["check", "-q", directory.path().join("disk.qcow2").to_str().expect("path")]);
}

#[test]
fn a_queued_worker_command_is_cancelled_before_it_runs() {
    let (storage, control) =
        FaultStorage::new(Arc::new(RamStorage::new(1 << 20).expect("RAM"))).expect("fault");
    control.set(vec![FaultRule::all(Fault::Hold { cancellable: true })]);
    let mut poller = Poller::new(&storage);
    let mut data = vec![0xAA; 512];
    let one = [segment(&mut data)];
    assert_eq!(poller.submit(1, Operation::Read, 0, 512, &one), Submission::Queued);
    assert!(control.wait_for(1, Duration::from_secs(60)));
    assert!(poller.context.cancel(1));
    assert_eq!(poller.finish(1), [(1, Err(StorageError::Cancelled))]);
    assert!(data.iter().all(|&byte| byte == 0xAA), "cancelled, so not touched");
}

#[test]
fn held_commands_touch_memory_only_when_released() {
    let ram = Arc::new(RamStorage::new(1 << 20).expect("RAM"));
    let (storage, control) = FaultStorage::new(ram).expect("fault");
    control.set(vec![
        FaultRule {
            range_bytes: 0..512,
            applies: |_| true,
            fault: Fault::Error(StorageError::Io(libc::EIO)),
        },
        FaultRule {
            range_bytes: 512..1024,
            applies: |operation| operation.changes_medium(),
            fault: Fault::Error(StorageError::NoSpace),
        },
        FaultRule {
            range_bytes: 4096..8192,
            applies: |operation| operation == Operation::Read,
            fault: Fault::Hold { cancellable: false },
        },
        FaultRule { range_bytes: 8192..8193, applies: |_| true, fault: Fault::Never },
    ]);
    let mut poller = Poller::new(&storage);
    assert_eq!(poller.read(0, 512), Err(StorageError::Io(libc::EIO)));
    assert_eq!(poller.write(512, &[1; 512]), Err(StorageError::NoSpace));
    assert_eq!(poller.read(512, 512), Ok(vec![0; 512]));
    let mut data = vec![0xAA; 512];
    let one = [segment(&mut data)];
    assert_eq!(poller.submit(1, Operation::Read, 4096, 512, &one), Submission::Queued);
    assert!(control.wait_for(1, Duration::from_secs(60)));
    assert!(poller.context.cancel(1), "heard by nobody");
    let mut never = vec![0xAA; 512];
    assert_eq!(poller.submit(2, Operation::Read, 8192, 512, &[segment(&mut never)]), Submission::Queued);
    assert!(control.wait_for(2, Duration::from_secs(60)));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(poller.context.reap(&mut |_, _| panic!("held")), 0);
    assert!(data.iter().all(|&byte| byte == 0xAA));
    control.release();
    assert_eq!(poller.finish(1), [(1, Ok(()))]);
    assert!(data.iter().all(|&byte| byte == 0));
    assert_eq!(poller.context.in_flight(), 1);
    let start = Instant::now();
    drop(poller);
    assert!(start.elapsed() < Duration::from_secs(60), "a context can go although a disk never answers");
    assert!(never.iter().all(|&byte| byte == 0xAA));
}

#[test]
fn a_dropped_context_leaves_nothing_in_flight() {
    let directory = directory();
    let storage = open(&file(directory.path(), "disk.img", 64 << 20), Direct::Auto);
    for _ in 0..20 {
        let mut poller = Poller::new(&storage);
        let mut memory = Memory::new(32 << 20, 0);
        for token in 0..32_u64 {
            let one = [segment(&mut memory.bytes()[(token as usize) << 20..][..1 << 20])];
            assert_eq!(poller.submit(token, Operation::Read, token << 20, 1 << 20, &one), Submission::Queued);
        }
        poller.context.submit_batch();
        drop(poller);
        // Freed and taken again by the next round: a late transfer would be seen by a sanitizer, and
        // here as a byte that isn't ours.
        memory.bytes().fill(0x11);
        std::thread::sleep(Duration::from_millis(1));
        assert!(memory.bytes().iter().all(|&byte| byte == 0x11));
    }
}

#[test]
fn a_sleeping_poller_wakes() {
    let directory = directory();
    let image = qcow2(directory.path(), "disk.qcow2", "1M");
    let (faulty, control) =
        FaultStorage::new(Arc::new(RamStorage::new(1 << 20).expect("RAM"))).expect("fault");
    control.set(vec![FaultRule::all(Fault::Delay(Duration::from_millis(3)))]);
    let storages: [Box<dyn Storage>; 3] = [
        Box::new(open(&file(directory.path(), "disk.img", 1 << 20), Direct::Auto)),
        Box::new(Qcow2Storage::open(&image, false).expect("qcow2")),
        Box::new(faulty),
    ];
    for storage in storages {
        let mut poller = Poller::new(&*storage);
        let mut memory = Memory::new(4096, 0);
        let segments = memory.segments(&[4096]);
        for round in 0..50 {
            let operation = if round % 2 == 0 { WRITE } else { Operation::Flush };
            let len = if round % 2 == 0 { 4096 } else { 0 };
            assert_eq!(
                poller.submit(7, operation, 0, len, &segments[..len as usize / 4096]),
                Submission::Queued
            );
            poller.context.submit_batch();
            let mut done = 0;
            while done == 0 {
                if poller.context.prepare_sleep() {
                    let fd = poller.context.wake_fd();
                    let mut fds =
                        [rustix::event::PollFd::from_borrowed_fd(fd.as_fd(), rustix::event::PollFlags::IN)];
                    let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                    let ready = rustix::event::poll(&mut fds, Some(&timeout)).expect("poll");
                    assert_eq!(ready, 1, "slept through a completion ({})", storage.kind());
                }
                poller.context.finish_sleep();
                done = poller.context.reap(&mut |_, result| result.expect("done"));
                poller.context.submit_batch();
            }
        }
    }
}

/// Two pollers write their own sectors of the same blocks at depth, aligned and not, then all is
/// compared. Sectors of one page belong to different pollers, so a lost read-modify-write shows.
#[test]
fn neighbours_do_not_lose_each_other_s_writes() {
    let directory = directory();
    let image = qcow2(directory.path(), "disk.qcow2", "2M");
    let threads = file(directory.path(), "threads.img", 2 << 20);
    let threads = FileStorage::open(&threads, false, Direct::On, FileEngine::Threads).expect("threads");
    let storages: [Box<dyn Storage>; 5] = [
        Box::new(threads),
        Box::new(open(&file(directory.path(), "direct.img", 2 << 20), Direct::On)),
        Box::new(open(&file(directory.path(), "buffered.img", 2 << 20), Direct::Off)),
        Box::new(Qcow2Storage::open(&image, false).expect("qcow2")),
        Box::new(RamStorage::new(2 << 20).expect("RAM")),
    ];
    /// Odd on purpose: two owners meet inside a sector, so even 512-byte devices need care.
    const OWNED: u64 = 256 * 3;
    for storage in &storages {
        std::thread::scope(|scope| {
            for owner in 0..2_u64 {
                scope.spawn(move || {
                    let mut poller = Poller::new(&**storage);
                    let mut memory = Memory::new(64 * OWNED as usize, 4 * owner as usize);
                    memory.bytes().fill(owner as u8 + 1);
                    let mut in_flight = 0;
                    let mut at = owner * OWNED;
                    let mut token = 0;
                    while at + OWNED <= 2 << 20 {
                        let slice = &mut memory.bytes()[(token % 64) * OWNED as usize..][..OWNED as usize];
                        match poller.submit(token as u64, WRITE, at, OWNED, &[segment(slice)]) {
                            Submission::Complete(result) => result.expect("write"),
                            Submission::Queued => in_flight += 1,
                            Submission::Busy => {
                                std::thread::yield_now();
                                poller.context.submit_batch();
                                in_flight -= poller.context.reap(&mut |_, result| result.expect("write"));
                                continue;
                            }
                        }
                        if in_flight >= 32 {
                            in_flight -= poller.finish(1).len();
                        }
                        at += 2 * OWNED;
                        token += 1;
                    }
                    poller.finish(in_flight);
                });
            }
        });
        let mut poller = Poller::new(&**storage);
        let all = poller.read(0, 2 << 20).expect("read");
        for (at, byte) in all.iter().enumerate().take((2 << 20) / OWNED as usize * OWNED as usize) {
            assert_eq!(u64::from(*byte), at as u64 / OWNED % 2 + 1, "byte {at} of {}", storage.kind());
        }
    }
}

/// In memory there is nothing to wait for; what can't be done at once is left to the ring.
#[test]
fn a_file_in_memory_is_transferred_at_once() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a file system in memory");
    // The last sector is partial.
    let path = file(directory.path(), "disk.img", (1 << 20) - 100);
    let storage = open(&path, Direct::Auto);
    let mut poller = Poller::new(&storage);
    let mut memory = Memory::new(16384, 1);
    memory.bytes().iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at % 251) as u8);
    let written = memory.bytes().to_vec();
    let segments = memory.segments(&[512, 8192, 7680]);
    let done = Submission::Complete(Ok(()));
    assert_eq!(poller.submit(1, WRITE, 5 * 512, 16384, &segments), done);
    memory.bytes().fill(0);
    assert_eq!(poller.submit(2, Operation::Read, 5 * 512, 16384, &segments), done);
    assert!(memory.bytes() == written);
    assert_eq!(poller.context.enters(), 0);
    assert!(std::fs::read(&path).expect("image")[5 * 512..][..16384] == written);
    // Durable writes, flushes and the end of the file take the way of all files.
    let one = [memory.segments(&[512])[0]];
    assert_eq!(poller.submit(3, Operation::Write { fua: true }, 0, 512, &one), Submission::Queued);
    assert_eq!(poller.submit(4, Operation::Flush, 0, 0, &[]), Submission::Queued);
    assert_eq!(poller.submit(5, Operation::Read, (1 << 20) - 512, 512, &one), Submission::Queued);
    assert!(poller.finish(3).iter().all(|(_, result)| *result == Ok(())));
    assert_eq!(memory.bytes()[412..512], [0; 100]);
    // Somebody cuts the file: the same error as with any other.
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("cut");
    assert_eq!(poller.run(Operation::Read, 8192, 512, &one), Err(StorageError::Io(libc::EIO)));
}
