//! What a command costs on each storage: `cargo bench --bench storage`.
//!
//! Files are made below `target/`, so the figures of files are those of the disk it is on; set
//! `DOORBELL_BENCH_DIR` to measure another place, such as `/dev/shm` (without direct I/O).

#![expect(unsafe_code, reason = "stands in for guest memory")]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use doorbell_vhost::storage::{
    Direct, FileEngine, FileStorage, IoContext, IoContextConfig, NullStorage, Operation, Qcow2Storage,
    RamStorage, Storage, StorageCommand, Submission,
};

const WRITE: Operation = Operation::Write { fua: false };
const BATCH: usize = 16;

/// Guest memory that stays in cache, as that of a busy driver does.
fn guest() -> &'static mut [u8] {
    let bytes = Box::leak(vec![0x5A_u8; (4 << 20) + 4096].into_boxed_slice());
    let start = bytes.as_ptr().align_offset(4096);
    &mut bytes[start..start + (4 << 20)]
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn memory(criterion: &mut Criterion) {
    let mut context = IoContext::new(IoContextConfig::default()).expect("context");
    let guest = guest();
    let null = NullStorage::new(1 << 40);
    let ram = RamStorage::new(1 << 30).expect("RAM");
    eprintln!("RAM storage: {}", ram.backing());
    let mut group = criterion.benchmark_group("memory");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    {
        // Touch every page.
        let mut queue = ram.open_queue(&mut context).expect("queue");
        for at in 0..1024 {
            let one = [libc::iovec { iov_base: guest.as_mut_ptr().cast(), iov_len: 1 << 20 }];
            // SAFETY: leaked memory.
            let command = unsafe { StorageCommand::new(0, WRITE, at << 20, 1 << 20, &one) };
            assert_eq!(queue.submit(&mut context, &command), Submission::Complete(Ok(())));
        }
    }
    let cases: [(&str, &dyn Storage, Operation, bool); 4] = [
        ("null read", &null, Operation::Read, false),
        ("ram read", &ram, Operation::Read, false),
        ("ram read with prefetch", &ram, Operation::Read, true),
        ("ram write", &ram, WRITE, false),
    ];
    for (name, storage, operation, prefetch) in cases {
        for len in [4096_usize, 131_072] {
            let mut queue = storage.open_queue(&mut context).expect("queue");
            let mut random = Random(88_172_645_463_325_252);
            let blocks = (1 << 30) / len as u64;
            group.throughput(Throughput::Bytes((len * BATCH) as u64));
            group.bench_function(BenchmarkId::new(name, len), |bencher| {
                bencher.iter(|| {
                    let offsets: [u64; BATCH] = std::array::from_fn(|_| random.below(blocks) * len as u64);
                    for (at, offset) in offsets.iter().enumerate() {
                        if prefetch && at + 1 < BATCH {
                            queue.prefetch(offsets[at + 1], len as u64);
                        }
                        let base = guest.as_mut_ptr().wrapping_add(at * len);
                        let one = [libc::iovec { iov_base: base.cast(), iov_len: len }];
                        // SAFETY: leaked memory.
                        let command = unsafe { StorageCommand::new(0, operation, *offset, len as u64, &one) };
                        let _ = black_box(queue.submit(&mut context, &command));
                    }
                });
            });
        }
    }
}

const FILE_BYTES: u64 = 1 << 30;

fn files(criterion: &mut Criterion) {
    let place = std::env::var("DOORBELL_BENCH_DIR").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
    let directory = tempfile::tempdir_in(place).expect("directory");
    let path = directory.path().join("disk.img");
    written(&path);
    let image = qcow2(directory.path());
    let mut group = criterion.benchmark_group("files");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500)).sample_size(10);
    let open = |direct, engine| FileStorage::open(&path, false, direct, engine).expect("file");
    for depth in [1, 16, 64] {
        for (name, direct, engine) in [
            ("direct where it can be", Direct::Auto, FileEngine::Auto),
            ("cached", Direct::Off, FileEngine::Auto),
            ("cached, threads", Direct::Off, FileEngine::Threads),
        ] {
            for (what, operation) in [("read", Operation::Read), ("write", WRITE)] {
                let storage = open(direct, engine);
                group.bench_function(BenchmarkId::new(format!("{name} {what}"), depth), |bencher| {
                    bencher.iter_custom(|count| at_depth(&storage, operation, depth, count, FILE_BYTES));
                });
            }
        }
        for (what, operation) in [("read", Operation::Read), ("overwrite", WRITE)] {
            let storage = Qcow2Storage::open(&image, false).expect("qcow2");
            group.bench_function(BenchmarkId::new(format!("qcow2 {what}"), depth), |bencher| {
                bencher.iter_custom(|count| at_depth(&storage, operation, depth, count, FILE_BYTES));
            });
        }
        group.bench_function(BenchmarkId::new("qcow2 allocating write", depth), |bencher| {
            bencher.iter_custom(|count| {
                let path = directory.path().join("new.qcow2");
                qemu_img(&["create", "-q", "-f", "qcow2", path.to_str().expect("path"), "64G"]);
                let storage = Qcow2Storage::open(&path, false).expect("qcow2");
                at_depth(&storage, WRITE, depth, count, 64 << 30)
            });
        });
    }
}

/// Random 4 KiB commands, `depth` of them in flight.
fn at_depth(storage: &dyn Storage, operation: Operation, depth: u64, count: u64, size: u64) -> Duration {
    let guest = guest_once();
    let mut context = IoContext::new(IoContextConfig::default()).expect("context");
    let mut queue = storage.open_queue(&mut context).expect("queue");
    let mut random = Random(88_172_645_463_325_252);
    let (mut started, mut done) = (0, 0);
    let start = Instant::now();
    while done < count {
        while started < count && started - done < depth {
            let offset = random.below(size / 4096) * 4096;
            let base = (guest as *mut u8).wrapping_add((started % depth * 4096) as usize);
            let one = [libc::iovec { iov_base: base.cast(), iov_len: 4096 }];
            // SAFETY: leaked memory.
            let command = unsafe { StorageCommand::new(started, operation, offset, 4096, &one) };
            match queue.submit(&mut context, &command) {
                Submission::Complete(result) => {
                    result.expect("done");
                    done += 1;
                }
                Submission::Queued => {}
                Submission::Busy => break,
            }
            started += 1;
        }
        context.submit_batch();
        done += context.reap(&mut |_, result| result.expect("done")) as u64;
    }
    start.elapsed()
}

fn guest_once() -> usize {
    use std::sync::OnceLock;
    static GUEST: OnceLock<usize> = OnceLock::new();
    *GUEST.get_or_init(|| guest().as_mut_ptr() as usize)
}

fn written(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("image");
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&[0x5A; 1 << 20]).expect("write");
    }
    file.sync_all().expect("sync");
}

fn qcow2(directory: &Path) -> PathBuf {
    let (raw, path) = (directory.join("disk.img"), directory.join("disk.qcow2"));
    let (raw, text) = (raw.to_str().expect("path"), path.to_str().expect("path"));
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", raw, text]);
    path
}

fn qemu_img(arguments: &[&str]) {
    let status = Command::new("qemu-img").args(arguments).status().expect("qemu-img (package qemu-utils)");
    assert!(status.success());
}

criterion_group!(benches, memory, files);
criterion_main!(benches);
