//! The atomics of the crate: the machine's, or loom's under `cfg(loom)`, so that loom runs this very code.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
