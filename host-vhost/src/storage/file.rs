//! A raw image or a block device.
//!
//! Reads, writes and flushes go by io_uring straight between the file and guest memory. What io_uring
//! would do in a thread of its own anyway, or can't do, goes to a worker thread: write zeroes,
//! deallocate, compare, verify, bit buckets, and direct I/O that isn't aligned for the device. Where
//! there is no io_uring the workers do everything.
//!
//! **Size.** A file whose size isn't a multiple of 512 has its last, partial sector padded with
//! zeroes; a write to it makes the file longer.
//!
//! **Durability.** A write is acknowledged when the kernel has it, so the end of this process loses
//! nothing. Flush is `fdatasync`, FUA is `RWF_DSYNC`; both take along the file's size and extents.
//! The kernel reports a failed write-back once, so a flush that failed once fails for ever here:
//! what it lost doesn't come back.

#![expect(unsafe_code, reason = "ioctl on block devices, and tests that stand in for a guest")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, OFlags};

use super::config::{Direct, FileEngine};
use super::file_queue::FileQueue;
use super::file_worker::FileWorker;
use super::gate::Gate;
use super::image::{self, Alignment, Image};
use super::limits::Limits;
use super::lost_flush::LostFlush;
use super::worker::{WorkerPool, WorkerQueue};
use super::{IoContext, OpenError, ResizeError, Storage, StorageError, StorageQueue};

/// See the module.
#[derive(Debug)]
pub struct FileStorage {
    shared: Arc<FileShared>,
    engine: FileEngine,
    /// Whether this process owns the file.
    locked: Mutex<bool>,
    /// Started with the first queue.
    pool: Mutex<Option<Arc<WorkerPool>>>,
}

/// An open file, as queues, rings and workers share it.
#[derive(Debug)]
pub(super) struct FileShared {
    file: File,
    pub(super) path: PathBuf,
    pub(super) block_device: bool,
    pub(super) limits: Arc<Limits>,
    pub(super) direct: bool,
    /// Its file system has no other medium than memory.
    pub(super) in_memory: bool,
    pub(super) alignment: Alignment,
    pub(super) gate: Gate,
    punches_holes: bool,
    pub(super) lost_flush: LostFlush,
}

/// The unit of sizes.
const SECTOR_BYTES: u64 = 512;

/// Worker threads beside an io_uring, and without one.
const HELPERS: usize = 1;
const WORKERS: usize = 4;

impl FileStorage {
    /// Opens and locks a file or block device.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(path: &Path, read_only: bool, direct: Direct, engine: FileEngine) -> Result<Self, OpenError> {
        let image = Image::open(path, read_only, "truncate -s 1G")?;
        if image.len_bytes == 0 {
            let what = "is empty; give it a size first, for example with `truncate -s 1G`".into();
            return Err(OpenError::Unusable { path: path.into(), what });
        }
        warn_if_qcow2(&image.file, path);
        let alignment = choose_alignment(&image.file, path, image.len_bytes, direct)?;
        Ok(Self::with_alignment(image, path, read_only, alignment, engine))
    }

    /// Opens a file that another process serves until it hands it over: nothing may be written before
    /// [`Storage::claim`].
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_incoming(
        path: &Path,
        read_only: bool,
        direct: Direct,
        engine: FileEngine,
    ) -> Result<Self, OpenError> {
        let image = Image::open_unlocked(path, read_only, "truncate -s 1G")?;
        let alignment = choose_alignment(&image.file, path, image.len_bytes, direct)?;
        let storage = Self::with_alignment(image, path, read_only, alignment, engine);
        *storage.locked.lock().unwrap_or_else(PoisonError::into_inner) = false;
        Ok(storage)
    }

    /// `alignment` is that of direct I/O, or `None` for the page cache.
    fn with_alignment(
        image: Image,
        path: &Path,
        read_only: bool,
        alignment: Option<Alignment>,
        engine: FileEngine,
    ) -> Self {
        let Image { file, len_bytes, block_device } = image;
        let punches_holes = !read_only
            && !block_device
            && rustix::fs::fallocate(&file, PUNCH, len_bytes.next_multiple_of(1 << 20), 4096).is_ok();
        let in_memory = rustix::fs::fstatfs(&file).is_ok_and(|found| found.f_type == TMPFS_MAGIC);
        Self {
            shared: Arc::new(FileShared {
                in_memory: in_memory && !block_device,
                file,
                path: path.into(),
                block_device,
                limits: Arc::new(Limits::new(len_bytes.next_multiple_of(SECTOR_BYTES), read_only)),
                direct: alignment.is_some(),
                alignment: alignment.unwrap_or(Alignment::NONE),
                gate: Gate::new(alignment.is_some() && !read_only),
                punches_holes,
                lost_flush: LostFlush::default(),
            }),
            engine,
            locked: Mutex::new(true),
            pool: Mutex::new(None),
        }
    }

    /// Whether it goes around the page cache.
    #[must_use]
    pub fn direct(&self) -> bool {
        self.shared.direct
    }

    fn pool(&self, threads: usize) -> Result<Arc<WorkerPool>, OpenError> {
        let mut pool = self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let backend = Arc::new(FileWorker::new(Arc::clone(&self.shared)));
        let started = Arc::new(WorkerPool::new("file-worker", threads, &backend)?);
        *pool = Some(Arc::clone(&started));
        Ok(started)
    }
}

