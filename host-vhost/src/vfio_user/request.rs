//! Requests as they leave the wire: checked for shape, with nothing left to find out about lengths.
//!
//! What a value means for a device (whether a region exists, whether an address range is free) is decided in
//! [`super::server`]. A request that fails here is answered with the errno it fails with; the stream stays in
//! step because messages are framed by their size alone.

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::protocol::{
    Command, DeviceInfo, DmaAccess, DmaMap, DmaUnmap, Header, IrqInfo, IrqSet, MAX_DATA_BYTES, RegionAccess,
    RegionInfo, RegionIoFds, RegionWriteOne, VersionFixed,
};

/// A command and its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// VERSION.
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
        /// JSON without a NUL at its end; empty where the message has none.
        json: &'a [u8],
    },
    /// DMA_MAP.
    DmaMap {
        /// The region's place and rights.
        map: DmaMap,
        /// Whether a file came with it.
        with_file: bool,
    },
    /// DMA_UNMAP of one range.
    DmaUnmap(DmaUnmap),
    /// DMA_UNMAP of everything.
    DmaUnmapAll(DmaUnmap),
    /// DEVICE_GET_INFO.
    DeviceGetInfo,
    /// DEVICE_GET_REGION_INFO.
    GetRegionInfo {
        /// The region.
        index: u32,
        /// Bytes that the reply's payload may have, at least the fixed part.
        argsz: u32,
    },
    /// DEVICE_GET_REGION_IO_FDS.
    GetRegionIoFds {
        /// The region.
        index: u32,
        /// Bytes that the reply's payload may have, at least the fixed part.
        argsz: u32,
    },
    /// DEVICE_GET_IRQ_INFO.
    GetIrqInfo {
        /// The interrupt type.
        index: u32,
    },
    /// DEVICE_SET_IRQS.
    SetIrqs(SetIrqs<'a>),
    /// REGION_READ.
    RegionRead {
        /// The region.
        region: u32,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`MAX_DATA_BYTES`].
        count: u32,
    },
    /// REGION_WRITE.
    RegionWrite {
        /// The region.
        region: u32,
        /// First byte.
        offset: u64,
        /// What to write.
        data: &'a [u8],
    },
    /// REGION_WRITE_MULTI; every count is at most 8.
    RegionWriteMulti(&'a [RegionWriteOne]),
    /// DEVICE_RESET.
    DeviceReset,
    /// DMA_READ, which only a client gets.
    DmaRead {
        /// First guest address.
        address: u64,
        /// Bytes, at most [`MAX_DATA_BYTES`].
        count: u32,
    },
    /// DMA_WRITE, which only a client gets.
    DmaWrite {
        /// First guest address.
        address: u64,
        /// What to write.
        data: &'a [u8],
    },
}

/// What SET_IRQS does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs<'a> {
    /// The interrupt type.
    pub index: u32,
    /// First interrupt.
    pub start: u32,
    /// Number of interrupts.
    pub count: u32,
    /// The action.
    pub action: IrqAction,
    /// Which interrupts of the range it applies to, or which eventfds it is connected with.
    pub data: IrqData<'a>,
}

/// The action of SET_IRQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Mask.
    Mask,
    /// Unmask.
    Unmask,
    /// Trigger.
    Trigger,
}

/// The data of SET_IRQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData<'a> {
    /// The whole range; a count of 0 with [`IrqAction::Trigger`] switches the interrupt type off.
    None,
    /// The interrupts whose byte isn't 0.
    Bool(&'a [u8]),
    /// As many eventfds as interrupts came with the message.
    EventFds,
    /// No eventfd came: those of the range are taken away.
    NoEventFds,
}

