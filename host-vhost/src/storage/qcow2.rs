//! A qcow2 image, through the crate `imago`. Only worker threads touch it.
//!
//! **What survives what.** imago keeps tables in memory. They are written to the file before a write
//! is acknowledged, once for all writes that a worker took together ([`Backend::settle`]); so the end
//! of this process, SIGKILL included, loses nothing acknowledged. Flush and FUA write them and then
//! `fsync` the image and its data file. For a power failure in between see [`super::power_failure`].
//!
//! **Cancellation** is looked at between pieces of a command, never inside imago, so a table is never
//! left half changed.
//!
//! Backing files and external data files that the image names are opened as it says, so an image is as
//! trusted as the person who serves it. They are not locked.

#![expect(unsafe_code, reason = "copies between the buffer and guest memory")]

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use imago::file::File as ImagoFile;
use imago::format::PreallocateMode;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, FormatDriverBuilder, PermissiveImplicitOpenGate, StorageOpenOptions};

use super::aligned::AlignedBuffer;
use super::command::Operation;
use super::image::Image;
use super::limits::Limits;
use super::lost_flush::LostFlush;
use super::segments::Cursor;
use super::worker::{Backend, Request, SCRATCH_BYTES, WorkerPool, WorkerQueue};
use super::{IoContext, OpenError, ResizeError, Storage, StorageError, StorageQueue, power_failure};

/// See the module.
#[derive(Debug)]
pub struct Qcow2Storage {
    image: Arc<Qcow2Image>,
    pool: Arc<WorkerPool>,
}

#[derive(Debug)]
struct Qcow2Image {
    /// Written only to discard, which imago wants to be alone for.
    access: RwLock<FormatAccess<ImagoFile>>,
    limits: Arc<Limits>,
    lost_flush: LostFlush,
    path: PathBuf,
    /// The same open file description as imago's: keeps the lock while we close.
    held: File,
    /// Data lives in another file.
    external_data: bool,
}

/// Worker threads of an image: more of them mostly wait for imago's locks, and settle fewer writes
/// together.
const WORKERS: usize = 2;

const SECTOR_BYTES: u64 = 512;

impl Qcow2Storage {
    /// Opens and locks an image, and what it names as backing and data files.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(path: &Path, read_only: bool) -> Result<Self, OpenError> {
        let hint = "qemu-img create -f qcow2 -o size=1G";
        let Image { file, .. } = Image::open(path, read_only, hint)?;
        let failed = |what, source| OpenError::File { path: path.into(), what, source };
        let held = file.try_clone().map_err(|error| failed("duplicate its descriptor", error))?;
        if !read_only {
            power_failure::enter(&held, path)?;
        }
        let options = StorageOpenOptions::new().filename(path).write(!read_only);
        let file = ImagoFile::from_open_file(file, options).map_err(|error| failed("look at it", error))?;
        let image = Qcow2::<ImagoFile>::builder(file)
            .write(!read_only)
            .open(PermissiveImplicitOpenGate::default())
            .map_err(|error| failed("open it as qcow2", error))?;
        let external_data = image.requires_external_data_file();
        let access = FormatAccess::new(image);
        let size_bytes = access.size() / SECTOR_BYTES * SECTOR_BYTES;
        if size_bytes == 0 {
            let what = "is an image of size 0; give it one with `qemu-img resize`".into();
            return Err(OpenError::Unusable { path: path.into(), what });
        }
        let image = Arc::new(Qcow2Image {
            access: RwLock::new(access),
            limits: Arc::new(Limits::new(size_bytes, read_only)),
            lost_flush: LostFlush::default(),
            path: path.into(),
            held,
            external_data,
        });
        let pool = Arc::new(WorkerPool::new("qcow2-worker", WORKERS, &image)?);
        Ok(Self { image, pool })
    }
}

impl Storage for Qcow2Storage {
    fn kind(&self) -> &'static str {
        "qcow2"
    }

    fn size_bytes(&self) -> u64 {
        self.image.limits.size_bytes()
    }

    fn read_only(&self) -> bool {
        self.image.limits.read_only
    }

    fn volatile_cache(&self) -> bool {
        !self.image.limits.read_only
    }

    fn preferred_alignment_bytes(&self) -> u32 {
        4096
    }

    fn deallocate_reads_zero(&self) -> bool {
        false
    }

    fn open_queue(&self, _context: &mut IoContext) -> Result<StorageQueue, OpenError> {
        Ok(StorageQueue::Worker(WorkerQueue::new(Arc::clone(&self.pool), Arc::clone(&self.image.limits))))
    }

    fn resize(&self, size_bytes: u64) -> Result<(), ResizeError> {
        let image = &*self.image;
        if image.limits.read_only {
            return Err(ResizeError::ReadOnly);
        }
        if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(ResizeError::Size { size_bytes, what: "not a multiple of 512" });
        }
        if size_bytes < image.limits.size_bytes() {
            return Err(ResizeError::Unsupported(
                "a qcow2 image can't shrink while it is served; stop and use `qemu-img resize --shrink`",
            ));
        }
        let failed = |source| ResizeError::Io { size_bytes, source };
        let access = image.shared();
        access.resize_grow(size_bytes, PreallocateMode::None).map_err(failed)?;
        access.flush().map_err(failed)?;
        access.sync().map_err(failed)?;
        image.limits.set_size_bytes(size_bytes);
        Ok(())
    }
}

