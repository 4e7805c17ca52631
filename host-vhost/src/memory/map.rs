//! Regions and snapshots of them.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::mapping::Mapping;
use super::message::MessageDma;
use super::{HostPointer, MAX_REGIONS};

/// What the device may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Read.
    pub read: bool,
    /// Write.
    pub write: bool,
}

impl Rights {
    /// Read and write.
    pub const READ_WRITE: Self = Self { read: true, write: true };
}

/// One range of guest memory.
#[derive(Debug)]
pub struct Region {
    iova: u64,
    size: u64,
    rights: Rights,
    /// `None`: reached by messages only.
    mapping: Option<Mapping>,
    /// Dropped after the mapping.
    released: ReleaseSignal,
}

/// An eventfd that is written when a region is gone for good.
#[derive(Clone, Debug, Default)]
pub struct ReleaseSignal(Option<Arc<OwnedFd>>);

impl ReleaseSignal {
    /// Signals `eventfd`.
    #[must_use]
    pub fn new(eventfd: Arc<OwnedFd>) -> Self {
        Self(Some(eventfd))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.mapping = None;
        if let ReleaseSignal(Some(eventfd)) = &self.released {
            // A counter that is full wakes its reader just as well.
            let _ = rustix::io::write(&**eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// Why a region can't be added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Size 0, or the range runs over the end of the address space.
    #[error("the range is empty or wraps")]
    BadRange,
    /// Address, offset and size don't go together with pages.
    #[error("the address isn't aligned as its file offset is")]
    Misaligned,
    /// It overlaps another region.
    #[error("the range overlaps a region that is mapped")]
    Overlap,
    /// No region is exactly that range.
    #[error("no region is mapped there with that size")]
    NoSuchRegion,
    /// [`MAX_REGIONS`].
    #[error("more than {MAX_REGIONS} regions")]
    TooMany,
    /// The file ends before the range does. SPDK's client asks for that when its memory is many files, of
    /// which it sends the first.
    #[error(
        "the file has {file_bytes} bytes and the range ends at {end}: the client's memory has to be one file \
         (SPDK's programs: -g)"
    )]
    FileTooShort {
        /// Its size.
        file_bytes: u64,
        /// Where the range would end in it.
        end: u64,
    },
    /// The file can't be mapped.
    #[error("the file can't be mapped: {0}")]
    File(#[from] Errno),
}

impl From<MapError> for Errno {
    fn from(error: MapError) -> Self {
        match error {
            MapError::BadRange | MapError::Misaligned | MapError::FileTooShort { .. } => Self::INVAL,
            MapError::Overlap => Self::EXIST,
            MapError::NoSuchRegion => Self::NOENT,
            MapError::TooMany => Self::NOSPC,
            MapError::File(errno) => errno,
        }
    }
}

impl Region {
    /// A region that is `file` from `offset` on, or without a file one that is reached by messages.
    ///
    /// # Errors
    /// [`MapError::BadRange`], [`MapError::Misaligned`] or [`MapError::File`].
    pub fn new(
        iova: u64,
        size: u64,
        rights: Rights,
        file: Option<(BorrowedFd<'_>, u64)>,
        released: ReleaseSignal,
    ) -> Result<Self, MapError> {
        if size == 0 || iova.checked_add(size - 1).is_none() {
            return Err(MapError::BadRange);
        }
        let mapping = match file {
            None => None,
            Some((file, offset)) => {
                if !iova.is_multiple_of(rustix::param::page_size() as u64) {
                    return Err(MapError::Misaligned);
                }
                Some(Mapping::new(file, offset, size, rights)?)
            }
        };
        Ok(Self { iova, size, rights, mapping, released })
    }

    /// First guest address.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What the device may do with it.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Its mapping; `None` where it is reached by messages.
    #[must_use]
    pub fn mapping(&self) -> Option<&Mapping> {
        self.mapping.as_ref()
    }

    /// Where its first byte is in this process, unless it is reached by messages or poisoned.
    #[must_use]
    pub fn host(&self) -> Option<HostPointer> {
        self.mapping.as_ref().filter(|mapping| !mapping.is_poisoned()).map(Mapping::base)
    }

    fn last(&self) -> u64 {
        self.iova + (self.size - 1)
    }

    fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.iova) < self.size
    }
}

/// All regions at one moment, in order of address. Immutable: a change makes a new one.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    regions: Vec<Arc<Region>>,
    generation: u64,
    messages: Option<Arc<dyn MessageDma>>,
}

