//! A session: one client, served with one device.
//!
//! [`Session::step`] never waits. What the client asks is handed to the [`Device`]; an operation that takes
//! time (a reset, an unmap) is remembered and answered when it is over, while the session goes on with other
//! messages. Replies to memory changes and resets keep the order of their requests: QEMU sends a burst of maps
//! and unmaps and waits for the last reply alone.
//!
//! No reply has the error flag with errno 0, which clients take for success. Accesses to places of a region
//! that don't exist aren't errors: they read as ones and write nowhere, as on a bus.

mod memory;
mod region;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;

use super::connection::{Connection, Lost, MAX_PENDING_REPLIES, Message};
use super::device::{Device, Progress, Ticket};
use super::dma::DmaPort;
use super::protocol::{
    DeviceInfo, DmaUnmap, Header, IRQ_INDEX_COUNT, IrqInfo, MAX_MESSAGE_FDS, REGION_COUNT, RegionAccess,
};
use super::reply::Reply;
use super::request::{Request, SetIrqs};
use super::version::Capabilities;
use crate::memory::{MemoryMap, NotShared, Region, SharedMap, Sharing, check_shared};
use region::write_region;

/// Messages that one [`Session::step`] handles, so that a client can't keep its thread from other work.
const MESSAGES_PER_STEP: u32 = 64;

/// What [`Session::step`] left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do until a file descriptor says so.
    Idle,
    /// There may be more to do at once.
    More,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStatistics {
    /// Messages that came.
    pub messages: u64,
    /// REGION_READ.
    pub region_reads: u64,
    /// Writes of REGION_WRITE and REGION_WRITE_MULTI.
    pub region_writes: u64,
    /// Error replies.
    pub errors: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    memory: Arc<SharedMap>,
    release: Arc<OwnedFd>,
    /// What the client can do, once it has said so.
    client: Option<Capabilities>,
    pending: VecDeque<Pending>,
    next_ticket: u64,
    statistics: SessionStatistics,
    /// Reused from message to message.
    message: Message,
    writer: Writer,
}

/// A reply that has to wait, or to wait for the ones before it.
#[derive(Debug)]
struct Pending {
    header: Header,
    /// The device hasn't finished it yet.
    ticket: Option<Ticket>,
    /// Regions that some thread may still use.
    regions: Vec<Weak<Region>>,
    reply: PendingReply,
}

#[derive(Clone, Copy, Debug)]
enum PendingReply {
    Done,
    Unmapped(DmaUnmap),
    Error(Errno),
}

/// The regions of a session that is over, until nobody uses them any more.
#[derive(Debug)]
pub struct Released {
    regions: Vec<Weak<Region>>,
    eventfd: Arc<OwnedFd>,
}

impl Session {
    /// Serves the client at the other end of `stream`. Its memory appears in `memory`, which is emptied first.
    /// The calling thread is the one that has to call [`Session::step`].
    ///
    /// # Errors
    /// The system is out of file descriptors, or `stream` can't be made non-blocking.
    pub fn new(stream: UnixStream, memory: Arc<SharedMap>) -> std::io::Result<Self> {
        let connection = Connection::new(stream, MAX_MESSAGE_FDS)?;
        let release = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        memory.publish(MemoryMap::default());
        Ok(Self {
            connection,
            memory,
            release: Arc::new(release),
            client: None,
            pending: VecDeque::new(),
            next_ticket: 0,
            statistics: SessionStatistics::default(),
            message: Message::default(),
            writer: Writer::default(),
        })
    }

    /// What to poll the socket ([`AsFd`]) for.
    #[must_use]
    pub fn interest(&self) -> PollFlags {
        self.connection.interest()
    }

