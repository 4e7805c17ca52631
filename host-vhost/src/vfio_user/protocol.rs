//! The layouts of vfio-user messages and their number spaces: names only, no behaviour.
//!
//! Sources: the vfio-user specification (version 0.0, with the sparse area and interrupt structures of
//! Linux's `vfio.h`), checked against what QEMU 11, libvfio-user and the `vfio_user` crate send. Everything is
//! little-endian: the specification says "of the host", and both sides share one.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

/// Bytes of the header that starts every message.
pub const HEADER_BYTES: usize = 16;

/// The most data one message moves (`max_data_xfer_size`). Larger replies to DMA_READ hang QEMU, whose socket
/// buffer holds about 208 KiB.
pub const MAX_DATA_BYTES: u32 = 64 * 1024;

/// The largest message that is taken in. A larger one is answered with EMSGSIZE and passed over.
pub const MAX_MESSAGE_BYTES: usize = 128 * 1024;

/// File descriptors that a server takes in one message (`max_msg_fds`).
pub const MAX_MESSAGE_FDS: usize = 16;

/// File descriptors that Linux passes in one message (SCM_MAX_FD); our own client takes that many.
pub const MAX_SOCKET_FDS: usize = 253;

/// Regions of a PCI device: six BARs, ROM, configuration space, VGA.
pub const REGION_COUNT: u32 = 9;

/// Index of the configuration space region.
pub const CONFIG_REGION: u32 = 7;

/// Interrupt types of a PCI device: INTx, MSI, MSI-X, error, request.
pub const IRQ_INDEX_COUNT: u32 = 5;

/// What a message asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(pub u16);

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Command {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }
        impl std::fmt::Debug for Command {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.0 {
                    $($value => f.write_str(stringify!($name)),)*
                    other => write!(f, "COMMAND_{other}"),
                }
            }
        }
    };
}

commands! {
    /// Negotiates version and capabilities; the first message.
    VERSION = 1;
    /// Adds a DMA region.
    DMA_MAP = 2;
    /// Removes DMA regions.
    DMA_UNMAP = 3;
    /// Asks for the counts of regions and interrupts.
    DEVICE_GET_INFO = 4;
    /// Asks for a region's size, flags and mappable areas.
    DEVICE_GET_REGION_INFO = 5;
    /// Asks for a region's ioeventfds.
    DEVICE_GET_REGION_IO_FDS = 6;
    /// Asks for an interrupt type's count and flags.
    DEVICE_GET_IRQ_INFO = 7;
    /// Connects, masks or triggers interrupts.
    DEVICE_SET_IRQS = 8;
    /// Reads a region.
    REGION_READ = 9;
    /// Writes a region.
    REGION_WRITE = 10;
    /// Reads guest memory; from server to client.
    DMA_READ = 11;
    /// Writes guest memory; from server to client.
    DMA_WRITE = 12;
    /// Resets the device.
    DEVICE_RESET = 13;
    /// Up to 8 bytes into each of several places.
    REGION_WRITE_MULTI = 15;
}

/// The header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Chosen by who sends a command, repeated in the reply. Says nothing else: one client always sends 0.
    pub message_id: U16,
    /// [`Command`].
    pub command: U16,
    /// Bytes of the whole message, header included.
    pub message_size: U32,
    /// Message type in bits 3:0, [`Header::NO_REPLY`], [`Header::ERROR`].
    pub flags: U32,
    /// An errno, in a reply with [`Header::ERROR`].
    pub error: U32,
}

impl Header {
    /// The bits of `flags` that hold the message type.
    pub const TYPE_MASK: u32 = 0xf;
    /// Message type: a command.
    pub const TYPE_COMMAND: u32 = 0;
    /// Message type: a reply.
    pub const TYPE_REPLY: u32 = 1;
    /// The sender wants no reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The command failed.
    pub const ERROR: u32 = 1 << 5;

    /// A command's header.
    #[must_use]
    pub fn command(message_id: u16, command: Command, payload_bytes: usize) -> Self {
        Self {
            message_id: message_id.into(),
            command: command.0.into(),
            message_size: message_bytes(payload_bytes),
            flags: Self::TYPE_COMMAND.into(),
            error: 0.into(),
        }
    }

    /// The header of the reply to `self`.
    #[must_use]
    pub fn reply(&self, payload_bytes: usize) -> Self {
        Self {
            message_id: self.message_id,
            command: self.command,
            message_size: message_bytes(payload_bytes),
            flags: Self::TYPE_REPLY.into(),
            error: 0.into(),
        }
    }