impl<'a> Request<'a> {
    /// Parses a command. `payload` is what follows the header, `fd_count` the number of file descriptors that
    /// came with it.
    ///
    /// # Errors
    /// The errno to answer: EOPNOTSUPP for a command that nobody knows, EINVAL for one of wrong shape.
    pub fn parse(header: &Header, payload: &'a [u8], fd_count: usize) -> Result<Self, Errno> {
        match header.command_code() {
            Command::VERSION => parse_version(payload),
            Command::DMA_MAP => parse_dma_map(payload, fd_count),
            Command::DMA_UNMAP => parse_dma_unmap(payload),
            Command::DEVICE_GET_INFO => {
                let info: DeviceInfo = prefix(payload)?;
                at_least::<DeviceInfo>(info.argsz.get())?;
                Ok(Self::DeviceGetInfo)
            }
            Command::DEVICE_GET_REGION_INFO => {
                let info: RegionInfo = prefix(payload)?;
                at_least::<RegionInfo>(info.argsz.get())?;
                Ok(Self::GetRegionInfo { index: info.index.get(), argsz: info.argsz.get() })
            }
            Command::DEVICE_GET_REGION_IO_FDS => {
                let info: RegionIoFds = prefix(payload)?;
                at_least::<RegionIoFds>(info.argsz.get())?;
                if info.flags.get() != 0 || info.count.get() != 0 {
                    return Err(Errno::INVAL);
                }
                Ok(Self::GetRegionIoFds { index: info.index.get(), argsz: info.argsz.get() })
            }
            Command::DEVICE_GET_IRQ_INFO => {
                let info: IrqInfo = prefix(payload)?;
                at_least::<IrqInfo>(info.argsz.get())?;
                Ok(Self::GetIrqInfo { index: info.index.get() })
            }
            Command::DEVICE_SET_IRQS => parse_set_irqs(payload, fd_count).map(Self::SetIrqs),
            Command::REGION_READ => {
                let access: RegionAccess = whole(payload)?;
                let count = data_count(u64::from(access.count.get()))?;
                Ok(Self::RegionRead { region: access.region.get(), offset: access.offset.get(), count })
            }
            Command::REGION_WRITE => {
                let (access, data) = RegionAccess::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
                matches_count(u64::from(access.count.get()), data)?;
                Ok(Self::RegionWrite { region: access.region.get(), offset: access.offset.get(), data })
            }
            Command::REGION_WRITE_MULTI => parse_write_multi(payload),
            Command::DEVICE_RESET if payload.is_empty() => Ok(Self::DeviceReset),
            Command::DEVICE_RESET => Err(Errno::INVAL),
            Command::DMA_READ => {
                let access: DmaAccess = whole(payload)?;
                Ok(Self::DmaRead { address: access.address.get(), count: data_count(access.count.get())? })
            }
            Command::DMA_WRITE => {
                let (access, data) = DmaAccess::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
                matches_count(access.count.get(), data)?;
                Ok(Self::DmaWrite { address: access.address.get(), data })
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

fn parse_version(payload: &[u8]) -> Result<Request<'_>, Errno> {
    let (fixed, rest) = VersionFixed::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
    let json = match rest {
        [] => rest,
        // A NUL ends the text wherever it stands; some clients send none.
        _ => rest.split(|byte| *byte == 0).next().unwrap_or(rest),
    };
    Ok(Request::Version { major: fixed.major.get(), minor: fixed.minor.get(), json })
}

fn parse_dma_map(payload: &[u8], fd_count: usize) -> Result<Request<'_>, Errno> {
    let map: DmaMap = whole(payload)?;
    at_least::<DmaMap>(map.argsz.get())?;
    let flags = map.flags.get();
    if flags & !(DmaMap::READ | DmaMap::WRITE | DmaMap::MMAP | DmaMap::FILE_IO) != 0 || fd_count > 1 {
        return Err(Errno::INVAL);
    }
    let with_file = fd_count == 1;
    if !with_file && flags & (DmaMap::MMAP | DmaMap::FILE_IO) != 0 {
        return Err(Errno::INVAL);
    }
    Ok(Request::DmaMap { map, with_file })
}

/// A client may attach the file of the region; it is of no use and closed with the message.
fn parse_dma_unmap(payload: &[u8]) -> Result<Request<'_>, Errno> {
    let (unmap, rest) = DmaUnmap::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
    at_least::<DmaUnmap>(unmap.argsz.get())?;
    match unmap.flags.get() {
        DmaUnmap::GET_DIRTY_BITMAP => Err(Errno::OPNOTSUPP),
        _ if !rest.is_empty() => Err(Errno::INVAL),
        0 => Ok(Request::DmaUnmap(unmap)),
        DmaUnmap::ALL if unmap.address.get() == 0 && unmap.size.get() == 0 => Ok(Request::DmaUnmapAll(unmap)),
        _ => Err(Errno::INVAL),
    }
}

fn parse_set_irqs(payload: &[u8], fd_count: usize) -> Result<SetIrqs<'_>, Errno> {
    let (set, rest) = IrqSet::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
    at_least::<IrqSet>(set.argsz.get())?;
    let (start, count) = (set.start.get(), set.count.get());
    if start.checked_add(count).is_none() {
        return Err(Errno::INVAL);
    }
    let flags = set.flags.get();
    let action = match flags & !(IrqSet::DATA_NONE | IrqSet::DATA_BOOL | IrqSet::DATA_EVENTFD) {
        IrqSet::ACTION_MASK => IrqAction::Mask,
        IrqSet::ACTION_UNMASK => IrqAction::Unmask,
        IrqSet::ACTION_TRIGGER => IrqAction::Trigger,
        _ => return Err(Errno::INVAL),
    };
    let data = match flags & (IrqSet::DATA_NONE | IrqSet::DATA_BOOL | IrqSet::DATA_EVENTFD) {
        IrqSet::DATA_NONE if rest.is_empty() && fd_count == 0 => IrqData::None,
        IrqSet::DATA_BOOL if rest.len() == count as usize && fd_count == 0 => IrqData::Bool(rest),
        IrqSet::DATA_EVENTFD if rest.is_empty() && fd_count == 0 => IrqData::NoEventFds,
        IrqSet::DATA_EVENTFD if rest.is_empty() && fd_count == count as usize => IrqData::EventFds,
        _ => return Err(Errno::INVAL),
    };
    // Only "none, trigger, from 0" means something with no interrupt at all.
    if count == 0 && !(matches!(data, IrqData::None) && action == IrqAction::Trigger && start == 0) {
        return Err(Errno::INVAL);
    }
    Ok(SetIrqs { index: set.index.get(), start, count, action, data })
}

