//! Which processors the driver and the poller run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of this process: the first is the driver's, the last the poller's. Side by side on one they
/// would measure the scheduler.
#[derive(Debug)]
pub(super) struct Cpus {
    all: Option<CpuSet>,
    numbers: Vec<usize>,
}

impl Cpus {
    pub(super) fn new() -> Self {
        let all = sched_getaffinity(None).ok();
        let is_ours = |cpu: &usize| all.is_some_and(|all| all.is_set(*cpu));
        Self { all, numbers: (0..CpuSet::MAX_CPU).filter(is_ours).collect() }
    }

    /// The poller's, where there is more than one.
    pub(super) fn poller(&self) -> Option<usize> {
        self.numbers.last().copied().filter(|_| self.numbers.len() > 1)
    }

    /// Lets the calling thread run anywhere again.
    pub(super) fn run_anywhere(&self) {
        if let Some(all) = &self.all {
            // Where it can't be had, the figures are as they are.
            let _ = sched_setaffinity(None, all);
        }
    }

    /// Keeps the calling thread on the first.
    pub(super) fn run_on_first(&self) {
        if let [first, _, ..] = self.numbers[..] {
            let mut set = CpuSet::new();
            set.set(first);
            let _ = sched_setaffinity(None, &set);
        }
    }
}
