//! Remembers that a flush failed.
//!
//! The kernel reports a failed write-back once and then calls the pages clean, so a second flush would
//! succeed without the data being anywhere. Whoever asks again gets the first answer.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

use super::StorageError;

/// See the module. Holds an errno, or 0.
#[derive(Debug, Default)]
pub(super) struct LostFlush(AtomicI32);

impl LostFlush {
    /// The failure that every flush answers, once one failed.
    #[inline]
    pub(super) fn check(&self) -> Result<(), StorageError> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(StorageError::Io(errno)),
        }
    }

    /// Passes on the result of a flush, or of a write that had to be durable.
    #[inline]
    pub(super) fn note(&self, result: Result<(), StorageError>, path: &Path) -> Result<(), StorageError> {
        // EFAULT is the fault of the memory that a write came from, and says nothing of the medium.
        if let Err(StorageError::Io(errno)) = result
            && errno != libc::EFAULT
        {
            self.remember(errno, path);
        }
        result
    }

    #[cold]
    fn remember(&self, errno: i32, path: &Path) {
        if self.0.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let error = io::Error::from_raw_os_error(errno);
            tracing::error!(path = %path.display(), %error, "flush failed; data may be lost, further flushes fail too");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_flush_stays_lost() {
        let lost = LostFlush::default();
        let path = Path::new("disk.img");
        assert_eq!(lost.check(), Ok(()));
        assert_eq!(lost.note(Err(StorageError::Cancelled), path), Err(StorageError::Cancelled));
        let fault = Err(StorageError::Io(libc::EFAULT));
        assert_eq!(lost.note(fault, path), fault);
        assert_eq!(lost.check(), Ok(()));
        let error = Err(StorageError::Io(libc::EIO));
        assert_eq!(lost.note(error, path), error);
        assert_eq!(lost.note(Ok(()), path), Ok(()));
        assert_eq!(lost.check(), error);
    }
}
