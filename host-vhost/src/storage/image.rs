//! Opening an image file or block device: what it is, how large, locked against a second writer.

#![expect(unsafe_code, reason = "open file description locks have no safe wrapper")]

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};

use super::OpenError;

/// An open image.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) file: File,
    pub(super) len_bytes: u64,
    pub(super) block_device: bool,
}

impl Image {
    /// Opens and locks. `hint` is a command that creates such an image.
    pub(super) fn open(path: &Path, read_only: bool, hint: &str) -> Result<Self, OpenError> {
        let image = Self::open_with(path, read_only, hint, true)?;
        lock(&image.file, path, read_only)?;
        Ok(image)
    }

    /// Opens what somebody else may still write, without a lock: nothing may be written before [`lock`].
    pub(super) fn open_unlocked(path: &Path, read_only: bool, hint: &str) -> Result<Self, OpenError> {
        Self::open_with(path, read_only, hint, false)
    }

    fn open_with(path: &Path, read_only: bool, hint: &str, exclusive: bool) -> Result<Self, OpenError> {
        let failed = |what, source| OpenError::File { path: path.into(), what, source };
        let unusable = |what: &str| OpenError::Unusable { path: path.into(), what: what.into() };
        let metadata = std::fs::metadata(path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                OpenError::Missing { path: path.into(), hint: format!("{hint} {}", path.display()) }
            } else {
                failed("look at it", error)
            }
        })?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            return Err(unusable("is a directory; name an image file or a block device"));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(unusable("is neither a file nor a block device"));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only);
        if kind.is_block_device() && !read_only && exclusive {
            // Without O_CREAT this means: fail if it is mounted or part of something that is.
            options.custom_flags(libc::O_EXCL);
        }
        let mut file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => locked(path, "it is mounted, or part of a RAID or LVM volume"),
            _ if read_only => failed("open it for reading", error),
            _ => failed("open it for writing (it can be served read-only)", error),
        })?;
        let len_bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed("find its size", error))?;
        Ok(Self { file, len_bytes, block_device: kind.is_block_device() })
    }
}

/// An open file description lock over the whole file: shared to read, exclusive to write. It goes
/// with the description, also on SIGKILL, works between two opens in one process, and QEMU's own
/// image locks respect it.
///
/// A process that was killed with I/O in flight lets go of its files only when the kernel has
/// finished that I/O, in the background. That is as it should be (a late write must not land under a
/// new owner), but whoever restarts at once has to wait a little.
pub(super) fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), OpenError> {
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    let whole = whole_file(kind);
    let start = Instant::now();
    loop {
        // SAFETY: fcntl reads one flock, which lives on our stack.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) if start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_NAP);
            }
            Some(libc::EAGAIN | libc::EACCES) => return Err(locked(path, "it holds a lock on the file")),
            _ => {
                tracing::warn!(path = %path.display(), %error, "this file system has no locks; nothing keeps a second writer away");
                return Ok(());
            }
        }
    }
}

/// Lets go of the lock and keeps the file open.
pub(super) fn unlock(file: &File) {
    let whole = whole_file(libc::F_UNLCK);
    // SAFETY: fcntl reads one flock, which lives on our stack.
    let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: a plain structure of numbers, for which zero is a value.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = kind as libc::c_short;
    whole.l_whence = libc::SEEK_SET as libc::c_short;
    whole
}

const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_NAP: Duration = Duration::from_millis(5);

fn locked(path: &Path, holder: &str) -> OpenError {
    OpenError::Locked { path: path.into(), holder: holder.into() }
}

/// What direct I/O demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alignment {
    /// Of addresses.
    pub(super) memory_bytes: u32,
    /// Of offsets, and of the length of each segment.
    pub(super) offset_bytes: u32,
}

impl Alignment {
    /// The page cache takes anything.
    pub(super) const NONE: Self = Self { memory_bytes: 1, offset_bytes: 1 };

    /// What the file system says, from Linux 6.1 on; `None` if it says no, or nothing.
    pub(super) fn of_direct_io(file: &File) -> Option<Self> {
        let answer = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let told = answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let found =
            Self { memory_bytes: answer.stx_dio_mem_align, offset_bytes: answer.stx_dio_offset_align };
        (told && found.memory_bytes.is_power_of_two() && found.offset_bytes.is_power_of_two())
            .then_some(found)
    }
}
