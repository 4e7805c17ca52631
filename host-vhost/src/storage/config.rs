//! Opening a storage from a description, and sizes as people write them.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use super::{FileStorage, NullStorage, OpenError, Qcow2Storage, RamStorage, Storage};

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageConfig {
    /// Moves no data.
    Null {
        /// Any size.
        size_bytes: u64,
    },
    /// Memory of this process.
    Ram {
        /// At least 1.
        size_bytes: u64,
    },
    /// A raw image or a block device.
    File {
        /// Where.
        path: PathBuf,
        /// Refuse whatever would change it.
        read_only: bool,
        /// Whether to go around the page cache.
        direct: Direct,
    },
    /// A qcow2 image.
    Qcow2 {
        /// Where.
        path: PathBuf,
        /// Refuse whatever would change it.
        read_only: bool,
    },
}

/// Whether a file is opened with `O_DIRECT`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the file system takes it and 512-byte ranges stay aligned.
    #[default]
    Auto,
    /// Or fail.
    On,
    /// Through the page cache.
    Off,
}

/// Who does the I/O of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileEngine {
    /// io_uring, or threads where there is none.
    #[default]
    Auto,
    /// Worker threads with plain system calls.
    Threads,
}

impl StorageConfig {
    /// Opens what another process still writes and will hand over: its lock is taken by [`Storage::claim`].
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; [`OpenError::NoHandover`] for what lives in one process.
    pub fn open_incoming(&self) -> Result<Arc<dyn Storage>, OpenError> {
        match self {
            Self::Null { .. } => self.open(),
            Self::File { path, read_only, direct } => {
                Ok(Arc::new(FileStorage::open_incoming(path, *read_only, *direct, FileEngine::Auto)?))
            }
            Self::Ram { .. } | Self::Qcow2 { .. } => Err(OpenError::NoHandover),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; each says what to do.
    pub fn open(&self) -> Result<Arc<dyn Storage>, OpenError> {
        match self {
            Self::Null { size_bytes } => Ok(Arc::new(NullStorage::new(*size_bytes))),
            Self::Ram { size_bytes } => Ok(Arc::new(RamStorage::new(*size_bytes)?)),
            Self::File { path, read_only, direct } => {
                Ok(Arc::new(FileStorage::open(path, *read_only, *direct, FileEngine::Auto)?))
            }
            Self::Qcow2 { path, read_only } => Ok(Arc::new(Qcow2Storage::open(path, *read_only)?)),
        }
    }
}

/// Why a text isn't a size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not a size: {what}; write bytes or a number with K, M, G or T, such as 512M or 1G")]
pub struct ParseSizeError {
    text: String,
    what: &'static str,
}

/// Bytes from `4096`, `64K`, `1G`, `2T` (powers of 1024; `KiB`, `Gi` and small letters work too).
///
/// # Errors
///
/// [`ParseSizeError`] if there is no number, an unknown unit, or too much.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let error = |what| ParseSizeError { text: text.to_owned(), what };
    let trimmed = text.trim();
    let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(error("it doesn't start with a whole number"));
    }
    let number: u64 = number.parse().map_err(|_| error("it is too large"))?;
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KI" | "KIB" => 10,
        "M" | "MI" | "MIB" => 20,
        "G" | "GI" | "GIB" => 30,
        "T" | "TI" | "TIB" => 40,
        _ => return Err(error("unknown unit")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| error("it is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("1G", 1 << 30),
            ("2 GiB", 2 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1X", "99999999999999999999", "99999999999T", "0x10"] {
            let message = parse_size(text).expect_err(text).to_string();
            assert!(message.contains("512M"), "{message}");
        }
    }
}