impl Storage for FileStorage {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn size_bytes(&self) -> u64 {
        self.shared.limits.size_bytes()
    }

    fn read_only(&self) -> bool {
        self.shared.limits.read_only
    }

    fn volatile_cache(&self) -> bool {
        !self.shared.limits.read_only
    }

    fn preferred_alignment_bytes(&self) -> u32 {
        self.shared.alignment.offset_bytes.max(4096)
    }

    fn deallocate_reads_zero(&self) -> bool {
        self.shared.punches_holes
    }

    fn open_queue(&self, context: &mut IoContext) -> Result<StorageQueue, OpenError> {
        let registration = match self.engine {
            FileEngine::Auto => context.register(&self.shared),
            FileEngine::Threads => None,
        };
        let Some(registration) = registration else {
            let pool = self.pool(WORKERS)?;
            return Ok(StorageQueue::Worker(WorkerQueue::new(pool, Arc::clone(&self.shared.limits))));
        };
        let pool = self.pool(HELPERS)?;
        Ok(StorageQueue::File(FileQueue::new(Arc::clone(&self.shared), registration, pool)))
    }

    fn can_be_handed_over(&self) -> bool {
        true
    }

    fn release(&self) -> std::io::Result<()> {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if !*locked {
            return Ok(());
        }
        // The next owner may be another machine, which sees what the file system's server has.
        if !self.shared.limits.read_only {
            rustix::fs::fsync(&self.shared.file)?;
        }
        image::unlock(&self.shared.file);
        *locked = false;
        Ok(())
    }

    fn claim(&self) -> Result<(), OpenError> {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if *locked {
            return Ok(());
        }
        let shared = &*self.shared;
        image::lock(&shared.file, &shared.path, shared.limits.read_only)?;
        // What the page cache has may be older than what the last owner wrote from another machine.
        let _ = rustix::fs::fadvise(&shared.file, 0, None, rustix::fs::Advice::DontNeed);
        *locked = true;
        Ok(())
    }

