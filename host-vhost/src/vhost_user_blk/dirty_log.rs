//! The dirty log of live migration: a bit for each page of guest memory that this process has written.
//!
//! The log is a shared file of the frontend's; bit `n % 8` of byte `n / 8` stands for the 4 KiB page `n` of guest
//! memory (vhost-user specification, "Migration"). The frontend takes bits away whenever it likes and then copies
//! their pages, so a bit is set by an atomic OR, and only after the page was written: a bit that comes too early
//! may be taken away before the last byte is there, and the page arrives old.
//!
//! Nothing here trusts the frontend. A page that the log has no bit for is reported and left out; a log whose file
//! was truncated is reported by [`DirtyLog::is_lost`], and its bits go nowhere (see [`crate::memory::sigbus`]).

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::window::Window;
use crate::memory::{MapError, Region, ReleaseSignal, Rights};

/// Bytes that a bit stands for, whatever the machine's page size (`VHOST_LOG_PAGE`).
const PAGE_BYTES: u64 = 4096;

/// See the module. Shared by all queues of a session.
#[derive(Debug)]
pub(super) struct DirtyLog {
    window: Window,
    len_bytes: u64,
}

impl DirtyLog {
    /// Maps `len_bytes` of the frontend's file.
    ///
    /// # Errors
    /// See [`MapError`]; a file that ends before the log does is one.
    pub(super) fn new(file: impl AsFd, offset: u64, len_bytes: u64) -> Result<Self, MapError> {
        let file = Some((file.as_fd(), offset));
        let region = Region::new(0, len_bytes, Rights::READ_WRITE, file, ReleaseSignal::default())?;
        let len = usize::try_from(len_bytes).map_err(|_| MapError::BadRange)?;
        let window = Window::of_region(&Arc::new(region), 0, len).ok_or(MapError::BadRange)?;
        Ok(Self { window, len_bytes })
    }

    /// Marks the pages of a range that was written. The marks are visible to whoever sees a later release store
    /// of this thread, the used index for one.
    #[inline]
    pub(super) fn mark(&self, address: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        let mut page = address / PAGE_BYTES;
        let last = address.saturating_add(len_bytes - 1) / PAGE_BYTES;
        while page <= last {
            let byte = page / 8;
            if byte >= self.len_bytes {
                missing(page);
                return;
            }
            // All pages of the range that share the byte, by one access.
            let end = last.min(page | 7);
            let mask = (u8::MAX << (page % 8)) & (u8::MAX >> (7 - end % 8));
            self.window.or_u8(byte as usize, mask);
            page = end + 1;
        }
    }

    /// Whether the file behind it was truncated.
    pub(super) fn is_lost(&self) -> bool {
        self.window.is_lost()
    }
}

#[cold]
fn missing(page: u64) {
    crate::rate_limit::warn_sometimes(|| {
        tracing::warn!(
            "the frontend's dirty log ends before page {page:#x}, which was written: a migration would lose it"
        );
    });
}

/// Where a session's writes are logged, as the frontend has said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct LogTarget {
    pub(super) log: Option<Arc<DirtyLog>>,
    /// Told whenever something was logged (SET_LOG_FD).
    pub(super) call: Option<Arc<File>>,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn log(len_bytes: u64) -> (DirtyLog, File) {
        let file = File::from(rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len_bytes).unwrap();
        (DirtyLog::new(&file, 0, len_bytes).unwrap(), file)
    }

    fn pages(file: &File) -> Vec<u64> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        (0..8 * bytes.len() as u64).filter(|page| bytes[*page as usize / 8] >> (page % 8) & 1 == 1).collect()
    }

    #[test]
    fn exactly_the_pages_of_a_range_are_marked() {
        for (address, len, wanted) in [
            (0, 1, 0..1),
            (4095, 1, 0..1),
            (4095, 2, 0..2),
            (7 * 4096, 4096, 7..8),
            (7 * 4096 + 1, 4096, 7..9),
            (3 * 4096, 30 * 4096, 3..33),
            (8 * 4096, 8 * 4096, 8..16),
            (100 * 4096 - 1, 156 * 4096 + 1, 99..256),
            (5, 0, 0..0),
        ] {
            let (log, file) = log(32);
            log.mark(address, len);
            assert_eq!(pages(&file), wanted.collect::<Vec<_>>(), "{address} {len}");
        }
    }

    #[test]
    fn what_the_log_has_no_bit_for_is_left_out_and_the_rest_is_there() {
        let (log, file) = log(2);
        log.mark(14 * 4096, 1 << 40);
        log.mark(16 * 4096, 1);
        log.mark(u64::MAX - 1, u64::MAX);
        assert_eq!(pages(&file), [14, 15]);
    }

    #[test]
    fn marks_add_up_and_a_truncated_log_is_noticed() {
        let (log, file) = log(8192);
        log.mark(4096, 1);
        log.mark(3 * 4096, 1);
        assert_eq!(pages(&file), [1, 3]);
        file.set_len(0).unwrap();
        assert!(!log.is_lost());
        log.mark(1 << 20, 1);
        assert!(log.is_lost());
    }

    #[test]
    fn a_log_that_is_longer_than_its_file_is_refused() {
        let (_, file) = log(8192);
        assert!(DirtyLog::new(&file, 0, 8193).is_err());
        assert!(DirtyLog::new(&file, 4096, 8192).is_err());
        assert!(DirtyLog::new(&file, 1, 64).is_err());
        assert!(DirtyLog::new(&file, 0, 0).is_err());
    }
}