/// QEMU always sends its whole table, so more than `count` entries may follow.
fn parse_write_multi(payload: &[u8]) -> Result<Request<'_>, Errno> {
    let (count, rest) = payload.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
    let count = usize::try_from(u64::from_le_bytes(*count)).map_err(|_| Errno::INVAL)?;
    let (writes, _) =
        <[RegionWriteOne]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Errno::INVAL)?;
    if writes.iter().any(|write| write.count.get() > 8) {
        return Err(Errno::INVAL);
    }
    Ok(Request::RegionWriteMulti(writes))
}

/// A structure that is the whole payload.
fn whole<T: FromBytes>(payload: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(payload).map_err(|_| Errno::INVAL)
}

/// A structure that the payload starts with: queries may be padded to the length of the reply.
fn prefix<T: FromBytes>(payload: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(payload).map(|(value, _)| value).map_err(|_| Errno::INVAL)
}

fn at_least<T>(argsz: u32) -> Result<(), Errno> {
    if (argsz as usize) < size_of::<T>() { Err(Errno::INVAL) } else { Ok(()) }
}

fn data_count(count: u64) -> Result<u32, Errno> {
    match u32::try_from(count) {
        Ok(count) if count <= MAX_DATA_BYTES => Ok(count),
        _ => Err(Errno::INVAL),
    }
}

fn matches_count(count: u64, data: &[u8]) -> Result<(), Errno> {
    if u64::from(data_count(count)?) == data.len() as u64 { Ok(()) } else { Err(Errno::INVAL) }
}
