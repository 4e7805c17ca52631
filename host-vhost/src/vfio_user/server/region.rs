//! Regions: what they are, and accesses to them.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::Session;
use crate::vfio_user::connection::Lost;
use crate::vfio_user::device::{Device, RegionDescription};
use crate::vfio_user::protocol::{
    Header, IoEventFd, MAX_SOCKET_FDS, REGION_COUNT, RegionAccess, RegionInfo, RegionIoFds, RegionWriteOne,
};
use crate::vfio_user::reply::Reply;

impl Session {
    pub(super) fn region_info(
        &mut self,
        header: &Header,
        index: u32,
        argsz: u32,
        region: RegionDescription<'_>,
    ) -> Result<(), Lost> {
        let areas = region.mapping.map_or(&[][..], |mapping| mapping.areas);
        let full = size_of::<RegionInfo>() + Reply::sparse_capability_bytes(areas.len());
        let fits = argsz as usize >= full;
        let mut flags = 0;
        if region.readable {
            flags |= RegionInfo::READ;
        }
        if region.writable {
            flags |= RegionInfo::WRITE;
        }
        let mut info = RegionInfo {
            argsz: u32::try_from(full).unwrap_or(u32::MAX).into(),
            index: index.into(),
            size: region.size.into(),
            ..RegionInfo::default()
        };
        // A reply without room for the areas only says how much room they take. The client asks again, and
        // a file descriptor with the first reply would be one too many.
        match region.mapping {
            Some(mapping) if fits => {
                flags |= RegionInfo::MMAP;
                if !areas.is_empty() {
                    flags |= RegionInfo::CAPS;
                    info.cap_offset = u32::try_from(size_of::<RegionInfo>()).unwrap_or(0).into();
                }
                info.flags = flags.into();
                info.offset = mapping.file_offset.into();
                self.answer(header, &Reply::RegionInfo { info, areas }, &[mapping.file])
            }
            _ => {
                info.flags = flags.into();
                self.answer(header, &Reply::RegionInfo { info, areas: &[] }, &[])
            }
        }
    }

    pub(super) fn region_io_fds(
        &mut self,
        header: &Header,
        index: u32,
        argsz: u32,
        device: &impl Device,
    ) -> Result<(), Lost> {
        // There is no asking for more, so what doesn't fit into one message goes on being written by message.
        let max_fds = self.client.map_or(1, |client| client.max_msg_fds) as usize;
        let max_fds = max_fds.min(MAX_SOCKET_FDS);
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        let mut entries = Vec::new();
        for found in device.io_eventfds(index) {
            let known = fds.iter().position(|fd| fd.as_raw_fd() == found.eventfd.as_raw_fd());
            let place = match known {
                Some(place) => place,
                None if fds.len() < max_fds => {
                    fds.push(found.eventfd);
                    fds.len() - 1
                }
                None => continue,
            };
            entries.push(IoEventFd {
                offset: found.offset.into(),
                size: found.size.into(),
                fd_index: u32::try_from(place).unwrap_or(u32::MAX).into(),
                ..IoEventFd::default()
            });
        }
        let full = size_of::<RegionIoFds>() + size_of::<IoEventFd>() * entries.len();
        let info = RegionIoFds {
            argsz: u32::try_from(full).unwrap_or(u32::MAX).into(),
            flags: 0.into(),
            index: index.into(),
            count: u32::try_from(entries.len()).unwrap_or(u32::MAX).into(),
        };
        if argsz as usize >= full {
            self.answer(header, &Reply::RegionIoFds { info, entries: &entries }, &fds)
        } else {
            self.answer(header, &Reply::RegionIoFds { info, entries: &[] }, &[])
        }
    }

    pub(super) fn region_read(
        &mut self,
        header: &Header,
        region: u32,
        offset: u64,
        count: u32,
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        self.statistics.region_reads += 1;
        let mut data = std::mem::take(&mut self.writer.data);
        data.clear();
        data.resize(count as usize, 0xff);
        let description = device.region(region);
        if description.readable && inside(offset, count.into(), description.size) {
            device.region_read(region, offset, &mut data);
        }
        let access = RegionAccess { offset: offset.into(), region: region.into(), count: count.into() };
        let sent = self.answer(header, &Reply::RegionRead { access, data: &data }, &[]);
        self.writer.data = data;
        sent
    }

    pub(super) fn region_write_multi(
        &mut self,
        header: &Header,
        writes: &[RegionWriteOne],
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        if writes.iter().any(|write| write.region.get() >= REGION_COUNT) {
            return self.fail(header, Errno::INVAL);
        }
        for write in writes {
            self.statistics.region_writes += 1;
            let data = &write.data[..write.count.get() as usize];
            write_region(device, write.region.get(), write.offset.get(), data);
        }
        self.answer(header, &Reply::RegionWriteMulti(writes.len() as u64), &[])
    }
}

pub(super) fn write_region(device: &mut impl Device, region: u32, offset: u64, data: &[u8]) {
    let description = device.region(region);
    if description.writable && inside(offset, data.len() as u64, description.size) {
        device.region_write(region, offset, data);
    }
}

fn inside(offset: u64, count: u64, size: u64) -> bool {
    offset.checked_add(count).is_some_and(|end| end <= size)
}
