//! The demo's course.

use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cpus::Cpus;
use super::load::{Job, LoadError, Outcome, Pointer, Random, run as run_load};
use super::silence::{self, Silence};
use super::tables::{
    DEPTHS, MethodRow, NULL_DEPTHS, SizeRow, print_methods, print_null, print_silences, print_sizes,
};
use crate::client::memory::ClientMemory;
use crate::client::nvme::{DoorbellMode as Method, DriverError, Nvme};
use crate::client::queue::{DataPointer, DriverCommand, QueuePair, ShadowRule};
use crate::client::{Client, ClientError};
use crate::device::{DeviceConfig, DoorbellMode, ServeError, Server};
use crate::engine::{Hosting, HostingError};
use crate::namespace_spec::NamespaceSpec;
use crate::storage::StorageConfig;

/// Bytes of the RAM namespace: more than caches hold.
pub(super) const NAMESPACE_BYTES: u64 = 256 << 20;
/// Bytes of the driver's memory.
const MEMORY_BYTES: u64 = 192 << 20;
/// Where the driver's memory is in guest addresses.
const MEMORY_IOVA: u64 = 0x1_0000_0000;
/// Entries of a queue.
pub(super) const QUEUE_ENTRIES: u32 = 256;
const READ: u8 = 2;
const WRITE: u8 = 1;
const BLOCK_BYTES: u32 = 512;

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The server.
    #[error("the server: {0}")]
    Serve(#[from] ServeError),
    /// The sandbox.
    #[error(transparent)]
    Hosting(#[from] HostingError),
    /// The driver.
    #[error("the driver: {0}")]
    Driver(#[from] DriverError),
    /// The driver's connection.
    #[error("the driver: {0}")]
    Client(#[from] ClientError),
    /// A measurement.
    #[error("{what}: {why}")]
    Load {
        /// Which.
        what: String,
        /// Why.
        why: String,
    },
    /// What was read isn't what was written.
    #[error("verification failed: block {block} read back differently ({pointer})")]
    Differs {
        /// The block.
        block: u64,
        /// PRP or SGL.
        pointer: &'static str,
    },
    /// No folder, no memory.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// A driver attached to a server of its own.
pub(super) struct Bench {
    pub(super) nvme: Nvme,
    buffers: u64,
    server: Server,
}

impl Bench {
    pub(super) fn start(
        cpus: &Cpus,
        socket: &Path,
        doorbells: DoorbellMode,
        storage: StorageConfig,
        hosting: Hosting,
    ) -> Result<Self, DemoError> {
        let mut config = DeviceConfig::new(socket.to_owned(), vec![NamespaceSpec::new(storage)]);
        config.doorbells = doorbells;
        config.hosting = hosting;
        config.cpus = cpus.poller().into_iter().collect();
        // The server's other threads inherit where this one may run.
        cpus.run_anywhere();
        let server = Server::start(config)?;
        cpus.run_on_first();
        let memory = ClientMemory::new(MEMORY_IOVA, MEMORY_BYTES, false)
            .map_err(|errno| DemoError::System { what: "make the driver's memory", source: errno.into() })?;
        let mut nvme = Nvme::new(Client::connect(socket)?, memory)?;
        let buffers = MEMORY_IOVA + nvme.allocate(128 << 20)?;
        Ok(Self { nvme, buffers, server })
    }

    pub(super) fn measure(&self, queue: &mut QueuePair, what: &str, job: &Job) -> Result<Outcome, DemoError> {
        let load = |why: LoadError| DemoError::Load { what: what.to_owned(), why: why.to_string() };
        run_load(queue, self.buffers, job).map_err(load)
    }
}

/// 4 KiB reads at depth 1; the tables vary it.
pub(super) const JOB: Job = Job {
    opcode: READ,
    pointer: Pointer::Prp,
    len_bytes: 4096,
    block_bytes: BLOCK_BYTES,
    span_bytes: NAMESPACE_BYTES,
    depth: 1,
    duration: Duration::ZERO,
};

/// Runs the demo in a temporary folder and prints what it finds; `seconds` is about how long the measurements
/// may take in all.
///
/// # Errors
/// See [`DemoError`].
pub fn run(seconds: f64) -> Result<(), DemoError> {
    in_folder(|folder| run_in(folder, seconds))
}

/// Does `work` in a temporary folder.
pub(super) fn in_folder(work: impl FnOnce(&Path) -> Result<(), DemoError>) -> Result<(), DemoError> {
    let folder = std::env::temp_dir().join(format!("doorbell-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .map_err(|source| DemoError::System { what: "make a temporary folder", source })?;
    let outcome = work(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn run_in(folder: &Path, seconds: f64) -> Result<(), DemoError> {
    // 32 cells of the first table, 5 of the second, 6 of the third, and two copies for each size.
    let cell = Duration::from_secs_f64((seconds / 49.0).max(0.01));
    let mut rows = Vec::new();
    let cpus = Cpus::new();

    let socket = folder.join("shadow.sock");
    let ram = StorageConfig::Ram { size_bytes: NAMESPACE_BYTES };
    let mut bench = Bench::start(&cpus, &socket, DoorbellMode::Shadow, ram.clone(), Hosting::Native)?;
    introduce(&mut bench, &socket)?;
    let mut queue = bench.nvme.create_queue_pair(QUEUE_ENTRIES, 128, Method::Message, false)?;
    verify(&bench, &mut queue)?;
    let mut silences = Vec::new();
    rows.push(measure_method(&bench, &mut queue, "register, by message", cell)?);
    bench.nvme.enable_shadow()?;
    let method = Method::Shadow(ShadowRule::Linux);
    let mut queue = bench.nvme.create_queue_pair(QUEUE_ENTRIES, 128, method, false)?;
    rows.push(measure_method(&bench, &mut queue, "shadow doorbells", cell)?);
    silences.push(("shadow doorbells", measure_silence(&bench, &mut queue)?));
    let method = Method::ShadowEventFd(ShadowRule::Linux);
    let mut queue = bench.nvme.create_queue_pair(QUEUE_ENTRIES, 128, method, false)?;
    rows.push(measure_method(&bench, &mut queue, "shadow doorbells with ioeventfd", cell)?);
    silences.push(("shadow doorbells with ioeventfd", measure_silence(&bench, &mut queue)?));
    drop((queue, bench));

    let socket = folder.join("mapped.sock");
    let mut bench = Bench::start(&cpus, &socket, DoorbellMode::Mapped, ram, Hosting::Native)?;
    let mut queue = bench.nvme.create_queue_pair(QUEUE_ENTRIES, 128, Method::Mapped, false)?;
    // Memory that was never written isn't there, and reads of it cost nothing.
    verify(&bench, &mut queue)?;
    rows.insert(1, measure_method(&bench, &mut queue, "register, mapped", cell)?);
    silences.insert(0, ("register, mapped", measure_silence(&bench, &mut queue)?));
    print_methods(&rows);
    print_silences(&silences);
    print_null(&measure_null(&cpus, folder, cell)?);

    let mut sizes = Vec::new();
    for len_bytes in [128 << 10, 512 << 10, 1 << 20] {
        progress(&format!("large reads of {} KiB", len_bytes >> 10));
        let mut time = |pointer| -> Result<Duration, DemoError> {
            let job = Job { pointer, len_bytes, duration: cell, ..JOB };
            let outcome = bench.measure(&mut queue, "large reads", &job)?;
            Ok(outcome.elapsed.div_f64(outcome.commands.max(1) as f64))
        };
        let (prp, sgl) = (time(Pointer::Prp)?, time(Pointer::Sgl)?);
        let memcpy = measure_copies(len_bytes as usize, len_bytes as usize, cell);
        let memcpy_pages = measure_copies(len_bytes as usize, 4096, cell);
        sizes.push(SizeRow { len_bytes, prp, sgl, memcpy, memcpy_pages });
    }
    print_sizes(&sizes);
    println!("\nTo attach a VM, serve a disk:\n  doorbell serve --socket /tmp/nvme.sock --ram 1G");
    println!(
        "and start QEMU 10.1 or newer with\n  {}",
        bench.server.attach_line().replace(&socket.display().to_string(), "/tmp/nvme.sock",)
    );
    Ok(())
}

fn introduce(bench: &mut Bench, socket: &Path) -> Result<(), DemoError> {
    println!("Serving {} MiB of RAM on {} (vfio-user).", NAMESPACE_BYTES >> 20, socket.display());
    let version = bench.nvme.version()?;
    let identity = bench.nvme.identify()?;
    println!(
        "A driver attached to the socket finds \"{}\", serial {}, NVMe {}.{}, up to {} KiB a command, SGLs: {}.",
        identity.model,
        identity.serial,
        version >> 16,
        version >> 8 & 0xff,
        identity.max_transfer_bytes >> 10,
        if identity.sgl { "yes" } else { "no" }
    );
    println!("Namespace 1: {} blocks of {} bytes.", identity.blocks, identity.block_bytes);
    Ok(())
}

/// Writes a pattern over the whole namespace, reads it back into other memory, by PRP and by SGL, and compares every byte.
pub(super) fn verify(bench: &Bench, queue: &mut QueuePair) -> Result<(), DemoError> {
    const PIECE: u32 = 128 << 10;
    const PIECES: u64 = NAMESPACE_BYTES / PIECE as u64;
    progress("writing and verifying the whole namespace");
    let memory = bench.nvme.memory();
    let (source, target) = (bench.buffers, bench.buffers + u64::from(PIECE));
    let mut expected = vec![0; PIECE as usize];
    let mut found = vec![0; PIECE as usize];
    for (name, is_sgl) in [("PRP", false), ("SGL", true)] {
        let pointer = |iova| match is_sgl {
            false => DataPointer::Prp { iova, len_bytes: PIECE },
            true => DataPointer::Sgl { iova, len_bytes: PIECE },
        };
        let blocks = PIECE / BLOCK_BYTES;
        let pattern = |piece: u64, bytes: &mut [u8]| {
            let mut random = Random((piece << 1 | u64::from(is_sgl)).wrapping_add(0x1234_5678_9abc_def1));
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
            }
        };
        for piece in 0..PIECES {
            pattern(piece, &mut expected);
            memory.write(source - MEMORY_IOVA, &expected);
            let slba = piece * u64::from(blocks);
            one(queue, &DriverCommand::transfer(WRITE, 1, slba, blocks, pointer(source)))?;
        }
        for piece in 0..PIECES {
            let slba = piece * u64::from(blocks);
            one(queue, &DriverCommand::transfer(READ, 1, slba, blocks, pointer(target)))?;
            memory.read(target - MEMORY_IOVA, &mut found);
            pattern(piece, &mut expected);
            if let Some(place) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
                let block = slba + place as u64 / u64::from(BLOCK_BYTES);
                return Err(DemoError::Differs { block, pointer: name });
            }
        }
    }
    println!("\rWrote the whole namespace and read it back byte for byte, by PRP and by SGL.");
    Ok(())
}

/// One command to its end.
fn one(queue: &mut QueuePair, command: &DriverCommand) -> Result<(), DemoError> {
    let failed = |why: String| DemoError::Load { what: "verified I/O".into(), why };
    if queue.submit(command).is_none() {
        return Err(failed("the queue is full".into()));
    }
    queue.ring().map_err(|lost| failed(lost.to_string()))?;
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut status = None;
    while status.is_none() {
        queue.poll(1, &mut |entry| status = Some(entry.status)).map_err(|lost| failed(lost.to_string()))?;
        if Instant::now() > deadline {
            return Err(failed("no completion for five seconds".into()));
        }
    }
    match status {
        Some(status) if !status.is_success() => Err(failed(format!("{status:?}"))),
        _ => Ok(()),
    }
}

fn measure_method(
    bench: &Bench,
    queue: &mut QueuePair,
    name: &'static str,
    cell: Duration,
) -> Result<MethodRow, DemoError> {
    let mut rates = [Vec::new(), Vec::new()];
    let (mut commands, mut register_writes) = (0, 0);
    for (opcode, rates) in [READ, WRITE].into_iter().zip(&mut rates) {
        for depth in DEPTHS {
            progress(&format!(
                "{name}: {} at depth {depth}",
                if opcode == READ { "reads" } else { "writes" }
            ));
            let outcome = bench.measure(queue, name, &Job { opcode, depth, duration: cell, ..JOB })?;
            rates.push(outcome.rate());
            commands += outcome.commands;
            register_writes += outcome.register_writes;
        }
    }
    let [reads, writes] = rates;
    let register_writes = register_writes as f64 * 1000.0 / commands.max(1) as f64;
    Ok(MethodRow { name, reads, writes, register_writes })
}

/// The protocol alone: a namespace that moves no data, polled on both sides.
fn measure_null(cpus: &Cpus, folder: &Path, cell: Duration) -> Result<Vec<f64>, DemoError> {
    let null = StorageConfig::Null { size_bytes: NAMESPACE_BYTES };
    let mut bench =
        Bench::start(cpus, &folder.join("null.sock"), DoorbellMode::Mapped, null, Hosting::Native)?;
    let mut queue = bench.nvme.create_queue_pair(QUEUE_ENTRIES, 128, Method::Mapped, false)?;
    let mut rates = Vec::new();
    for depth in NULL_DEPTHS {
        progress(&format!("no data, mapped doorbells: depth {depth}"));
        let job = Job { depth, duration: cell, ..JOB };
        rates.push(bench.measure(&mut queue, "no data", &job)?.rate());
    }
    Ok(rates)
}

/// One 4 KiB read after each silence.
fn measure_silence(bench: &Bench, queue: &mut QueuePair) -> Result<Silence, DemoError> {
    progress("the first command after a silence");
    let data = DataPointer::Prp { iova: bench.buffers, len_bytes: 4096 };
    silence::measure(|| one(queue, &DriverCommand::transfer(READ, 1, 0, 4096 / BLOCK_BYTES, data)))
}

/// What the machine itself needs to copy `len_bytes` out of a large memory, in pieces of `piece_bytes` that
/// lie apart.
fn measure_copies(len_bytes: usize, piece_bytes: usize, duration: Duration) -> Duration {
    let source = vec![1u8; NAMESPACE_BYTES as usize];
    let mut target = vec![0u8; len_bytes];
    let pieces = (source.len() / piece_bytes) as u64;
    let mut random = Random(42);
    let start = Instant::now();
    let mut copies = 0u32;
    while copies == 0 || start.elapsed() < duration {
        for piece in target.chunks_exact_mut(piece_bytes) {
            let from = random.below(pieces) as usize * piece_bytes;
            piece.copy_from_slice(black_box(&source[from..from + piece_bytes]));
        }
        black_box(&target);
        copies += 1;
    }
    start.elapsed() / copies
}

pub(super) fn progress(what: &str) {
    print!("\r{what:<70}\r");
    let _ = std::io::stdout().flush();
}
