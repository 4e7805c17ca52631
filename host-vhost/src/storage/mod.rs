//! Media behind the namespaces: [`NullStorage`], [`RamStorage`], ...
//!
//! A [`Storage`] is opened once and shared. Each poller thread opens a [`StorageQueue`] of it, and
//! keeps one [`IoContext`] for all its queues:
//!
//! ```text
//! loop {
//!     queue.submit(&mut context, &command)   // for each command of a batch
//!     context.submit_batch();                // at most one io_uring_enter
//!     context.reap(&mut |token, result| ...) // no system call
//! }
//! ```
//!
//! Storage speaks bytes: it knows no blocks, no NVMe status and no guest addresses. On the way of a
//! command there is no allocation, no lock and no dynamic call; null and RAM make no system call
//! either.
//!
//! **Durability.** Whatever a storage acknowledged survives the end of this process, SIGKILL included
//! (RAM and null storages excepted, they live in it): nothing is cached in user space. What
//! [`Operation::Flush`] or FUA acknowledged survives a power failure.

mod aligned;
mod command;
mod config;
mod context;
mod error;
pub mod fault;
mod file;
mod file_queue;
mod file_worker;
mod gate;
mod image;
mod limits;
mod lost_flush;
mod null;
mod power_failure;
mod qcow2;
mod ram;
mod ram_map;
mod ring;
mod segments;
mod slots;
mod stream;
mod wake;
mod worker;

use std::fmt::Debug;

pub use command::{Operation, StorageCommand, Submission, Token};
pub use config::{Direct, FileEngine, ParseSizeError, StorageConfig, parse_size};
pub use context::{IoContext, IoContextConfig};
pub use error::{OpenError, ResizeError, StorageError};
pub use file::FileStorage;
pub use file_queue::FileQueue;
pub use null::{NullQueue, NullStorage};
pub use qcow2::Qcow2Storage;
pub use ram::{RamQueue, RamStorage};
pub use worker::WorkerQueue;

/// A medium. Shared by all pollers, who do their I/O through queues of it.
pub trait Storage: Send + Sync + Debug {
    /// What it is, in one word: `null`, `ram`, `file`, `qcow2`.
    fn kind(&self) -> &'static str;

    /// Bytes that can be addressed; changes when the storage is resized.
    fn size_bytes(&self) -> u64;

    /// Whether everything that changes the medium is refused.
    fn read_only(&self) -> bool;

    /// Whether an acknowledged write needs [`Operation::Flush`] or FUA to survive a power failure.
    /// False if flush has nothing to add.
    fn volatile_cache(&self) -> bool;

    /// Ranges aligned to this are fastest; any other range works too.
    fn preferred_alignment_bytes(&self) -> u32;

    /// Whether a deallocated range always reads zero.
    fn deallocate_reads_zero(&self) -> bool;

    /// A queue for the poller thread that owns `context`. Use it with that context only.
    ///
    /// # Errors
    ///
    /// Whatever the system refuses: a ring, a thread.
    fn open_queue(&self, context: &mut IoContext) -> Result<StorageQueue, OpenError>;

    /// Changes the size while queues are open. Shrink only when no command is in flight past the new
    /// end: the data there goes.
    ///
    /// # Errors
    ///
    /// See [`ResizeError`]; the size is as before then.
    fn resize(&self, size_bytes: u64) -> Result<(), ResizeError>;

    /// Whether another process, here or on another machine, can go on with the medium where this one stops:
    /// what live migration needs.
    fn can_be_handed_over(&self) -> bool {
        false
    }

    /// Makes everything durable and lets go of the lock, so that another process may [`claim`](Self::claim) the
    /// medium. No command may be in flight, nor come before this process has claimed it again.
    ///
    /// # Errors
    ///
    /// The medium couldn't be made durable; the lock is kept.
    fn release(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Takes the lock, unless it is held already.
    ///
    /// # Errors
    ///
    /// [`OpenError::Locked`]: another process holds it.
    fn claim(&self) -> Result<(), OpenError> {
        Ok(())
    }
}

/// A poller's own way into a [`Storage`]. An enum, so that null and RAM are inlined.
#[derive(Debug)]
#[non_exhaustive]
pub enum StorageQueue {
    /// Moves nothing.
    Null(NullQueue),
    /// Copies.
    Ram(RamQueue),
    /// io_uring, helped by a thread.
    File(FileQueue),
    /// Threads only: files without io_uring, qcow2, fault injection.
    Worker(WorkerQueue),
}

impl StorageQueue {
    /// Starts a command. It may complete at once; if not, it goes out with the next
    /// [`IoContext::submit_batch`].
    #[inline]
    pub fn submit(&mut self, context: &mut IoContext, command: &StorageCommand<'_>) -> Submission {
        match self {
            Self::Null(queue) => queue.submit(command),
            Self::Ram(queue) => queue.submit(command),
            Self::File(queue) => queue.submit(context, command),
            Self::Worker(queue) => queue.submit(context, command),
        }
    }

    /// A read of this range comes soon. Only a hint.
    #[inline]
    pub fn prefetch(&self, offset_bytes: u64, len_bytes: u64) {
        if let Self::Ram(queue) = self {
            queue.prefetch(offset_bytes, len_bytes);
        }
    }
}
