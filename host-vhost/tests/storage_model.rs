//! Every storage against a vector of bytes: random operations, offsets, lengths and addresses.

mod storage_harness;

use std::sync::Arc;

use doorbell_vhost::storage::fault::FaultStorage;
use doorbell_vhost::storage::{
    Direct, FileEngine, FileStorage, Operation, Qcow2Storage, RamStorage, Storage, StorageError,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use storage_harness::{Memory, Poller, directory, file, qcow2, segment};

const SIZE: u64 = 4 << 20;

#[derive(Debug, Clone)]
struct Step {
    operation: Operation,
    offset: u64,
    len: u64,
    /// Of the memory, from a page.
    skew: usize,
    /// Lengths of segments.
    pieces: Vec<usize>,
    fill: u8,
    /// Compare only: this byte differs.
    differ: Option<u64>,
    /// Read only: this segment is a bit bucket.
    bucket: Option<usize>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop_oneof![
        4 => Just(Operation::Read),
        5 => any::<bool>().prop_map(|fua| Operation::Write { fua }),
        1 => Just(Operation::Flush),
        2 => any::<(bool, bool)>().prop_map(|(deallocate, fua)| Operation::WriteZeroes { deallocate, fua }),
        1 => Just(Operation::Deallocate),
        2 => Just(Operation::Compare),
        1 => Just(Operation::Verify),
    ];
    // Aligned to a page, a sector, or nothing; short or long.
    let range = (prop_oneof![2 => Just(4096_u64), 2 => Just(512), 1 => Just(1)], 0..SIZE, 0..200_000_u64)
        .prop_map(|(unit, offset, len)| {
            let offset = offset / unit * unit;
            (offset, (len / unit * unit).min(SIZE - offset))
        });
    let skew = prop_oneof![2 => Just(0_usize), 1 => Just(512), 1 => (0_usize..1024).prop_map(|at| at * 4)];
    let pieces = prop_oneof![
        2 => Just(vec![usize::MAX]),
        2 => Just(vec![4096]),
        1 => Just(vec![512, 4096]),
        1 => prop::collection::vec(600_usize..9000, 1..6),
    ];
    let step = (
        operation,
        range,
        skew,
        pieces,
        any::<u8>(),
        prop::option::of(0..200_000_u64),
        prop::option::of(0..8_usize),
    )
        .prop_map(|(operation, (offset, len), skew, pieces, fill, differ, bucket)| Step {
            operation,
            offset,
            len,
            skew,
            pieces,
            fill,
            differ,
            bucket,
        });
    prop::collection::vec(step, 1..40)
}

/// Bytes that tell where they belong.
fn pattern(fill: u8, offset: u64, len: u64) -> impl Iterator<Item = u8> {
    (offset..offset + len).map(move |at| fill ^ (at / 512) as u8 ^ (at as u8).rotate_left(3))
}

fn check(storage: &dyn Storage, poller: &mut Poller, model: &mut [u8], step: &Step) {
    let range = step.offset as usize..(step.offset + step.len) as usize;
    let mut memory = Memory::new(step.len as usize, step.skew);
    let segments = memory.segments(&step.pieces);
    match step.operation {
        Operation::Read => {
            let mut segments = segments;
            let mut skipped = 0..0;
            if let Some(at) = step.bucket.filter(|at| *at < segments.len()) {
                let start: usize = segments[..at].iter().map(|segment| segment.iov_len).sum();
                skipped = start..start + segments[at].iov_len;
                segments[at].iov_base = std::ptr::null_mut();
            }
            poller.run(step.operation, step.offset, step.len, &segments).expect("read");
            for (at, (found, wanted)) in memory.bytes().iter().zip(&model[range]).enumerate() {
                let wanted = if skipped.contains(&at) { 0xEE } else { *wanted };
                assert_eq!(*found, wanted, "byte {at} of {step:?}");
            }
        }
        Operation::Write { .. } => {
            for (to, from) in memory.bytes().iter_mut().zip(pattern(step.fill, step.offset, step.len)) {
                *to = from;
            }
            poller.run(step.operation, step.offset, step.len, &segments).expect("write");
            model[range].copy_from_slice(memory.bytes());
        }
        Operation::Compare => {
            memory.bytes().copy_from_slice(&model[range]);
            let differ = step.differ.filter(|at| *at < step.len);
            if let Some(at) = differ {
                memory.bytes()[at as usize] ^= 1;
            }
            let wanted = if differ.is_some() { Err(StorageError::Miscompare) } else { Ok(()) };
            assert_eq!(poller.run(step.operation, step.offset, step.len, &segments), wanted, "{step:?}");
        }
        Operation::WriteZeroes { .. } => {
            poller.run(step.operation, step.offset, step.len, &[]).expect("write zeroes");
            model[range].fill(0);
        }
        Operation::Deallocate => {
            poller.run(step.operation, step.offset, step.len, &[]).expect("deallocate");
            let found = poller.read(step.offset, step.len as usize).expect("read");
            for (found, wanted) in found.iter().zip(&mut model[range]) {
                let zero = *found == 0;
                assert!(zero || (*found == *wanted && !storage.deallocate_reads_zero()), "{step:?}");
                *wanted = *found;
            }
        }
        Operation::Flush | Operation::Verify => {
            poller.run(step.operation, step.offset, step.len, &[]).expect("no data");
        }
    }
}

fn follows_the_model(cases: u32, mut open: impl FnMut() -> Box<dyn Storage>) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let storage = open();
    let result = runner.run(&steps(), |steps| {
        let mut poller = Poller::new(&*storage);
        // What an earlier case left.
        let mut model = poller.read(0, SIZE as usize).expect("read all");
        for step in &steps {
            check(&*storage, &mut poller, &mut model, step);
        }
        let all = poller.read(0, SIZE as usize).expect("read all");
        assert!(all == model, "the whole medium");
        Ok(())
    });
    result.expect("model");
}

