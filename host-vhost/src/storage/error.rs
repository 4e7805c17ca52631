//! What can go wrong: [`StorageError`] for a command, [`OpenError`] before there is a storage,
//! [`ResizeError`] for a change of size. NVMe status is chosen elsewhere.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a command failed. Small and `Copy`, since it travels through rings and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StorageError {
    /// The range isn't inside the storage.
    #[error("range outside the storage")]
    OutOfRange,
    /// The storage was opened read-only.
    #[error("storage is read-only")]
    ReadOnly,
    /// The file system or the device has no room left.
    #[error("no space left on the medium")]
    NoSpace,
    /// The system call failed with this errno.
    #[error("I/O error: {}", io::Error::from_raw_os_error(*.0))]
    Io(i32),
    /// Compare found a difference.
    #[error("medium and data differ")]
    Miscompare,
    /// Cancelled on request. A write may or may not have reached the medium.
    #[error("cancelled")]
    Cancelled,
    /// The storage can't do this.
    #[error("operation not supported by this storage")]
    Unsupported,
    /// The segments don't add up to the length, are too many, or are null where that is no bit
    /// bucket.
    #[error("segments don't match the command")]
    BadSegments,
}

impl StorageError {
    /// The error for a positive errno.
    #[must_use]
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::ECANCELED => Self::Cancelled,
            libc::EROFS => Self::ReadOnly,
            _ => Self::Io(errno),
        }
    }
}

impl From<&io::Error> for StorageError {
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno),
            None => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    Self::NoSpace
                }
                io::ErrorKind::Unsupported => Self::Unsupported,
                _ => Self::Io(libc::EIO),
            },
        }
    }
}

impl From<io::Error> for StorageError {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}

impl From<rustix::io::Errno> for StorageError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::from_errno(errno.raw_os_error())
    }
}

/// Why a storage, or a queue of it, could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// No such file.
    #[error(
        "{path}: no such file; create it first, for example with `{hint}`",
        path = path.display()
    )]
    Missing {
        /// What was asked for.
        path: PathBuf,
        /// A command that creates it.
        hint: String,
    },
    /// The file can't be opened or asked about.
    #[error("{path}: cannot {what}: {source}", path = path.display())]
    File {
        /// What was asked for.
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The path names something that can't be a disk.
    #[error("{path}: {what}", path = path.display())]
    Unusable {
        /// What was asked for.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// Someone has it open for writing, or we want to write and someone reads.
    #[error(
        "{path}: in use by another namespace or program ({holder}); two writers would destroy it: \
         stop the other one, or open the image read-only everywhere",
        path = path.display()
    )]
    Locked {
        /// What was asked for.
        path: PathBuf,
        /// Who, as far as the kernel says.
        holder: String,
    },
    /// A medium that can't change hands while it is in use.
    #[error(
        "`incoming` is for raw images and block devices that a virtio disk is served from (--vhost-user): \
         their owner can change during a live migration"
    )]
    NoHandover,
    /// A size that no storage can have.
    #[error("size {size_bytes} bytes: {what}")]
    Size {
        /// What was asked for.
        size_bytes: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Memory for a RAM storage can't be had.
    #[error("cannot reserve {size_bytes} bytes of memory ({what}): {source}")]
    Memory {
        /// What was asked for.
        size_bytes: u64,
        /// The step that failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A ring, a thread or an eventfd can't be had.
    #[error("cannot {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Why a storage could not be resized.
#[derive(Debug, Error)]
pub enum ResizeError {
    /// This kind can't, or not in this direction.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The storage is read-only.
    #[error("the storage was opened read-only")]
    ReadOnly,
    /// A size that this storage can't have.
    #[error("size {size_bytes} bytes: {what}")]
    Size {
        /// What was asked for.
        size_bytes: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The system refused.
    #[error("cannot resize to {size_bytes} bytes: {source}")]
    Io {
        /// What was asked for.
        size_bytes: u64,
        /// Why.
        source: io::Error,
    },
}
