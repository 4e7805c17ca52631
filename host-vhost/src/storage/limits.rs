//! What every queue of a storage checks before it does anything.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{StorageCommand, StorageError};

/// See the module. Shared by a storage and its queues; only a resize writes it.
#[derive(Debug)]
pub(super) struct Limits {
    size_bytes: AtomicU64,
    pub(super) read_only: bool,
}

impl Limits {
    pub(super) fn new(size_bytes: u64, read_only: bool) -> Self {
        Self { size_bytes: AtomicU64::new(size_bytes), read_only }
    }

    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    pub(super) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    #[inline]
    pub(super) fn check(&self, command: &StorageCommand<'_>) -> Result<(), StorageError> {
        command.check(self.size_bytes(), self.read_only)
    }
}
