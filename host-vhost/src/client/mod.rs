//! A vfio-user client: the VMM's side of the protocol, for tests and for `doorbell demo`.
//!
//! * [`Client`] speaks the protocol.
//! * [`memory::ClientMemory`] is memory that it shares with the server.
//! * [`nvme::Nvme`] is an NVMe driver on top, polled or driven by interrupts, whose [`queue::QueuePair`]s
//!   submit and complete without a system call where doorbells allow it.
//!
//! One thread uses a client at a time. It answers the server's DMA requests whenever it is in
//! [`Client::serve`]; a call of its own doesn't need the server to get through with any.

mod lifecycle;
pub mod memory;
pub mod nvme;
pub mod queue;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::vfio_user::connection::{CallError, Connection, Lost, Message};
use crate::vfio_user::protocol::{
    Command, DeviceInfo, DmaAccess, DmaMap, DmaUnmap, HEADER_BYTES, Header, IoEventFd, IrqInfo, IrqSet,
    MAX_SOCKET_FDS, RegionAccess, RegionInfo, RegionIoFds, SparseArea, SparseMmapCapability, VersionFixed,
};
use crate::vfio_user::request::Request;
use crate::vfio_user::version::Capabilities;
use memory::ClientMemory;

/// How long the server may take for an answer; as QEMU.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("can't connect to the server: {0}")]
    Connect(io::Error),
    /// The server refused, left or is silent.
    #[error("{command:?}: {error}")]
    Call {
        /// What was asked.
        command: Command,
        /// What came of it.
        error: CallError,
    },
    /// The answer makes no sense.
    #[error("{command:?}: the answer is malformed")]
    Malformed {
        /// What was asked.
        command: Command,
    },
    /// This side failed.
    #[error("the client's own system call failed: {0}")]
    System(#[from] Errno),
}

/// A connected client.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    server: Capabilities,
    memory: Vec<Arc<ClientMemory>>,
    message: Message,
    reply: Vec<u8>,
    dma_messages: u64,
}

/// A region as the server describes it.
#[derive(Debug)]
pub struct ClientRegion {
    /// The fixed part of the answer.
    pub info: RegionInfo,
    /// What may be mapped.
    pub areas: Vec<SparseArea>,
    /// The file to map.
    pub file: Option<OwnedFd>,
}

/// An eventfd that stands for writes to a place of a region.
#[derive(Clone, Debug)]
pub struct ClientIoEventFd {
    /// First byte in the region.
    pub offset: u64,
    /// Bytes of the write, 0 for any.
    pub size: u64,
    /// The eventfd.
    pub eventfd: Arc<OwnedFd>,
}

