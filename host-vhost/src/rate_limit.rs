//! Log lines that a guest can cause: a few a second, whatever the guest does.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::poller::idle::now_ns;

/// Lines in a second at most.
const LINES_PER_SECOND: u64 = 5;
const SECOND_NS: u64 = 1_000_000_000;

/// Calls `line` unless there were enough of these in the last second.
pub(crate) fn warn_sometimes(line: impl FnOnce()) {
    static NEXT_NS: AtomicU64 = AtomicU64::new(0);
    if take_turn(&NEXT_NS, now_ns()) {
        line();
    }
}

/// A leaky bucket: each line takes its share of a second, and a second's worth may be taken at once.
fn take_turn(next_ns: &AtomicU64, now_ns: u64) -> bool {
    let share = SECOND_NS / LINES_PER_SECOND;
    let taken = next_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
        let next = next.max(now_ns);
        (next - now_ns < SECOND_NS).then_some(next + share)
    });
    taken.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_few_lines_a_second() {
        let next = AtomicU64::new(0);
        let lines = |at_ns: u64| (0..1000).filter(|_| take_turn(&next, at_ns)).count();
        assert_eq!(lines(10 * SECOND_NS), 5);
        assert_eq!(lines(10 * SECOND_NS + SECOND_NS / 5), 1);
        assert_eq!(lines(20 * SECOND_NS), 5);
    }
}