#[test]
fn ram_follows_the_model() {
    follows_the_model(64, || Box::new(RamStorage::new(SIZE).expect("RAM")));
}

#[test]
fn direct_file_follows_the_model() {
    let directory = directory();
    let path = file(directory.path(), "disk.img", SIZE);
    follows_the_model(64, || {
        Box::new(FileStorage::open(&path, false, Direct::On, FileEngine::Auto).expect("file"))
    });
}

#[test]
fn buffered_file_follows_the_model() {
    let directory = directory();
    let path = file(directory.path(), "disk.img", SIZE);
    follows_the_model(64, || {
        Box::new(FileStorage::open(&path, false, Direct::Off, FileEngine::Auto).expect("file"))
    });
}

#[test]
fn files_by_threads_follow_the_model() {
    let directory = directory();
    for direct in [Direct::On, Direct::Off] {
        let path = file(directory.path(), &format!("{direct:?}.img"), SIZE);
        follows_the_model(24, || {
            Box::new(FileStorage::open(&path, false, direct, FileEngine::Threads).expect("file"))
        });
    }
}

#[test]
fn file_without_zero_range_follows_the_model() {
    // tmpfs punches holes but knows no ZERO_RANGE.
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let path = file(directory.path(), "disk.img", SIZE);
    follows_the_model(24, || {
        Box::new(FileStorage::open(&path, false, Direct::Auto, FileEngine::Auto).expect("file"))
    });
}

#[test]
fn qcow2_follows_the_model() {
    let directory = directory();
    let path = qcow2(directory.path(), "disk.qcow2", "4M");
    follows_the_model(48, || Box::new(Qcow2Storage::open(&path, false).expect("qcow2")));
    storage_harness::qemu_img(&["check", "-q", path.to_str().expect("path")]);
}

#[test]
fn qcow2_over_a_backing_file_follows_the_model() {
    let directory = directory();
    let base = directory.path().join("base.img");
    std::fs::write(&base, pattern(7, 0, SIZE).collect::<Vec<_>>()).expect("base");
    let path = directory.path().join("top.qcow2");
    let (base, path) = (base.to_str().expect("path"), path.to_str().expect("path"));
    storage_harness::qemu_img(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path]);
    follows_the_model(24, || Box::new(Qcow2Storage::open(path.as_ref(), false).expect("qcow2")));
    storage_harness::qemu_img(&["check", "-q", path]);
}

#[test]
fn fault_without_rules_follows_the_model() {
    follows_the_model(16, || {
        let ram = Arc::new(RamStorage::new(SIZE).expect("RAM"));
        Box::new(FaultStorage::new(ram).expect("fault").0)
    });
}

#[test]
fn lists_of_512_segments_arrive_in_order() {
    let directory = directory();
    let direct = file(directory.path(), "direct.img", SIZE);
    let image = qcow2(directory.path(), "disk.qcow2", "4M");
    let storages: [Box<dyn Storage>; 3] = [
        Box::new(RamStorage::new(SIZE).expect("RAM")),
        Box::new(FileStorage::open(&direct, false, Direct::On, FileEngine::Auto).expect("file")),
        Box::new(Qcow2Storage::open(&image, false).expect("qcow2")),
    ];
    for storage in storages {
        let mut poller = Poller::new(&*storage);
        let len = 512 * 4096;
        let mut memory = Memory::new(len, 0);
        for (to, from) in memory.bytes().iter_mut().zip(pattern(1, 0, len as u64)) {
            *to = from;
        }
        let segments = memory.segments(&[4096]);
        assert_eq!(segments.len(), 512);
        poller.run(Operation::Write { fua: false }, 8192, len as u64, &segments).expect("write");
        assert!(poller.read(8192, len).expect("read") == memory.bytes());
        let backwards: Vec<_> = segments.iter().rev().copied().collect();
        poller.run(Operation::Read, 8192, len as u64, &backwards).expect("read");
        let pages: Vec<u8> = pattern(1, 0, len as u64).collect();
        for (found, wanted) in memory.bytes().chunks(4096).rev().zip(pages.chunks(4096)) {
            assert!(found == wanted, "{}", storage.kind());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let directory = directory();
    let path = file(directory.path(), "disk.img", SIZE);
    let storages: [Box<dyn Storage>; 3] = [
        Box::new(doorbell_vhost::storage::NullStorage::new(SIZE)),
        Box::new(RamStorage::new(SIZE).expect("RAM")),
        Box::new(FileStorage::open(&path, false, Direct::Auto, FileEngine::Auto).expect("file")),
    ];
    for storage in storages {
        let mut poller = Poller::new(&*storage);
        let mut data = vec![0; 4096];
        let one = [segment(&mut data)];
        for (offset, len) in [(SIZE, 4096), (SIZE - 512, 4096), (u64::MAX - 100, 4096), (u64::MAX, 1)] {
            for operation in [Operation::Read, Operation::Write { fua: false }, Operation::Verify] {
                assert_eq!(poller.run(operation, offset, len, &one), Err(StorageError::OutOfRange));
            }
        }
        for len in [0, 512, 8192] {
            assert_eq!(poller.run(Operation::Read, 0, len, &one), Err(StorageError::BadSegments));
        }
        let bucket = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4096 }];
        let write = Operation::Write { fua: false };
        assert_eq!(poller.run(write, 0, 4096, &bucket), Err(StorageError::BadSegments));
        assert_eq!(poller.run(Operation::Read, 0, 4096, &bucket), Ok(()));
        assert_eq!(poller.run(Operation::Read, SIZE, 0, &[]), Ok(()));
    }
}