    fn resize(&self, size_bytes: u64) -> Result<(), ResizeError> {
        let shared = &*self.shared;
        let failed = |source| ResizeError::Io { size_bytes, source };
        if shared.limits.read_only {
            return Err(ResizeError::ReadOnly);
        }
        // Held to the end, so that the file isn't given away meanwhile.
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if !*locked {
            return Err(ResizeError::Unsupported(
                "the image is another server's until a migration hands it over: resize it there",
            ));
        }
        if shared.block_device {
            let real = rustix::fs::seek(&shared.file, rustix::fs::SeekFrom::End(0))
                .map_err(|errno| failed(errno.into()))?;
            if real != size_bytes {
                return Err(ResizeError::Size { size_bytes, what: "a block device has its own size" });
            }
            shared.limits.set_size_bytes(size_bytes);
            return Ok(());
        }
        let unit = SECTOR_BYTES.max(u64::from(shared.alignment.offset_bytes));
        if size_bytes == 0 || !size_bytes.is_multiple_of(unit) {
            return Err(ResizeError::Size {
                size_bytes,
                what: "not a multiple of the sector, 512 or more bytes",
            });
        }
        let old = shared.limits.size_bytes();
        if size_bytes < old {
            shared.limits.set_size_bytes(size_bytes);
        }
        let truncated = shared.file.set_len(size_bytes).and_then(|()| shared.file.sync_all());
        match truncated {
            Ok(()) => shared.limits.set_size_bytes(size_bytes),
            Err(source) => {
                shared.limits.set_size_bytes(old);
                return Err(failed(source));
            }
        }
        Ok(())
    }
}

impl FileShared {
    /// Whether a transfer can go between the file and these segments as they are.
    #[inline]
    pub(super) fn takes(&self, offset_bytes: u64, segments: &[libc::iovec]) -> bool {
        let offset_mask = u64::from(self.alignment.offset_bytes) - 1;
        let memory_mask = self.alignment.memory_bytes as usize - 1;
        let mut wrong = offset_bytes & offset_mask;
        for segment in segments {
            if segment.iov_base.is_null() {
                return false;
            }
            wrong |= (segment.iov_base.addr() & memory_mask) as u64;
            wrong |= segment.iov_len as u64 & offset_mask;
        }
        wrong == 0
    }

    /// Whether a read at `offset_bytes` found nothing because the last sector is partial, rather than
    /// because somebody cut the file.
    pub(super) fn ends_within(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let Ok(metadata) = self.file.metadata() else { return false };
        let len = metadata.len();
        offset_bytes >= len && offset_bytes + len_bytes <= len.next_multiple_of(SECTOR_BYTES)
    }

    /// Gives a range back. False if that can't be done here.
    pub(super) fn punch(&self, offset_bytes: u64, len_bytes: u64) -> Result<bool, StorageError> {
        supported(rustix::fs::fallocate(&self.file, PUNCH, offset_bytes, len_bytes))
    }

    /// Zeroes a range and keeps its room. False if that can't be done here.
    pub(super) fn zero_range(&self, offset_bytes: u64, len_bytes: u64) -> Result<bool, StorageError> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        supported(rustix::fs::fallocate(&self.file, flags, offset_bytes, len_bytes))
    }

    /// Tells a block device that a range isn't needed. Best effort.
    pub(super) fn discard(&self, offset_bytes: u64, len_bytes: u64) {
        let range = [offset_bytes, len_bytes];
        // SAFETY: BLKDISCARD reads two 64-bit numbers.
        let _ = unsafe { libc::ioctl(self.as_raw_fd(), BLKDISCARD, &raw const range) };
    }
}

