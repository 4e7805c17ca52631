//! The same device twice, with its controller and queues in this process and in a sandbox, side by side.

use std::path::Path;
use std::time::Duration;

use super::cpus::Cpus;
use super::load::Job;
use super::session::{Bench, DemoError, JOB, NAMESPACE_BYTES, QUEUE_ENTRIES, in_folder, progress, verify};
use crate::client::nvme::DoorbellMode as Method;
use crate::client::queue::QueuePair;
use crate::device::DoorbellMode;
use crate::engine::Hosting;
use crate::storage::StorageConfig;

/// Rounds, in which the two take turns; what counts is the median.
const ROUNDS: usize = 7;

/// Bytes and depths that are measured.
const CASES: [(u32, u32); 5] = [(4096, 1), (4096, 4), (4096, 16), (4096, 64), (128 << 10, 4)];

/// Verifies a sandboxed device and prints how fast it is beside a native one. `seconds` is about how long the
/// measurements may take in all.
///
/// # Errors
/// See [`DemoError`].
pub fn run_sandbox(module: &Path, seconds: f64) -> Result<(), DemoError> {
    in_folder(|folder| {
        let cell = Duration::from_secs_f64((seconds / (2 * ROUNDS * CASES.len()) as f64).max(0.01));
        let cpus = Cpus::new();
        let mut native = Side::start(&cpus, &folder.join("native.sock"), Hosting::Native)?;
        let mut sandboxed =
            Side::start(&cpus, &folder.join("sandboxed.sock"), Hosting::sandbox(module.to_owned())?)?;
        println!("A device whose controller and queues run in {}:", module.display());
        verify(&sandboxed.bench, &mut sandboxed.queue)?;
        // Memory that was never written isn't there, and reads of it cost nothing.
        verify(&native.bench, &mut native.queue)?;
        println!("\nRandom reads of RAM, mapped doorbells, medians of {ROUNDS} rounds in turn:");
        println!("{:26}{:>14}{:>14}{:>14}", "", "native", "sandboxed", "ratio");
        for (len_bytes, depth) in CASES {
            let what = format!("{} KiB at depth {depth}", len_bytes >> 10);
            progress(&what);
            let job = Job { len_bytes, depth, duration: cell, ..JOB };
            let mut rates = [Vec::new(), Vec::new()];
            let mut ratios = Vec::new();
            for _ in 0..ROUNDS {
                let pair = [native.rate(&what, &job)?, sandboxed.rate(&what, &job)?];
                ratios.push(pair[1] / pair[0]);
                for (rates, rate) in rates.iter_mut().zip(pair) {
                    rates.push(rate);
                }
            }
            let [native, sandboxed] = rates.map(median);
            let per_second = |rate: f64| format!("{:.0} k/s", rate / 1e3);
            println!(
                "{what:26}{:>14}{:>14}{:>14}",
                per_second(native),
                per_second(sandboxed),
                format!("{:.1} %", median(ratios) * 100.0)
            );
        }
        Ok(())
    })
}

struct Side {
    bench: Bench,
    queue: QueuePair,
}

impl Side {
    fn start(cpus: &Cpus, socket: &Path, hosting: Hosting) -> Result<Self, DemoError> {
        let ram = StorageConfig::Ram { size_bytes: NAMESPACE_BYTES };
        let mut bench = Bench::start(cpus, socket, DoorbellMode::Mapped, ram, hosting)?;
        let queue = bench.nvme.create_queue_pair(QUEUE_ENTRIES, 128, Method::Mapped, false)?;
        Ok(Self { bench, queue })
    }

    fn rate(&mut self, what: &str, job: &Job) -> Result<f64, DemoError> {
        Ok(self.bench.measure(&mut self.queue, what, job)?.rate())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
