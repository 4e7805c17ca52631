//! When a poller spins, naps and sleeps.
//!
//! * A poller with work spins.
//! * One without work spins a little longer (a wake-up costs more than that), soon giving way to whoever else
//!   wants its processor, which may be the guest that it waits for. How long depends on how long the silences
//!   were lately: a guest that comes back after half a millisecond is waited for, one that comes back after a
//!   second isn't.
//! * Then it either *naps* (a group whose doorbell page is mapped by the guest makes no sound when it is rung,
//!   so it must be looked at: naps grow up to 1 ms) or *sleeps* until something wakes it (no group has a mapped
//!   page, and every group has armed its doorbells).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The longest nap: the first command after a long silence waits so long at most.
pub const LONGEST_NAP: Duration = Duration::from_millis(1);
/// The first nap.
const FIRST_NAP: Duration = Duration::from_micros(5);
/// How long a poller without work keeps its processor to itself.
const HOG_NS: u64 = 20_000;
/// How long a poller without work spins at least before it naps or sleeps.
const SHORTEST_SPIN_NS: u64 = 200_000;
/// How long it spins at most.
const LONGEST_SPIN_NS: u64 = 2_000_000;
/// Turns between two looks at the clock while it spins.
const TURNS_PER_LOOK: u32 = 64;

/// The monotonic clock, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What to do in a turn without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again at once.
    Spin,
    /// Let others run, and look again.
    Yield,
    /// Wait for a wake-up, but at most so long.
    Nap(Duration),
}

/// The memory of a poller's idleness.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    turns: u32,
    /// When the present silence was noticed.
    since_ns: Option<u64>,
    nap: Duration,
    /// The moving average of silences that lasted long enough to be noticed; longer ones count as
    /// twice [`LONGEST_SPIN_NS`].
    silence_ns: u64,
}

impl Default for Idle {
    fn default() -> Self {
        Self { turns: 0, since_ns: None, nap: FIRST_NAP, silence_ns: 2 * LONGEST_SPIN_NS }
    }
}

impl Idle {
    /// There was work.
    #[inline]
    pub fn worked(&mut self) {
        if self.turns != 0 {
            self.end_silence();
        }
    }

    fn end_silence(&mut self) {
        if let Some(since_ns) = self.since_ns {
            self.count_silence(now_ns().saturating_sub(since_ns));
        }
        self.turns = 0;
        self.since_ns = None;
        self.nap = FIRST_NAP;
    }

    fn count_silence(&mut self, silence_ns: u64) {
        let silence_ns = silence_ns.min(2 * LONGEST_SPIN_NS);
        self.silence_ns = (7 * self.silence_ns + silence_ns) / 8;
    }

    /// There was none: what now?
    #[inline]
    pub fn idle(&mut self) -> Rest {
        self.turns = self.turns.wrapping_add(1);
        if !self.turns.is_multiple_of(TURNS_PER_LOOK) {
            return Rest::Spin;
        }
        self.look(now_ns())
    }

    fn look(&mut self, now_ns: u64) -> Rest {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let idle_ns = now_ns.saturating_sub(since_ns);
        if idle_ns < HOG_NS {
            return Rest::Spin;
        }
        if idle_ns < self.spin_ns() {
            return Rest::Yield;
        }
        // From now on each turn is followed by a nap.
        self.turns = TURNS_PER_LOOK - 1;
        let nap = self.nap;
        self.nap = (nap * 2).min(LONGEST_NAP);
        Rest::Nap(nap)
    }

    /// Waiting twice the usual silence catches most of them; where they are longer than the longest spin,
    /// waiting is in vain.
    fn spin_ns(&self) -> u64 {
        match self.silence_ns {
            silence_ns if silence_ns > LONGEST_SPIN_NS => SHORTEST_SPIN_NS,
            silence_ns => (2 * silence_ns).clamp(SHORTEST_SPIN_NS, LONGEST_SPIN_NS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_poller_naps_longer_and_longer_up_to_a_millisecond() {
        let mut idle = Idle::default();
        assert_eq!(idle.look(1_000), Rest::Spin);
        assert_eq!(idle.look(1_000 + 19_000), Rest::Spin);
        assert_eq!(idle.look(1_000 + 100_000), Rest::Yield);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let Rest::Nap(nap) = idle.look(1_000 + 200_000) else { panic!("spins") };
            assert!(nap >= last && nap <= LONGEST_NAP);
            last = nap;
        }
        assert_eq!(last, LONGEST_NAP);
        idle.worked();
        assert_eq!(idle.look(5_000_000), Rest::Spin);
    }

    #[test]
    fn a_guest_that_comes_back_soon_is_waited_for() {
        let mut idle = Idle::default();
        assert_eq!(idle.spin_ns(), SHORTEST_SPIN_NS);
        (0..50).for_each(|_| idle.count_silence(500_000));
        assert!((900_000..=1_100_000).contains(&idle.spin_ns()), "{}", idle.spin_ns());
        (0..50).for_each(|_| idle.count_silence(u64::MAX));
        assert_eq!(idle.spin_ns(), SHORTEST_SPIN_NS);
    }
}