impl Qcow2Image {
    fn shared(&self) -> RwLockReadGuard<'_, FormatAccess<ImagoFile>> {
        self.access.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn alone(&self) -> RwLockWriteGuard<'_, FormatAccess<ImagoFile>> {
        self.access.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn flush(&self) -> Result<(), StorageError> {
        self.lost_flush.check()?;
        if self.limits.read_only {
            return Ok(());
        }
        let result = self.flush_and_sync().map_err(StorageError::from);
        self.lost_flush.note(result, &self.path)
    }

    fn flush_and_sync(&self) -> io::Result<()> {
        self.shared().flush()?;
        if self.external_data {
            return self.shared().sync();
        }
        // On our own descriptor: imago would hold up every read and write meanwhile.
        self.held.sync_data()
    }

    /// Reads piece by piece.
    fn read(
        &self,
        request: &Request,
        scratch: &mut AlignedBuffer,
        mut each: impl FnMut(&[u8]) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        for (offset, len) in pieces(request, SCRATCH_BYTES as u64) {
            if request.cancelled() {
                return Err(StorageError::Cancelled);
            }
            let buffer = &mut scratch.bytes()[..len as usize];
            self.shared().read(&mut *buffer, offset)?;
            each(buffer)?;
        }
        Ok(())
    }

    fn write(&self, request: &Request, scratch: &mut AlignedBuffer) -> Result<(), StorageError> {
        let mut cursor = Cursor::new(request.segments());
        for (offset, len) in pieces(request, SCRATCH_BYTES as u64) {
            if request.cancelled() {
                return Err(StorageError::Cancelled);
            }
            let buffer = &mut scratch.bytes()[..len as usize];
            // SAFETY: the segments of a write are readable and alive until we answer.
            unsafe { cursor.gather(buffer) };
            self.shared().write(&*buffer, offset)?;
        }
        Ok(())
    }

    fn zero(&self, request: &Request, deallocate: bool) -> Result<(), StorageError> {
        for (offset, len) in pieces(request, ZERO_STEP_BYTES) {
            if request.cancelled() {
                return Err(StorageError::Cancelled);
            }
            if deallocate {
                match self.alone().discard_to_zero(offset, len) {
                    // Version 2 images.
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                    result => {
                        result?;
                        continue;
                    }
                }
            }
            self.shared().write_zeroes(offset, len)?;
        }
        Ok(())
    }

    fn deallocate(&self, request: &Request) -> Result<(), StorageError> {
        for (offset, len) in pieces(request, ZERO_STEP_BYTES) {
            if request.cancelled() {
                return Err(StorageError::Cancelled);
            }
            match self.alone().discard_to_any(offset, len) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(()),
                result => result?,
            }
        }
        Ok(())
    }
}

/// How much is zeroed or discarded at a time, between looks at cancellation: a whole number of
/// clusters of any size.
const ZERO_STEP_BYTES: u64 = 1 << 30;

/// The range of a request in pieces that end on multiples of `step`.
fn pieces(request: &Request, step: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = request.offset_bytes + request.len_bytes;
    let mut at = request.offset_bytes;
    std::iter::from_fn(move || {
        let start = at;
        at = end.min((at / step + 1) * step);
        (start < end).then_some((start, at - start))
    })
}

impl Backend for Qcow2Image {
    const SETTLES: bool = true;

    fn execute(&self, request: &Request, scratch: &mut AlignedBuffer) -> Result<(), StorageError> {
        let mut cursor = Cursor::new(request.segments());
        match request.operation {
            Operation::Read => self.read(request, scratch, |bytes| {
                // SAFETY: the segments of a read are writable, or null, and alive until we answer.
                unsafe { cursor.scatter(bytes) };
                Ok(())
            }),
            Operation::Compare => self.read(request, scratch, |bytes| {
                // SAFETY: the segments of a compare are readable and alive until we answer.
                let same = unsafe { cursor.equals(bytes) };
                if same { Ok(()) } else { Err(StorageError::Miscompare) }
            }),
            Operation::Verify => self.read(request, scratch, |_| Ok(())),
            Operation::Flush => self.flush(),
            Operation::Deallocate => self.deallocate(request),
            Operation::Write { fua } => {
                self.write(request, scratch)?;
                if fua { self.flush() } else { Ok(()) }
            }
            Operation::WriteZeroes { deallocate, fua } => {
                self.zero(request, deallocate)?;
                if fua { self.flush() } else { Ok(()) }
            }
        }
    }

    /// Writes imago's tables to the file, where they survive this process.
    fn settle(&self) -> Result<(), StorageError> {
        Ok(self.shared().flush()?)
    }
}

impl Drop for Qcow2Image {
    fn drop(&mut self) {
        if !self.limits.read_only && self.flush().is_ok() {
            power_failure::leave(&self.held);
        }
    }
}