    /// The whole reply that says that `self` failed. Clients take errno 0 for success, so it becomes EIO.
    #[must_use]
    pub fn error_reply(&self, errno: rustix::io::Errno) -> Self {
        let raw = match errno.raw_os_error() {
            0 => rustix::io::Errno::IO.raw_os_error(),
            raw => raw,
        };
        Self {
            flags: (Self::TYPE_REPLY | Self::ERROR).into(),
            error: raw.unsigned_abs().into(),
            ..self.reply(0)
        }
    }

    /// The command.
    #[must_use]
    pub fn command_code(&self) -> Command {
        Command(self.command.get())
    }

    /// The message type bits.
    #[must_use]
    pub fn message_type(&self) -> u32 {
        self.flags.get() & Self::TYPE_MASK
    }

    /// Whether the sender wants no reply.
    #[must_use]
    pub fn no_reply(&self) -> bool {
        self.flags.get() & Self::NO_REPLY != 0
    }

    /// What a reply says of its command.
    ///
    /// # Errors
    /// The errno of an error reply; EIO where it has none.
    pub fn result(&self) -> Result<(), rustix::io::Errno> {
        if self.flags.get() & Self::ERROR == 0 {
            return Ok(());
        }
        match i32::try_from(self.error.get()) {
            Ok(raw @ 1..=4095) => Err(rustix::io::Errno::from_raw_os_error(raw)),
            _ => Err(rustix::io::Errno::IO),
        }
    }
}

fn message_bytes(payload_bytes: usize) -> U32 {
    U32::new(u32::try_from(HEADER_BYTES + payload_bytes).unwrap_or(u32::MAX))
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// The fixed part of VERSION, both ways; JSON follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct VersionFixed {
    /// Major version.
    pub major: U16,
    /// Minor version.
    pub minor: U16,
}

/// DMA_MAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: U32,
    /// Bits [`DmaMap::READ`] and the like.
    pub flags: U32,
    /// First byte in the file that comes with the message.
    pub offset: U64,
    /// First guest address.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

/// DMA_UNMAP, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes that the reply's payload may have.
    pub argsz: U32,
    /// Bit [`DmaUnmap::ALL`].
    pub flags: U32,
    /// First guest address.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

/// DEVICE_GET_INFO, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this structure, or more.
    pub argsz: U32,
    /// Bits [`DeviceInfo::RESET`] and [`DeviceInfo::PCI`].
    pub flags: U32,
    /// Number of regions.
    pub num_regions: U32,
    /// Number of interrupt types.
    pub num_irqs: U32,
}

/// DEVICE_GET_REGION_INFO, both ways; capabilities follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// Request: bytes that the reply's payload may have; reply: bytes that a full one has.
    pub argsz: U32,
    /// Bits [`RegionInfo::READ`] and the like.
    pub flags: U32,
    /// The region.
    pub index: U32,
    /// Where capabilities start, from the start of this structure; 0 where there are none.
    pub cap_offset: U32,
    /// Bytes of the region.
    pub size: U64,
    /// Where the region starts in the file that comes with the reply.
    pub offset: U64,
}

/// The capability "sparse mmap" up to its areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct SparseMmapCapability {
    /// 1.
    pub id: U16,
    /// 1.
    pub version: U16,
    /// Offset of the next capability, 0 for none.
    pub next: U32,
    /// Areas that follow.
    pub nr_areas: U32,
    /// 0.
    pub reserved: U32,
}

/// One mappable area of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct SparseArea {
    /// First byte in the region.
    pub offset: U64,
    /// Bytes.
    pub size: U64,
}

/// DEVICE_GET_REGION_IO_FDS, both ways; [`IoEventFd`]s follow in the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionIoFds {
    /// Request: bytes that the reply's payload may have; reply: bytes that a full one has.
    pub argsz: U32,
    /// 0.
    pub flags: U32,
    /// The region.
    pub index: U32,
    /// Entries; 0 in the request.
    pub count: U32,
}

