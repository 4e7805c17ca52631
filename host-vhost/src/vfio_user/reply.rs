//! Replies, typed on one side and bytes on the other.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::protocol::{
    DeviceInfo, DmaUnmap, Header, IoEventFd, IrqInfo, RegionAccess, RegionInfo, RegionIoFds, SparseArea,
    SparseMmapCapability, VersionFixed,
};

/// A reply without its file descriptors.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// No payload: DMA_MAP, SET_IRQS, DEVICE_RESET.
    Done,
    /// The command failed.
    Error(Errno),
    /// VERSION; `json` without NUL.
    Version {
        /// Minor version of major version 0.
        minor: u16,
        /// Capabilities.
        json: &'a str,
    },
    /// DMA_UNMAP: the request over again.
    DmaUnmap(DmaUnmap),
    /// DEVICE_GET_INFO.
    DeviceInfo(DeviceInfo),
    /// DEVICE_GET_REGION_INFO; areas make the capability.
    RegionInfo {
        /// The fixed part.
        info: RegionInfo,
        /// The areas that can be mapped.
        areas: &'a [SparseArea],
    },
    /// DEVICE_GET_REGION_IO_FDS.
    RegionIoFds {
        /// The fixed part.
        info: RegionIoFds,
        /// The entries.
        entries: &'a [IoEventFd],
    },
    /// DEVICE_GET_IRQ_INFO.
    IrqInfo(IrqInfo),
    /// REGION_READ.
    RegionRead {
        /// The request's own words.
        access: RegionAccess,
        /// What was read.
        data: &'a [u8],
    },
    /// REGION_WRITE: the request's own words.
    RegionWrite(RegionAccess),
    /// REGION_WRITE_MULTI: how many writes were done.
    RegionWriteMulti(u64),
}

impl Reply<'_> {
    /// Bytes of the sparse mmap capability with `areas` areas.
    #[must_use]
    pub const fn sparse_capability_bytes(areas: usize) -> usize {
        if areas == 0 { 0 } else { size_of::<SparseMmapCapability>() + areas * size_of::<SparseArea>() }
    }

    /// Replaces `out` by the reply to `request`.
    pub fn encode(&self, request: &Header, out: &mut Vec<u8>) {
        out.clear();
        // The header is put in at the end, when the length is known.
        out.extend_from_slice(Header::default().as_bytes());
        match self {
            Self::Done | Self::Error(_) => {}
            Self::Version { minor, json } => {
                let fixed = VersionFixed { major: 0.into(), minor: (*minor).into() };
                out.extend_from_slice(fixed.as_bytes());
                out.extend_from_slice(json.as_bytes());
                out.push(0);
            }
            Self::DmaUnmap(unmap) => out.extend_from_slice(unmap.as_bytes()),
            Self::DeviceInfo(info) => out.extend_from_slice(info.as_bytes()),
            Self::RegionInfo { info, areas } => {
                out.extend_from_slice(info.as_bytes());
                if !areas.is_empty() {
                    let capability = SparseMmapCapability {
                        id: SparseMmapCapability::ID.into(),
                        version: 1.into(),
                        next: 0.into(),
                        nr_areas: u32::try_from(areas.len()).unwrap_or(u32::MAX).into(),
                        reserved: 0.into(),
                    };
                    out.extend_from_slice(capability.as_bytes());
                    out.extend_from_slice(areas.as_bytes());
                }
            }
            Self::RegionIoFds { info, entries } => {
                out.extend_from_slice(info.as_bytes());
                out.extend_from_slice(entries.as_bytes());
            }
            Self::IrqInfo(info) => out.extend_from_slice(info.as_bytes()),
            Self::RegionRead { access, data } => {
                out.extend_from_slice(access.as_bytes());
                out.extend_from_slice(data);
            }
            Self::RegionWrite(access) => out.extend_from_slice(access.as_bytes()),
            Self::RegionWriteMulti(count) => out.extend_from_slice(&count.to_le_bytes()),
        }
        let header = match self {
            Self::Error(errno) => request.error_reply(*errno),
            _ => request.reply(out.len() - size_of::<Header>()),
        };
        out[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    }
}
