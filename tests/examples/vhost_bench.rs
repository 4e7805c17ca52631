//! Our vhost-user-blk backend beside QEMU's: `cargo xtask bench vhost`.
//!
//! One client, the driver of the crate `blkio`, polls one queue of one server at a time. Each round runs every server
//! once, in turn, so that what else the machine does meets all alike; the table shows medians over the rounds. The
//! client has one processor and the server another.
//!
//! | server | storage |
//! | --- | --- |
//! | QEMU | `qemu-storage-daemon`, a raw image in memory (tmpfs) by io_uring |
//! | file | `doorbell serve --vhost-user`, the same image by io_uring |
//! | RAM | `doorbell serve --vhost-user --ram` |

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use doorbell_tests::backend::Backend;
use doorbell_tests::blkio::{Client, Operation};
use doorbell_vhost::cpus::{self, CpuList};
use rustix::thread::{CpuSet, sched_setaffinity};

const DISK_BYTES: u64 = 256 << 20;
/// Unless the command line says otherwise: `vhost_bench ROUNDS MILLISECONDS`, the latter for one load.
const ROUNDS: u32 = 7;
const RUN_MS: u64 = 500;

/// Length of a request and how many are in flight.
const LOADS: [(usize, usize); 4] = [(4 << 10, 1), (4 << 10, 16), (4 << 10, 64), (1 << 20, 4)];
const OPERATIONS: [Operation; 2] = [Operation::Read, Operation::Write];
const SERVERS: [&str; 3] = ["QEMU", "file", "RAM"];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments.next().map_or(Ok(ROUNDS), |text| text.parse())?;
    let run = Duration::from_millis(arguments.next().map_or(Ok(RUN_MS), |text| text.parse())?);
    let CpuList(allowed) = cpus::allowed()?;
    let folder = tempfile::Builder::new().prefix("doorbell.").tempdir_in("/dev/shm")?;
    let image = folder.path().join("disk.img");
    fill(&image)?;
    let mut figures = Figures::default();
    for round in 0..rounds as usize {
        for server in 0..SERVERS.len() {
            // Each round begins with another one.
            let server = (server + round) % SERVERS.len();
            let backend = start(server, &image, &allowed)?;
            touch(backend.socket())?;
            for (row, (len, depth)) in LOADS.into_iter().enumerate() {
                for (column, operation) in OPERATIONS.into_iter().enumerate() {
                    let mut client = Client::connect(backend.socket(), depth, len)?;
                    client.measure(operation, depth, len, run / 10)?;
                    figures.add(row, column, server, client.measure(operation, depth, len, run)?);
                }
            }
            figures.idle[server].push(idle(&backend)?);
            backend.stop()?;
        }
    }
    figures.print();
    Ok(())
}

/// An image whose every page is there.
fn fill(path: &Path) -> Result<()> {
    let piece = vec![0xA5_u8; 1 << 20];
    let mut file = std::fs::File::create(path)?;
    for _ in 0..DISK_BYTES >> 20 {
        std::io::Write::write_all(&mut file, &piece)?;
    }
    Ok(())
}

/// Writes all of a disk, so that its memory is there.
fn touch(socket: &Path) -> Result<()> {
    let mut client = Client::connect(socket, 1, 1 << 20)?;
    (0..DISK_BYTES >> 20).try_for_each(|at| client.run(Operation::Write, at << 20, 1 << 20))
}

/// Starts a server on the second processor that this process may use; the client goes on on the first.
fn start(server: usize, image: &Path, allowed: &[usize]) -> Result<Backend> {
    let [first, second, ..] = allowed[..] else { bail!("two processors are needed") };
    run_on(second)?;
    let backend = start_here(server, image);
    run_on(first)?;
    backend
}

fn run_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn start_here(server: usize, image: &Path) -> Result<Backend> {
    let image_text = image.to_str().context("a path in UTF-8")?;
    let size = format!("{DISK_BYTES}");
    match SERVERS[server] {
        "QEMU" => Backend::storage_daemon(image),
        "file" => Backend::doorbell(&["--file", image_text, "--queues", "1"]),
        _ => Backend::doorbell(&["--ram", &size, "--queues", "1"]),
    }
}

/// The share of a processor that a server with an idle client uses.
fn idle(backend: &Backend) -> Result<f64> {
    let mut client = Client::connect(backend.socket(), 1, 4096)?;
    client.run(Operation::Read, 0, 4096)?;
    std::thread::sleep(Duration::from_millis(100));
    let before = backend.cpu_time()?;
    std::thread::sleep(Duration::from_millis(500));
    Ok((backend.cpu_time()? - before).as_secs_f64() / 0.5)
}

/// What was measured: by load, operation and server a figure for each round.
#[derive(Debug, Default)]
struct Figures {
    rates: [[[Vec<f64>; SERVERS.len()]; OPERATIONS.len()]; LOADS.len()],
    idle: [Vec<f64>; SERVERS.len()],
}

impl Figures {
    fn add(&mut self, row: usize, column: usize, server: usize, rate: f64) {
        self.rates[row][column][server].push(rate);
    }

    fn print(&self) {
        println!(
            "| {:<5} | {:<5} | {:<5} | {:>11} | {:>10} | {:>10} | {:>9} | {:>9} |",
            "", "bytes", "depth", "QEMU, file", "ours, file", "ours, RAM", "file/QEMU", "RAM/QEMU"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for (loads, (len, depth)) in self.rates.iter().zip(LOADS) {
            for (servers, operation) in loads.iter().zip(OPERATIONS) {
                let [qemu, file, ram] = servers.each_ref().map(|rates| median(rates));
                println!(
                    "| {:<5} | {:>5} | {depth:>5} | {qemu:>11.0} | {file:>10.0} | {ram:>10.0} | {:>9.2} | {:>9.2} |",
                    format!("{operation:?}").to_lowercase(),
                    if len >= 1 << 20 { "1M" } else { "4K" },
                    file / qemu,
                    ram / qemu,
                );
            }
        }
        let [qemu, file, ram] = self.idle.each_ref().map(|shares| 100.0 * median(shares));
        println!("idle, % of a processor: QEMU {qemu:.2}, file {file:.2}, RAM {ram:.2}");
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
