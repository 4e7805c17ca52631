//! What silence costs: the first command after it, and the poller's processor during it.

use std::time::{Duration, Instant};

/// How long a silence lasts.
pub(super) const SILENCE: Duration = Duration::from_millis(100);
/// Silences that are measured.
const ROUNDS: usize = 15;

/// What was found for one way to ring doorbells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Median time of the first command.
    pub(super) first_command: Duration,
    /// The poller's share of a processor from 50 ms after the last command on.
    pub(super) poller_share: f64,
}

/// Is silent and then runs `command`, several times.
pub(super) fn measure<E>(mut command: impl FnMut() -> Result<(), E>) -> Result<Silence, E> {
    let mut times = Vec::with_capacity(ROUNDS);
    let (mut busy, mut silent) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        command()?;
        std::thread::sleep(SILENCE / 2);
        let (cpu, start) = (poller_cpu_time(), Instant::now());
        std::thread::sleep(SILENCE / 2);
        busy += poller_cpu_time().saturating_sub(cpu);
        silent += start.elapsed();
        let start = Instant::now();
        command()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(Silence { first_command: times[ROUNDS / 2], poller_share: busy.as_secs_f64() / silent.as_secs_f64() })
}

/// The processor time of this process's poller threads, as far as the kernel tells.
fn poller_cpu_time() -> Duration {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let of_poller = |path: std::path::PathBuf| {
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let schedstat = std::fs::read_to_string(path.join("schedstat")).ok()?;
        let on_cpu_ns: u64 = schedstat.split(' ').next()?.parse().ok()?;
        name.starts_with("poller").then_some(Duration::from_nanos(on_cpu_ns))
    };
    tasks.flatten().filter_map(|task| of_poller(task.path())).sum()
}
