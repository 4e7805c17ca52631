//! The vhost-user-blk backend: the same storages as a virtio disk, for any QEMU from 7.2 on.
//!
//! * `server`: the socket, one frontend after the other; `backend`: what the frontend has said, over the
//!   request handler of the `vhost` crate; `guest_memory`: its memory table.
//! * `disk`: feature bits and configuration space.
//! * `poller`: the threads; `queue`: a virtqueue at work, and its requests; `ring`: its split ring; `chain`:
//!   descriptor chains as pieces of memory; `window`: bounded access to what is shared.
//! * `medium`: the way from there to the storage; `controlled`: the one through a queue group, over `lent` memory.
//! * `dirty_log`, `queue_log`: the pages that were written, for live migration; `descriptors`: messages that
//!   the crate can't take.
//! * `operator`: the control socket; `counters`: what it shows of a queue; `announce`: a guest hears of a resize.
//! * `inflight`: what makes a killed backend's successor complete each request exactly once.
//!
//! **Direct, unless asked otherwise.** Requests go to [`crate::storage`] without becoming NVMe commands: the data path
//! of a RAM disk is then one walk of the chain and one copy. [`DataPath::QueueGroup`] sends them through the core's
//! queue group, so that a sandbox can hold a virtio disk. Data is moved straight between the
//! medium and guest memory (`readv` and `writev` by io_uring, or one `memcpy` a piece); per request there is no
//! lock and no allocation.
//!
//! **Memory is [`crate::memory`]'s**, not vm-memory's: its mappings survive a frontend that truncates the file
//! behind them, and rings have fixed places, so they are resolved once and not at each access. That is also why
//! the ring code is our own.
//!
//! **A hostile guest or frontend** can stop its own queue (a `Broken` ring is reported by the error eventfd and
//! a log line) or its own session. Each chain is walked at most as far as its table is long.
//!
//! **Not here:** packed rings; shrinking; secure erase and zones, which a guest sees as not supported.
//!
//! Read first: VIRTIO 1.3, 2.7 (split virtqueues) and 5.2 (block device); QEMU's `vhost-user.rst`.

mod announce;
mod backend;
mod chain;
mod controlled;
mod counters;
mod descriptors;
mod dirty_log;
mod disk;
mod guest_memory;
mod inflight;
mod lent;
mod medium;
mod operator;
mod poller;
mod queue;
mod queue_log;
mod ring;
mod server;
mod window;

pub use medium::DataPath;
pub use server::{BlkConfig, BlkServeError, BlkServer};
