//! The atomics of the crate: the machine's, or loom's under `cfg(loom)`, so that loom runs this very code.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
pub(crate) use mutation::fence;
#[cfg(all(loom, any(test, feature = "testing")))]
pub use mutation::without_fences;

/// Fences that a test can take away, to show that the models need them.
#[cfg(loom)]
mod mutation {
    use std::cell::Cell;

    use super::Ordering;

    std::thread_local! {
        // loom runs all threads of a model on one thread of the machine.
        static WITHOUT: Cell<Option<Ordering>> = const { Cell::new(None) };
    }

    pub(crate) fn fence(ordering: Ordering) {
        if WITHOUT.get() != Some(ordering) {
            loom::sync::atomic::fence(ordering);
        }
    }

    /// Runs `model` with the crate's own fences of this ordering taken away.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_fences(ordering: Ordering, model: impl FnOnce()) {
        WITHOUT.set(Some(ordering));
        model();
        WITHOUT.set(None);
    }
}