impl AsFd for FileShared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for FileShared {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// `linux/magic.h`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// `_IO(0x12, 119)` of `linux/fs.h`.
const BLKDISCARD: libc::Ioctl = 0x1277;

fn supported(result: rustix::io::Result<()>) -> Result<bool, StorageError> {
    use rustix::io::Errno;
    match result {
        Ok(()) => Ok(true),
        // EINVAL: a block device, and the range isn't aligned to its blocks.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Turns direct I/O on if it is wanted and can be had, and says what it demands.
fn choose_alignment(
    file: &File,
    path: &Path,
    len_bytes: u64,
    direct: Direct,
) -> Result<Option<Alignment>, OpenError> {
    let no = |what: &str| OpenError::Unusable {
        path: path.into(),
        what: format!("direct I/O was asked for, but {what}; leave it to choose by itself"),
    };
    if direct == Direct::Off {
        return Ok(None);
    }
    let found = match Alignment::of_direct_io(file) {
        Some(found) => found,
        // An old kernel doesn't say: what every disk of today takes.
        None if direct == Direct::On => Alignment { memory_bytes: 4096, offset_bytes: 4096 },
        None => return Ok(None),
    };
    let whole = len_bytes.is_multiple_of(u64::from(found.offset_bytes));
    match direct {
        // With larger device blocks a 512-byte write would be a read-modify-write; the page cache
        // does that better than we do.
        Direct::Auto if u64::from(found.offset_bytes) > SECTOR_BYTES || !whole => return Ok(None),
        Direct::On if !whole => return Err(no("the size isn't a multiple of the device's block")),
        _ => {}
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(|errno| OpenError::File {
        path: path.into(),
        what: "ask for its flags",
        source: errno.into(),
    })?;
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => Ok(Some(found)),
        Err(_) if direct == Direct::Auto => Ok(None),
        Err(_) => Err(no("this file system has none")),
    }
}

/// A common mistake that would show the guest an image's insides.
fn warn_if_qcow2(file: &File, path: &Path) {
    let mut magic = [0; 4];
    if rustix::io::pread(file, &mut magic, 0) == Ok(4) && magic == *b"QFI\xFB" {
        tracing::warn!(path = %path.display(), "this looks like a qcow2 image but is served raw; use --qcow2 for it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::aligned::AlignedBuffer;
    use crate::storage::{IoContextConfig, Operation, StorageCommand, Submission};

    /// On a disk of 4 KiB blocks, a write of one sector reads and writes the whole block. If the guest
    /// writes the whole block at the same time, either order is right for that sector, but the others
    /// must hold the new data.
    #[test]
    fn read_modify_write_does_not_undo_a_write_beside_it() {
        // Beside the test itself, since a temporary directory may be in memory.
        let program = std::env::current_exe().expect("this test");
        let directory = tempfile::tempdir_in(program.parent().expect("folder")).expect("directory");
        let path = directory.path().join("disk.img");
        std::fs::write(&path, [0; 16384]).expect("image");
        let image = Image::open(&path, false, "").expect("open");
        let found = Alignment::of_direct_io(&image.file).expect("direct I/O");
        let flags = rustix::fs::fcntl_getfl(&image.file).expect("flags");
        rustix::fs::fcntl_setfl(&image.file, flags | OFlags::DIRECT).expect("direct");
        let alignment = Some(Alignment { offset_bytes: 4096, ..found });
        let storage = FileStorage::with_alignment(image, &path, false, alignment, FileEngine::Auto);
        let mut context = IoContext::new(IoContextConfig::default()).expect("context");
        let mut queue = storage.open_queue(&mut context).expect("queue");
        let mut memory = AlignedBuffer::new(4096).expect("memory");
        let operation = Operation::Write { fua: false };
        for round in 0..1000_u64 {
            let fill = (round % 255) as u8 + 1;
            memory.bytes().fill(fill);
            let mut waiting = 0;
            let start = memory.bytes().as_mut_ptr();
            // Four times, so that some begin while the worker is between its read and its write.
            for len in [512, 4096, 4096, 4096, 4096] {
                let segments = [libc::iovec { iov_base: start.cast(), iov_len: len as usize }];
                // SAFETY: `memory` outlives the command.
                let command = unsafe { StorageCommand::new(round, operation, 4096, len, &segments) };
                while let Submission::Busy = queue.submit(&mut context, &command) {
                    context.submit_batch();
                    waiting -= context.reap(&mut |_, result| result.expect("write"));
                }
                waiting += 1;
                context.submit_batch();
            }
            while waiting > 0 {
                context.submit_batch();
                waiting -= context.reap(&mut |_, result| result.expect("write"));
            }
            let found = std::fs::read(&path).expect("read");
            assert!(found[4096..8192].iter().all(|&byte| byte == fill), "round {round}");
        }
    }
}