/// One ioeventfd. The specification's text has 40 bytes with `datamatch` at 32; libvfio-user, and so
/// SPDK, has these 48. The part in use is the same, and a client takes the distance from argsz and count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct IoEventFd {
    /// First byte in the region.
    pub offset: U64,
    /// Bytes; 0 for writes of any width.
    pub size: U64,
    /// Which of the reply's file descriptors.
    pub fd_index: U32,
    /// 0, an ioeventfd.
    pub kind: U32,
    /// KVM_IOEVENTFD flags; always 0 here.
    pub flags: U32,
    /// Not in use.
    pub shadow_mem_fd_index: U32,
    /// Not in use.
    pub shadow_offset: U64,
    /// Not in use.
    pub datamatch: U64,
}

/// DEVICE_GET_IRQ_INFO, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this structure, or more.
    pub argsz: U32,
    /// Bits [`IrqInfo::EVENTFD`] and the like.
    pub flags: U32,
    /// The interrupt type.
    pub index: U32,
    /// Interrupts of that type.
    pub count: U32,
}

/// The fixed part of DEVICE_SET_IRQS; one byte for each interrupt follows where the data is boolean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this structure and what follows.
    pub argsz: U32,
    /// One data bit and one action bit.
    pub flags: U32,
    /// The interrupt type.
    pub index: U32,
    /// First interrupt.
    pub start: U32,
    /// Number of interrupts.
    pub count: U32,
}

/// REGION_READ and REGION_WRITE, both ways; data follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionAccess {
    /// First byte in the region.
    pub offset: U64,
    /// The region.
    pub region: U32,
    /// Bytes of data.
    pub count: U32,
}

/// One write of REGION_WRITE_MULTI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionWriteOne {
    /// First byte in the region.
    pub offset: U64,
    /// The region.
    pub region: U32,
    /// Bytes, at most 8.
    pub count: U32,
    /// The data, from its first byte on.
    pub data: [u8; 8],
}

/// DMA_READ and DMA_WRITE, both ways; data follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaAccess {
    /// First guest address.
    pub address: U64,
    /// Bytes of data.
    pub count: U64,
}

const _: () = {
    assert!(size_of::<VersionFixed>() == 4);
    assert!(size_of::<DmaMap>() == 32);
    assert!(size_of::<DmaUnmap>() == 24);
    assert!(size_of::<DeviceInfo>() == 16);
    assert!(size_of::<RegionInfo>() == 32);
    assert!(size_of::<SparseMmapCapability>() == 16);
    assert!(size_of::<SparseArea>() == 16);
    assert!(size_of::<RegionIoFds>() == 16);
    assert!(size_of::<IoEventFd>() == 48);
    assert!(size_of::<IrqInfo>() == 16);
    assert!(size_of::<IrqSet>() == 20);
    assert!(size_of::<RegionAccess>() == 16);
    assert!(size_of::<RegionWriteOne>() == 24);
    assert!(size_of::<DmaAccess>() == 16);
};

impl DmaMap {
    /// The device may read.
    pub const READ: u32 = 1;
    /// The device may write.
    pub const WRITE: u32 = 1 << 1;
    /// The file is to be mapped.
    pub const MMAP: u32 = 1 << 2;
    /// The file is to be read and written.
    pub const FILE_IO: u32 = 1 << 3;
}

impl DmaUnmap {
    /// Report dirty pages; not supported.
    pub const GET_DIRTY_BITMAP: u32 = 1;
    /// Remove every region; address and size are 0.
    pub const ALL: u32 = 1 << 1;
}

impl DeviceInfo {
    /// DEVICE_RESET is supported.
    pub const RESET: u32 = 1;
    /// A PCI device.
    pub const PCI: u32 = 1 << 1;
}

impl RegionInfo {
    /// Readable.
    pub const READ: u32 = 1;
    /// Writable.
    pub const WRITE: u32 = 1 << 1;
    /// Can be mapped; the reply carries a file descriptor.
    pub const MMAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub const CAPS: u32 = 1 << 3;
}

impl SparseMmapCapability {
    /// Its identifier.
    pub const ID: u16 = 1;
}

impl IrqInfo {
    /// Takes eventfds.
    pub const EVENTFD: u32 = 1;
    /// Can be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// Masks itself when raised.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// The number in use can only be changed as a whole.
    pub const NORESIZE: u32 = 1 << 3;
}

impl IrqSet {
    /// No data: the action applies to the whole range.
    pub const DATA_NONE: u32 = 1;
    /// A byte for each interrupt says whether the action applies.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// Eventfds come with the message, or none to take them away.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// Mask.
    pub const ACTION_MASK: u32 = 1 << 3;
    /// Unmask.
    pub const ACTION_UNMASK: u32 = 1 << 4;
    /// Trigger.
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}
