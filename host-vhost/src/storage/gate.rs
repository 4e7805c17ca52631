//! Keeps read-modify-write apart from ordinary writes.
//!
//! A direct write that isn't aligned for its device reads a whole device block, changes a part, and
//! writes all of it back. A write of the other part that happens in between would be lost, although
//! the guest's two commands don't overlap. So a read-modify-write waits until no write is in flight
//! on any queue of the storage, and holds new ones off (they are answered `Busy`) until it is done. It
//! is rare and slow; guests that mind use the alignment the namespace tells them.
//!
//! The alternative, a second descriptor through the page cache, isn't safe: the cache writes whole
//! pages back later, over direct writes to their other blocks, and the kernel promises coherence only
//! after the fact.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// See the module. Does nothing where no read-modify-write can happen.
#[derive(Debug)]
pub(super) struct Gate {
    active: bool,
    /// Ordinary writes in flight, and [`HELD_OFF`].
    state: AtomicU32,
    alone: Mutex<()>,
}

const HELD_OFF: u32 = 1 << 31;

/// How often a waiting worker looks again.
const NAP: Duration = Duration::from_micros(20);

impl Gate {
    pub(super) fn new(active: bool) -> Self {
        Self { active, state: AtomicU32::new(0), alone: Mutex::new(()) }
    }

    /// Begins an ordinary write, unless they are held off.
    #[inline]
    pub(super) fn try_enter(&self) -> bool {
        if !self.active {
            return true;
        }
        // Acquire: we come after the read-modify-write that let us in.
        let enter = |state| (state & HELD_OFF == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    /// Begins an ordinary write. Only for threads that may sleep.
    pub(super) fn enter(&self) {
        while !self.try_enter() {
            std::thread::sleep(NAP);
        }
    }

    /// Ends an ordinary write.
    #[inline]
    pub(super) fn leave(&self) {
        if self.active {
            // Release: whoever waits for us sees the write done.
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until no write is in flight, and holds others off. Only for threads that may sleep.
    pub(super) fn alone(&self) -> Alone<'_> {
        let guard = self.alone.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.state.fetch_or(HELD_OFF, Ordering::Relaxed);
        while self.state.load(Ordering::Acquire) != HELD_OFF {
            std::thread::sleep(NAP);
        }
        Alone { gate: self, _guard: guard }
    }
}

/// While it lives, no other write is in flight.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    gate: &'a Gate,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.gate.state.fetch_and(!HELD_OFF, Ordering::Release);
    }
}