impl MemoryMap {
    /// A map without regions, whose regions without file are to be reached through `messages`.
    #[must_use]
    pub fn new(messages: Option<Arc<dyn MessageDma>>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// This map and one region more.
    ///
    /// # Errors
    /// [`MapError::Overlap`] or [`MapError::TooMany`].
    pub fn with(&self, region: Arc<Region>) -> Result<Self, MapError> {
        if self.regions.len() >= MAX_REGIONS as usize {
            return Err(MapError::TooMany);
        }
        let place = self.regions.partition_point(|other| other.last() < region.iova);
        if self.regions.get(place).is_some_and(|next| next.iova <= region.last()) {
            return Err(MapError::Overlap);
        }
        let mut regions = Vec::with_capacity(self.regions.len() + 1);
        regions.extend_from_slice(&self.regions[..place]);
        regions.push(region);
        regions.extend_from_slice(&self.regions[place..]);
        Ok(Self { regions, ..self.clone_empty() })
    }

    /// This map without the region that is exactly that range, and the region.
    ///
    /// # Errors
    /// [`MapError::NoSuchRegion`].
    pub fn without(&self, iova: u64, size: u64) -> Result<(Self, Arc<Region>), MapError> {
        let place = self
            .regions
            .binary_search_by_key(&iova, |region| region.iova)
            .map_err(|_| MapError::NoSuchRegion)?;
        if self.regions[place].size != size {
            return Err(MapError::NoSuchRegion);
        }
        let mut regions = self.regions.clone();
        let region = regions.remove(place);
        Ok((Self { regions, ..self.clone_empty() }, region))
    }

    /// A map without regions that reaches its client the same way.
    #[must_use]
    pub fn clone_empty(&self) -> Self {
        Self { regions: Vec::new(), generation: self.generation, messages: self.messages.clone() }
    }

    /// The region that `address` lies in.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Arc<Region>> {
        let place = self.regions.partition_point(|region| region.last() < address);
        self.regions.get(place).filter(|region| region.contains(address))
    }

    /// The regions, in order of address.
    #[must_use]
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Which of the snapshots of its [`SharedMap`] this is.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How regions without a file are reached.
    #[must_use]
    pub fn messages(&self) -> Option<&Arc<dyn MessageDma>> {
        self.messages.as_ref()
    }

    /// Whether a region's file was truncated: the device has lost memory and has to fail.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.regions.iter().any(|region| region.mapping().is_some_and(Mapping::is_poisoned))
    }
}

/// Where threads find the newest snapshot.
#[derive(Debug, Default)]
pub struct SharedMap {
    generation: AtomicU64,
    current: Mutex<Arc<MemoryMap>>,
}

impl SharedMap {
    /// Without memory.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes `map` the newest snapshot and returns the one before, which other threads may still use.
    pub fn publish(&self, mut map: MemoryMap) -> Arc<MemoryMap> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        map.generation = self.generation.load(Ordering::Relaxed) + 1;
        let generation = map.generation;
        let before = std::mem::replace(&mut *current, Arc::new(map));
        // Under the lock, so a thread that sees the number finds this snapshot or a newer one.
        self.generation.store(generation, Ordering::Release);
        before
    }

    /// The newest snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<MemoryMap> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of the newest snapshot: one load of a cache line that seldom changes.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}
