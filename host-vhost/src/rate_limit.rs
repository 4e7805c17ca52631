//! Log lines that a guest can cause: a few a second, whatever the guest does.
//!
//! Each thread has a limit of its own, and threads belong to devices: one that floods hides no other's lines.

use std::cell::Cell;

use crate::poller::idle::now_ns;

/// Lines in a second at most.
const LINES_PER_SECOND: u64 = 5;
const SECOND_NS: u64 = 1_000_000_000;

/// Calls `line` unless there were enough of these in the last second.
pub(crate) fn warn_sometimes(line: impl FnOnce()) {
    thread_local! {
        static NEXT_NS: Cell<u64> = const { Cell::new(0) };
    }
    if NEXT_NS.with(|next_ns| take_turn(next_ns, now_ns())) {
        line();
    }
}

/// A leaky bucket: each line takes its share of a second, and a second's worth may be taken at once.
fn take_turn(next_ns: &Cell<u64>, now_ns: u64) -> bool {
    let next = next_ns.get().max(now_ns);
    let taken = next - now_ns < SECOND_NS;
    if taken {
        next_ns.set(next + SECOND_NS / LINES_PER_SECOND);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_few_lines_a_second() {
        let next = Cell::new(0);
        let lines = |at_ns: u64| (0..1000).filter(|_| take_turn(&next, at_ns)).count();
        assert_eq!(lines(10 * SECOND_NS), 5);
        assert_eq!(lines(10 * SECOND_NS + SECOND_NS / 5), 1);
        assert_eq!(lines(20 * SECOND_NS), 5);
    }
}
