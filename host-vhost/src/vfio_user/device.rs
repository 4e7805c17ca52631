//! What a session needs of a device.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::protocol::SparseArea;
use super::request::SetIrqs;
use crate::memory::Region;

/// A PCI device as a vfio-user client sees it.
///
/// No method may wait for the client, and so none may touch guest memory that is reached by messages: the
/// client may be unable to answer before it has our reply. What a register write starts is done afterwards.
pub trait Device {
    /// What is at region `index` (0 to 5 BARs, 6 ROM, 7 configuration space, 8 VGA).
    fn region(&self, index: u32) -> RegionDescription<'_>;

    /// How many interrupts of type `index` there are, and what they can do.
    fn interrupts(&self, index: u32) -> InterruptDescription;

    /// The eventfds that stand for writes to parts of a region.
    fn io_eventfds(&self, region: u32) -> Vec<IoEventFdDescription<'_>>;

    /// Reads a region. The range lies inside it.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]);

    /// Writes a region. The range lies inside it.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]);

    /// Connects, masks or triggers interrupts; as many `fds` as `request` speaks of.
    ///
    /// # Errors
    /// The errno to answer.
    fn set_irqs(&mut self, request: &SetIrqs<'_>, fds: Vec<OwnedFd>) -> Result<(), Errno>;

    /// A region was added to the session's [`SharedMap`](crate::memory::SharedMap), where views find it.
    fn memory_added(&mut self, region: &Region) {
        let _ = region;
    }

    /// Regions were taken out of the map. Every view has to go over to the newest snapshot and let go of
    /// earlier ones, and whoever sleeps with a view has to be woken to do so: the session answers the client
    /// when the last snapshot with these regions is gone *and* the device is done.
    #[must_use]
    fn memory_removed(&mut self, ranges: &[MemoryRange], ticket: Ticket) -> Progress;

    /// Resets the device (DEVICE_RESET).
    #[must_use]
    fn reset(&mut self, ticket: Ticket) -> Progress;
}

/// Names an operation that a device finishes later, by
/// [`Session::finish`](super::server::Session::finish).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// Whether an operation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    Done,
    /// The device will finish the ticket.
    Later,
}

/// A range of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First guest address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
}

impl From<&Arc<Region>> for MemoryRange {
    fn from(region: &Arc<Region>) -> Self {
        Self { iova: region.iova(), size: region.size() }
    }
}

/// A region.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionDescription<'a> {
    /// Bytes; 0 where there is none.
    pub size: u64,
    /// Can be read.
    pub readable: bool,
    /// Can be written.
    pub writable: bool,
    /// What the client may map.
    pub mapping: Option<RegionMapping<'a>>,
}

/// What a client may map of a region. It can't be taken back.
#[derive(Clone, Copy, Debug)]
pub struct RegionMapping<'a> {
    /// The file that has the bytes of the region, each at its offset in the region plus `file_offset`.
    pub file: BorrowedFd<'a>,
    /// Where the region starts in the file.
    pub file_offset: u64,
    /// The parts that may be mapped. At most one: SPDK's client wants a file descriptor for each.
    pub areas: &'a [SparseArea],
}

/// An interrupt type.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterruptDescription {
    /// How many.
    pub count: u32,
    /// Bits of [`IrqInfo`](super::protocol::IrqInfo).
    pub flags: u32,
}

/// An eventfd in the place of writes.
#[derive(Clone, Copy, Debug)]
pub struct IoEventFdDescription<'a> {
    /// First byte in the region.
    pub offset: u64,
    /// Bytes of the write; 0 for any.
    pub size: u64,
    /// The eventfd; several may share one.
    pub eventfd: BorrowedFd<'a>,
}