    /// Readable when memory was let go that a reply may wait for: call [`Session::step`] then.
    #[must_use]
    pub fn release_fd(&self) -> BorrowedFd<'_> {
        self.release.as_fd()
    }

    /// Whether messages wait that came in during a call, so that the socket may be silent about them.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        self.connection.has_queued()
    }

    /// Handles what the client sent and answers what is over.
    ///
    /// # Errors
    /// The client is gone; continue with [`Session::end`].
    pub fn step(&mut self, device: &mut impl Device) -> Result<Step, Lost> {
        self.connection.set_reader();
        self.connection.flush()?;
        self.settle()?;
        for _ in 0..MESSAGES_PER_STEP {
            if self.connection.is_backlogged() {
                return Ok(Step::Idle);
            }
            let mut message = std::mem::take(&mut self.message);
            let received = self.connection.try_receive(&mut message);
            if matches!(received, Ok(true)) {
                self.statistics.messages += 1;
                let handled = self.handle(&mut message, device);
                message.fds.clear();
                self.message = message;
                handled?;
            } else {
                self.message = message;
                received?;
                return Ok(Step::Idle);
            }
        }
        Ok(Step::More)
    }

    /// The device is done with what [`Device::memory_removed`] or [`Device::reset`] started.
    ///
    /// # Errors
    /// The client is gone.
    pub fn finish(&mut self, ticket: Ticket) -> Result<(), Lost> {
        for pending in &mut self.pending {
            if pending.ticket == Some(ticket) {
                pending.ticket = None;
            }
        }
        self.settle()
    }

    /// Whether requests wait for the device or for memory to be let go.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The counters.
    #[must_use]
    pub fn statistics(&self) -> SessionStatistics {
        self.statistics
    }

    /// What the client said it can do; `None` before its first message.
    #[must_use]
    pub fn client(&self) -> Option<Capabilities> {
        self.client
    }

    /// Compares our view of a range of guest memory with the client's: see [`crate::memory::check_shared`].
    /// For clients that are known to answer, QEMU above all; [`Sharing::Unknown`] for others. Call it when
    /// the guest must have written there, and not from a method of [`Device`].
    ///
    /// # Errors
    /// The memory isn't shared: tell the user and give the device up.
    pub fn check_shared(&self, address: u64, len_bytes: usize) -> Result<Sharing, NotShared> {
        match self.client {
            Some(client) if client.answers_dma_read() => {
                check_shared(&self.memory.current(), address, len_bytes)
            }
            _ => Ok(Sharing::Unknown),
        }
    }

    /// Ends the session: closes the connection and takes all memory away. The device then has to let go of
    /// it, of the interrupt eventfds and of what it had in flight, as it does for a reset.
    #[must_use]
    pub fn end(self) -> Released {
        self.connection.shut_down();
        let before = self.memory.publish(MemoryMap::default());
        let mut regions: Vec<_> = before.regions().iter().map(Arc::downgrade).collect();
        regions.extend(self.pending.into_iter().flat_map(|pending| pending.regions));
        Released { regions, eventfd: self.release }
    }

    fn handle(&mut self, message: &mut Message, device: &mut impl Device) -> Result<(), Lost> {
        let header = message.header;
        if let Some(errno) = message.fault {
            return self.fail(&header, errno);
        }
        if header.message_type() != Header::TYPE_COMMAND {
            return self.fail(&header, Errno::INVAL);
        }
        match Request::parse(&header, &message.payload, message.fds.len()) {
            Ok(request) if self.client.is_some() != matches!(request, Request::Version { .. }) => {
                let fds = std::mem::take(&mut message.fds);
                self.carry_out(&header, request, fds, device)
            }
            // VERSION comes first, and once.
            Ok(_) => self.fail(&header, Errno::INVAL),
            Err(errno) => self.fail(&header, errno),
        }
    }

    fn carry_out(
        &mut self,
        header: &Header,
        request: Request<'_>,
        fds: Vec<OwnedFd>,
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        match request {
            Request::Version { major, json, .. } => self.negotiate(header, major, json),
            Request::DmaMap { map, .. } => {
                let reply = match self.map(&map, fds, device) {
                    Ok(()) => PendingReply::Done,
                    Err(error) => {
                        // Some clients don't care, and miss that memory in their first transfer.
                        let (iova, size) = (map.address.get(), map.size.get());
                        crate::rate_limit::warn_sometimes(|| {
                            tracing::warn!("guest memory at {iova:#x} of {size:#x} bytes refused: {error}");
                        });
                        PendingReply::Error(error.into())
                    }
                };
                self.answer_in_order(header, None, Vec::new(), reply)
            }
            Request::DmaUnmap(unmap) => self.unmap(header, unmap, device),
            Request::DmaUnmapAll(unmap) => self.unmap_all(header, unmap, device),
            Request::DeviceGetInfo => {
                let info = DeviceInfo {
                    argsz: size_of::<DeviceInfo>().try_into().unwrap_or(0).into(),
                    flags: (DeviceInfo::RESET | DeviceInfo::PCI).into(),
                    num_regions: REGION_COUNT.into(),
                    num_irqs: IRQ_INDEX_COUNT.into(),
                };
                self.answer(header, &Reply::DeviceInfo(info), &[])
            }
            Request::GetRegionInfo { index, argsz } if index < REGION_COUNT => {
                self.region_info(header, index, argsz, device.region(index))
            }
            Request::GetRegionIoFds { index, argsz } if index < REGION_COUNT => {
                self.region_io_fds(header, index, argsz, device)
            }
            Request::GetIrqInfo { index } if index < IRQ_INDEX_COUNT => {
                let found = device.interrupts(index);
                let info = IrqInfo {
                    argsz: size_of::<IrqInfo>().try_into().unwrap_or(0).into(),
                    flags: found.flags.into(),
                    index: index.into(),
                    count: found.count.into(),
                };
                self.answer(header, &Reply::IrqInfo(info), &[])
            }
            Request::SetIrqs(set) if set.index < IRQ_INDEX_COUNT => self.set_irqs(header, set, fds, device),
            Request::RegionRead { region, offset, count } if region < REGION_COUNT => {
                self.region_read(header, region, offset, count, device)
            }
            Request::RegionWrite { region, offset, data } if region < REGION_COUNT => {
                self.statistics.region_writes += 1;
                write_region(device, region, offset, data);
                let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let access =
                    RegionAccess { offset: offset.into(), region: region.into(), count: count.into() };
                self.answer(header, &Reply::RegionWrite(access), &[])
            }
            Request::RegionWriteMulti(writes) => self.region_write_multi(header, writes, device),
            Request::DeviceReset => {
                let ticket = self.ticket();
                let waits = match device.reset(ticket) {
                    Progress::Done => None,
                    Progress::Later => Some(ticket),
                };
                self.answer_in_order(header, waits, Vec::new(), PendingReply::Done)
            }
            Request::GetRegionInfo { .. }
            | Request::GetRegionIoFds { .. }
            | Request::GetIrqInfo { .. }
            | Request::SetIrqs(_)
            | Request::RegionRead { .. }
            | Request::RegionWrite { .. } => self.fail(header, Errno::INVAL),
            // Those are ours to ask.
            Request::DmaRead { .. } | Request::DmaWrite { .. } => self.fail(header, Errno::OPNOTSUPP),
        }
    }

    fn negotiate(&mut self, header: &Header, major: u16, json: &[u8]) -> Result<(), Lost> {
        if major != 0 {
            return self.fail(header, Errno::OPNOTSUPP);
        }
        match Capabilities::parse(json) {
            Err(errno) => self.fail(header, errno),
            Ok(client) => {
                self.client = Some(client);
                let port = DmaPort::new(self.connection.clone(), client.dma_bytes());
                self.memory.publish(MemoryMap::new(Some(Arc::new(port))));
                let json = client.reply_json();
                self.answer(header, &Reply::Version { minor: 0, json: &json }, &[])
            }
        }
    }

    fn set_irqs(
        &mut self,
        header: &Header,
        set: SetIrqs<'_>,
        fds: Vec<OwnedFd>,
        device: &mut impl Device,
    ) -> Result<(), Lost> {
        if set.start + set.count > device.interrupts(set.index).count {
            return self.fail(header, Errno::INVAL);
        }
        match device.set_irqs(&set, fds) {
            Ok(()) => self.answer(header, &Reply::Done, &[]),
            Err(errno) => self.fail(header, errno),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn answer_in_order(
        &mut self,
        header: &Header,
        ticket: Option<Ticket>,
        regions: Vec<Weak<Region>>,
        reply: PendingReply,
    ) -> Result<(), Lost> {
        self.pending.push_back(Pending { header: *header, ticket, regions, reply });
        self.settle()?;
        if self.pending.len() > MAX_PENDING_REPLIES { Err(Lost::Impatient) } else { Ok(()) }
    }

    /// Answers what is over, in order.
    fn settle(&mut self) -> Result<(), Lost> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // Emptied before looking, so that a signal after the look is seen by the next poll.
        let _ = rustix::io::read(&*self.release, &mut [0; 8]);
        while let Some(first) = self.pending.front() {
            if first.ticket.is_some() || first.regions.iter().any(|region| region.strong_count() > 0) {
                break;
            }
            let (header, reply) = (first.header, first.reply);
            self.pending.pop_front();
            match reply {
                PendingReply::Done => self.answer(&header, &Reply::Done, &[])?,
                PendingReply::Unmapped(unmap) => self.answer(&header, &Reply::DmaUnmap(unmap), &[])?,
                PendingReply::Error(errno) => self.fail(&header, errno)?,
            }
        }
        Ok(())
    }

    fn fail(&mut self, header: &Header, errno: Errno) -> Result<(), Lost> {
        self.statistics.errors += 1;
        tracing::debug!(command = ?header.command_code(), %errno, "refused a message");
        self.answer(header, &Reply::Error(errno), &[])
    }

    fn answer(&mut self, header: &Header, reply: &Reply<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        if header.no_reply() {
            return Ok(());
        }
        reply.encode(header, &mut self.writer.bytes);
        self.connection.send(&self.writer.bytes, fds)
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Buffers for replies.
#[derive(Debug, Default)]
struct Writer {
    bytes: Vec<u8>,
    data: Vec<u8>,
}

impl Released {
    /// Whether no thread uses the client's memory any more.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // Emptied before looking, so that a signal after the look is seen by the next poll.
        let _ = rustix::io::read(&*self.eventfd, &mut [0; 8]);
        self.regions.iter().all(|region| region.strong_count() == 0)
    }
}

impl AsFd for Released {
    /// Readable when memory was let go.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
