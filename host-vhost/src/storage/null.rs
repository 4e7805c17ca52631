//! A storage that moves no data: it measures everything but the medium.
//!
//! Reads leave the segments as they are, writes are forgotten, compare always finds equality. Ranges
//! and segment lists are checked as on every other storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    IoContext, OpenError, Operation, ResizeError, Storage, StorageCommand, StorageQueue, Submission,
};

/// See the module.
#[derive(Debug)]
pub struct NullStorage {
    size_bytes: Arc<AtomicU64>,
}

impl NullStorage {
    /// Of any size.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes: Arc::new(AtomicU64::new(size_bytes)) }
    }
}

impl Storage for NullStorage {
    fn kind(&self) -> &'static str {
        "null"
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    fn read_only(&self) -> bool {
        false
    }

    fn volatile_cache(&self) -> bool {
        false
    }

    fn preferred_alignment_bytes(&self) -> u32 {
        1
    }

    fn deallocate_reads_zero(&self) -> bool {
        false
    }

    fn open_queue(&self, _context: &mut IoContext) -> Result<StorageQueue, OpenError> {
        Ok(StorageQueue::Null(NullQueue { size_bytes: Arc::clone(&self.size_bytes) }))
    }

    fn can_be_handed_over(&self) -> bool {
        true
    }

    fn resize(&self, size_bytes: u64) -> Result<(), ResizeError> {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// A queue of a [`NullStorage`].
#[derive(Debug)]
pub struct NullQueue {
    size_bytes: Arc<AtomicU64>,
}

impl NullQueue {
    #[inline]
    pub(super) fn submit(&mut self, command: &StorageCommand<'_>) -> Submission {
        // A flush has no range, everything else is only checked.
        if matches!(command.operation, Operation::Flush) {
            return Submission::Complete(Ok(()));
        }
        Submission::Complete(command.check(self.size_bytes.load(Ordering::Relaxed), false))
    }
}
