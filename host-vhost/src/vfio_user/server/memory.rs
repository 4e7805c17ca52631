//! Guest memory that the client lends and takes back.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::{PendingReply, Session};
use crate::memory::{MapError, Region, ReleaseSignal, Rights};
use crate::vfio_user::connection::Lost;
use crate::vfio_user::device::{Device, MemoryRange, Progress};
use crate::vfio_user::protocol::{DmaMap, DmaUnmap, Header};

impl Session {
    pub(super) fn map(
        &mut self,
        map: &DmaMap,
        fds: Vec<OwnedFd>,
        device: &mut impl Device,
    ) -> Result<(), MapError> {
        let flags = map.flags.get();
        let rights = Rights { read: flags & DmaMap::READ != 0, write: flags & DmaMap::WRITE != 0 };
        let (iova, size) = (map.address.get(), map.size.get());
        let released = ReleaseSignal::new(Arc::clone(&self.release));
        let file = fds.first().map(|file| (file.as_fd(), map.offset.get()));
        // A file that is meant to be read and written may be one that can't be mapped.
        let region = match Region::new(iova, size, rights, file, released.clone()) {
            Err(_) if flags & DmaMap::FILE_IO != 0 => Region::new(iova, size, rights, None, released)?,
            other => other?,
        };
        let region = Arc::new(region);
        let current = self.memory.current();
        self.memory.publish(current.with(Arc::clone(&region))?);
        device.memory_added(&region);
        Ok(())
    }

    pub(super) fn unmap(
        &mut self,
        header: &Header,
        unmap: DmaUnmap,
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        let (iova, size) = (unmap.address.get(), unmap.size.get());
        let removed = if size == 0 {
            Err(Errno::INVAL)
        } else {
            self.memory.current().without(iova, size).map_err(Errno::from)
        };
        match removed {
            Ok((map, region)) => {
                self.memory.publish(map);
                self.remove(header, unmap, vec![region], device)
            }
            Err(errno) => self.answer_in_order(header, None, Vec::new(), PendingReply::Error(errno)),
        }
    }

    pub(super) fn unmap_all(
        &mut self,
        header: &Header,
        unmap: DmaUnmap,
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        let current = self.memory.current();
        self.memory.publish(current.clone_empty());
        let regions = current.regions().to_vec();
        drop(current);
        self.remove(header, unmap, regions, device)
    }

    /// Answers an unmap once the device is done and nobody holds the regions any more.
    fn remove(
        &mut self,
        header: &Header,
        unmap: DmaUnmap,
        regions: Vec<Arc<Region>>,
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        let ranges: Vec<_> = regions.iter().map(MemoryRange::from).collect();
        let weak = regions.iter().map(Arc::downgrade).collect();
        drop(regions);
        let ticket = self.ticket();
        let waits = match device.memory_removed(&ranges, ticket) {
            Progress::Done => None,
            Progress::Later => Some(ticket),
        };
        self.answer_in_order(header, waits, weak, PendingReply::Unmapped(unmap))
    }
}