impl Client {
    /// Connects to a server's socket and negotiates.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::new(UnixStream::connect(path).map_err(ClientError::Connect)?)
    }

    /// Negotiates over a stream that is connected.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn new(stream: UnixStream) -> Result<Self, ClientError> {
        let connection = Connection::new(stream, MAX_SOCKET_FDS).map_err(ClientError::Connect)?;
        let mut client = Self {
            connection,
            server: Capabilities::default(),
            memory: Vec::new(),
            message: Message::default(),
            reply: Vec::new(),
            dma_messages: 0,
        };
        let fixed = VersionFixed { major: 0.into(), minor: 0.into() };
        let mut json = Capabilities::client_json().into_bytes();
        json.push(0);
        client.call(Command::VERSION, [fixed.as_bytes(), &json], &[])?;
        let malformed = || ClientError::Malformed { command: Command::VERSION };
        let (_, json) = VersionFixed::read_from_prefix(&client.reply).map_err(|_| malformed())?;
        let json = json.strip_suffix(&[0]).ok_or_else(malformed)?;
        client.server = Capabilities::parse(json).map_err(|_| malformed())?;
        Ok(client)
    }

    /// The connection, for posted writes from other threads.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What the server said it can do.
    #[must_use]
    pub fn server(&self) -> Capabilities {
        self.server
    }

    /// DMA_READ and DMA_WRITE messages answered so far.
    #[must_use]
    pub fn dma_messages(&self) -> u64 {
        self.dma_messages
    }

    /// Gives the server `memory`, with its file or, where `by_message`, without.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn map(&mut self, memory: &Arc<ClientMemory>, by_message: bool) -> Result<(), ClientError> {
        self.memory.push(Arc::clone(memory));
        let files = [memory.as_fd()];
        let files = if by_message { &[][..] } else { &files[..] };
        let map = DmaMap {
            argsz: 32.into(),
            flags: (DmaMap::READ | DmaMap::WRITE).into(),
            offset: 0.into(),
            address: memory.iova().into(),
            size: memory.size().into(),
        };
        self.call(Command::DMA_MAP, [map.as_bytes(), &[]], files).map(drop)
    }

    /// Takes memory away from the server; returns when nothing there can touch it any more.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn unmap(&mut self, memory: &ClientMemory) -> Result<(), ClientError> {
        let (iova, size) = (memory.iova(), memory.size());
        let unmap = DmaUnmap { argsz: 24.into(), flags: 0.into(), address: iova.into(), size: size.into() };
        self.call(Command::DMA_UNMAP, [unmap.as_bytes(), &[]], &[])?;
        self.memory.retain(|known| known.iova() != iova);
        Ok(())
    }

    /// DEVICE_GET_INFO.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn device_info(&mut self) -> Result<DeviceInfo, ClientError> {
        let info = DeviceInfo { argsz: 16.into(), ..DeviceInfo::default() };
        self.call(Command::DEVICE_GET_INFO, [info.as_bytes(), &[]], &[])?;
        self.parsed(Command::DEVICE_GET_INFO)
    }

    /// DEVICE_GET_REGION_INFO, a second time with more room where that is needed.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region(&mut self, index: u32) -> Result<ClientRegion, ClientError> {
        let command = Command::DEVICE_GET_REGION_INFO;
        let mut request = RegionInfo { argsz: 32.into(), index: index.into(), ..RegionInfo::default() };
        let mut fds = self.call(command, [request.as_bytes(), &[]], &[])?;
        let mut info: RegionInfo = self.parsed(command)?;
        if info.argsz.get() > 32 {
            request.argsz = info.argsz;
            fds = self.call(command, [request.as_bytes(), &[]], &[])?;
            info = self.parsed(command)?;
        }
        let mut areas = Vec::new();
        if info.flags.get() & RegionInfo::CAPS != 0 {
            let malformed = ClientError::Malformed { command };
            let capability = self.reply.get(info.cap_offset.get() as usize..).unwrap_or(&[]);
            match SparseMmapCapability::read_from_prefix(capability) {
                Ok((fixed, rest)) if fixed.id.get() == SparseMmapCapability::ID => {
                    let count = fixed.nr_areas.get() as usize;
                    for bytes in rest.chunks_exact(size_of::<SparseArea>()).take(count) {
                        areas.push(SparseArea::read_from_bytes(bytes).unwrap_or_default());
                    }
                    if areas.len() != count {
                        return Err(malformed);
                    }
                }
                _ => return Err(malformed),
            }
        }
        Ok(ClientRegion { info, areas, file: fds.into_iter().next() })
    }

    /// DEVICE_GET_REGION_IO_FDS.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn io_eventfds(&mut self, index: u32) -> Result<Vec<ClientIoEventFd>, ClientError> {
        let command = Command::DEVICE_GET_REGION_IO_FDS;
        let request = RegionIoFds { argsz: 65536.into(), index: index.into(), ..RegionIoFds::default() };
        let fds = self.call(command, [request.as_bytes(), &[]], &[])?;
        let fds: Vec<_> = fds.into_iter().map(Arc::new).collect();
        let info: RegionIoFds = self.parsed(command)?;
        let entries = &self.reply[size_of::<RegionIoFds>()..];
        let stride = entries.len().checked_div(info.count.get() as usize).unwrap_or(0).max(1);
        entries
            .chunks_exact(stride)
            .map(|bytes| {
                let malformed = || ClientError::Malformed { command };
                let (entry, _) = IoEventFd::read_from_prefix(bytes).map_err(|_| malformed())?;
                let eventfd = fds.get(entry.fd_index.get() as usize).ok_or_else(malformed)?;
                Ok(ClientIoEventFd {
                    offset: entry.offset.get(),
                    size: entry.size.get(),
                    eventfd: Arc::clone(eventfd),
                })
            })
            .collect()
    }

    /// DEVICE_GET_IRQ_INFO.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let info = IrqInfo { argsz: 16.into(), index: index.into(), ..IrqInfo::default() };
        self.call(Command::DEVICE_GET_IRQ_INFO, [info.as_bytes(), &[]], &[])?;
        self.parsed(Command::DEVICE_GET_IRQ_INFO)
    }

    /// DEVICE_SET_IRQS with `flags` of [`IrqSet`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let set = IrqSet {
            argsz: 20.into(),
            flags: flags.into(),
            index: index.into(),
            start: start.into(),
            count: count.into(),
        };
        self.call(Command::DEVICE_SET_IRQS, [set.as_bytes(), &[]], fds).map(drop)
    }

    /// REGION_READ.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let access = region_access(region, offset, data.len());
        self.call(Command::REGION_READ, [access.as_bytes(), &[]], &[])?;
        match self.reply.get(size_of::<RegionAccess>()..) {
            Some(read) if read.len() == data.len() => data.copy_from_slice(read),
            _ => return Err(ClientError::Malformed { command: Command::REGION_READ }),
        }
        Ok(())
    }

    /// REGION_WRITE; returns when the server has done it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let access = region_access(region, offset, data.len());
        self.call(Command::REGION_WRITE, [access.as_bytes(), data], &[]).map(drop)
    }

    /// DEVICE_RESET.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.call(Command::DEVICE_RESET, [&[], &[]], &[]).map(drop)
    }

    /// Answers what the server has asked, without waiting for more.
    ///
    /// # Errors
    /// The server is gone.
    pub fn serve(&mut self) -> Result<(), Lost> {
        self.connection.set_reader();
        self.connection.flush()?;
        let mut message = std::mem::take(&mut self.message);
        while self.connection.try_receive(&mut message)? {
            let header = message.header;
            match Request::parse(&header, &message.payload, message.fds.len()) {
                Ok(Request::DmaRead { address, count }) => {
                    self.dma_messages += 1;
                    let mut data = vec![0; count as usize];
                    let done = self.find(address, data.len()).map(|(memory, at)| memory.read(at, &mut data));
                    self.answer_dma(&header, address, count, done.map(|()| &data[..]))?;
                }
                Ok(Request::DmaWrite { address, data }) => {
                    self.dma_messages += 1;
                    let done = self.find(address, data.len()).map(|(memory, at)| memory.write(at, data));
                    let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
                    self.answer_dma(&header, address, count, done.map(|()| &[][..]))?;
                }
                Ok(_) => self.connection.send(header.error_reply(Errno::OPNOTSUPP).as_bytes(), &[])?,
                Err(errno) => self.connection.send(header.error_reply(errno).as_bytes(), &[])?,
            }
        }
        self.message = message;
        Ok(())
    }

    fn find(&self, address: u64, len: usize) -> Option<(&ClientMemory, u64)> {
        self.memory.iter().find_map(|memory| {
            let at = address.checked_sub(memory.iova())?;
            (at.checked_add(len as u64)? <= memory.size()).then_some((&**memory, at))
        })
    }

    fn answer_dma(&self, header: &Header, address: u64, count: u32, data: Option<&[u8]>) -> Result<(), Lost> {
        let Some(data) = data else {
            return self.connection.send(header.error_reply(Errno::FAULT).as_bytes(), &[]);
        };
        let access = DmaAccess { address: address.into(), count: u64::from(count).into() };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 16 + data.len());
        bytes.extend_from_slice(header.reply(16 + data.len()).as_bytes());
        bytes.extend_from_slice(access.as_bytes());
        bytes.extend_from_slice(data);
        self.connection.send(&bytes, &[])
    }

    fn call(
        &mut self,
        command: Command,
        parts: [&[u8]; 2],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<OwnedFd>, ClientError> {
        self.connection.set_reader();
        self.reply.clear();
        self.connection
            .call(command, parts, fds, TIMEOUT, &mut self.reply)
            .map_err(|error| ClientError::Call { command, error })
    }

    fn parsed<T: FromBytes>(&self, command: Command) -> Result<T, ClientError> {
        T::read_from_prefix(&self.reply)
            .map(|(value, _)| value)
            .map_err(|_| ClientError::Malformed { command })
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

fn region_access(region: u32, offset: u64, len: usize) -> RegionAccess {
    RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: u32::try_from(len).unwrap_or(u32::MAX).into(),
    }
}

/// Writes a region without asking for a reply: QEMU's way where no region is mapped.
///
/// # Errors
/// The server is gone.
pub fn post_region_write(connection: &Connection, region: u32, offset: u64, value: u32) -> Result<(), Lost> {
    let mut message = [0; HEADER_BYTES + size_of::<RegionAccess>() + 4];
    let mut header = Header::command(0, Command::REGION_WRITE, message.len() - HEADER_BYTES);
    header.flags = (Header::TYPE_COMMAND | Header::NO_REPLY).into();
    message[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    message[HEADER_BYTES..32].copy_from_slice(region_access(region, offset, 4).as_bytes());
    message[32..].copy_from_slice(&value.to_le_bytes());
    connection.send(&message, &[])
}
