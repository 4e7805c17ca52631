//! A load generator: keeps a number of commands in flight on one queue pair, without an allocation or a system
//! call of its own.

use std::time::{Duration, Instant};

use crate::client::queue::{DataPointer, DriverCommand, QueuePair};
use crate::vfio_user::connection::Lost;
use doorbell_core::spec::status::Status;

/// How data is described to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointer {
    Prp,
    Sgl,
}

/// What to do over and over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// Read (02h) or Write (01h).
    pub(super) opcode: u8,
    pub(super) pointer: Pointer,
    pub(super) len_bytes: u32,
    pub(super) block_bytes: u32,
    /// Bytes of the namespace to choose from at random.
    pub(super) span_bytes: u64,
    /// Commands in flight.
    pub(super) depth: u32,
    pub(super) duration: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) commands: u64,
    pub(super) elapsed: Duration,
    /// Register writes, of whichever kind, for tail and head.
    pub(super) register_writes: u64,
}

impl Outcome {
    /// Commands a second.
    pub(super) fn rate(&self) -> f64 {
        self.commands as f64 / self.elapsed.as_secs_f64()
    }
}

/// Why a load ended early.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("a command ended with {0:?}")]
    Status(Status),
    #[error("no completion for two seconds")]
    Stuck,
}

/// A small, fast and repeatable source of random numbers (xorshift64).
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    #[inline]
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 64;
/// Turns without a completion after which the load generator gives way to others.
const TURNS_BEFORE_YIELD: u32 = 2000;
/// How long nothing may complete.
const STUCK: Duration = Duration::from_secs(2);

/// Runs `job` on `queue`; command `n` in flight uses `len_bytes` of memory at `buffers + n * len_bytes`.
pub(super) fn run(queue: &mut QueuePair, buffers: u64, job: &Job) -> Result<Outcome, LoadError> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let slots = job.span_bytes / u64::from(job.len_bytes);
    let blocks = job.len_bytes / job.block_bytes;
    let mut free: Vec<u32> = (0..job.depth).collect();
    let mut buffer_of_cid = vec![0u32; 1 << 16];
    let mut failed = None;
    let writes_before = queue.register_writes();
    let start = Instant::now();
    let mut commands = 0u64;
    let mut turns = 0u32;
    let mut idle_turns = 0u32;
    let mut stopping = false;
    let mut last_progress = start;
    loop {
        let mut submitted = 0;
        while !stopping && let Some(buffer) = free.pop() {
            let iova = buffers + u64::from(buffer) * u64::from(job.len_bytes);
            let data = match job.pointer {
                Pointer::Prp => DataPointer::Prp { iova, len_bytes: job.len_bytes },
                Pointer::Sgl => DataPointer::Sgl { iova, len_bytes: job.len_bytes },
            };
            let slba = random.below(slots) * u64::from(blocks);
            let Some(cid) = queue.submit(&DriverCommand::transfer(job.opcode, 1, slba, blocks, data)) else {
                free.push(buffer);
                break;
            };
            buffer_of_cid[usize::from(cid)] = buffer;
            submitted += 1;
        }
        if submitted > 0 {
            queue.ring()?;
        }
        let collected = queue.poll(job.depth as usize, &mut |entry| {
            free.push(buffer_of_cid[usize::from(entry.cid)]);
            if !entry.status.is_success() {
                failed = Some(entry.status);
            }
        })?;
        commands += collected as u64;
        if collected > 0 {
            idle_turns = 0;
        } else {
            idle_turns += 1;
            // The server may have been left without a processor.
            if idle_turns > TURNS_BEFORE_YIELD {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_PER_LOOK) || stopping {
            let now = Instant::now();
            if collected > 0 {
                last_progress = now;
            } else if now - last_progress > STUCK {
                return Err(LoadError::Stuck);
            }
            stopping |= now - start >= job.duration || failed.is_some();
        }
        if stopping && free.len() == job.depth as usize {
            break;
        }
    }
    match failed {
        Some(status) => Err(LoadError::Status(status)),
        None => Ok(Outcome {
            commands,
            elapsed: start.elapsed(),
            register_writes: queue.register_writes() - writes_before,
        }),
    }
}
