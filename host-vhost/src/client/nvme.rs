//! An NVMe driver for one controller behind a vfio-user socket.
//!
//! It does what a load generator and tests need: bring the controller up, identify, create queue pairs, set up
//! shadow doorbells, take interrupts. Not here: error recovery, several namespaces at a time, power management.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_core::spec::queue_entry::CompletionQueueEntry;
use doorbell_core::spec::status::Status;

use super::memory::ClientMemory;
use super::queue::{
    DataPointer, DoorbellMap, DriverCommand, DriverDoorbell, DriverShadow, PAGE_BYTES, QueueLayout,
    QueuePair, Register, ShadowRule,
};
use super::{Client, ClientError};
use crate::interrupt::{MSIX, new_eventfd};
use crate::memory::{Mapping, Rights};
use crate::vfio_user::connection::Lost;
use crate::vfio_user::protocol::{CONFIG_REGION, IrqSet, RegionInfo};

const REG_CAP: u64 = 0x00;
const REG_VS: u64 = 0x08;
const DOORBELLS: u64 = 0x1000;

/// Entries of the admin queues.
pub(super) const ADMIN_DEPTH: u32 = 32;

/// How long the controller may take for anything.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Why the driver gave up.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The client failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The controller reports Controller Fatal Status.
    #[error("the controller reports a fatal status (CSTS.CFS)")]
    Fatal,
    /// Nothing came in time.
    #[error("the controller took more than {TIMEOUT:?} for {what}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
    },
    /// A command failed.
    #[error("{what} ended with {status:?}")]
    Command {
        /// The command.
        what: &'static str,
        /// Its status.
        status: Status,
    },
    /// The driver's memory is full.
    #[error("the driver needs more than the {0} bytes of memory that it was given")]
    Memory(u64),
    /// The way of writing doorbells that was asked for isn't there.
    #[error("the controller offers no {0}")]
    Missing(&'static str),
}

/// How I/O queues write their doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellMode {
    /// A message, and its reply is waited for.
    Message,
    /// A message without reply.
    Posted,
    /// The mapped page.
    Mapped,
    /// Shadow doorbells; a register is written by a message without reply.
    Shadow(ShadowRule),
    /// Shadow doorbells; an eventfd stands for the register.
    ShadowEventFd(ShadowRule),
}

/// Identify Controller and Namespace, as far as a load generator cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Serial Number (SN).
    pub serial: String,
    /// Model Number (MN).
    pub model: String,
    /// Bytes that one command may move; 0 for no limit.
    pub max_transfer_bytes: u64,
    /// SGLs may be used.
    pub sgl: bool,
    /// Blocks of namespace 1 (NSZE).
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

/// A controller that is up.
#[derive(Debug)]
pub struct Nvme {
    pub(super) client: Client,
    pub(super) memory: Arc<ClientMemory>,
    /// Offset of the first byte of memory that is free.
    pub(super) unused: u64,
    pub(super) admin: QueuePair,
    doorbell_map: Option<Arc<DoorbellMap>>,
    /// Offsets of the Shadow Doorbell and EventIdx pages.
    pub(super) shadow: Option<(u64, u64)>,
    pub(super) next_qid: u16,
    vectors: u32,
}

impl Nvme {
    /// Brings the controller up. `memory` is the driver's: queues and lists are taken from its start, and what
    /// [`Nvme::allocate`] returns.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn new(mut client: Client, memory: Arc<ClientMemory>) -> Result<Self, DriverError> {
        client.map(&memory, false)?;
        Self::with_mapped_memory(client, memory)
    }

    /// The same with memory that the server knows already, by message for instance.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn with_mapped_memory(mut client: Client, memory: Arc<ClientMemory>) -> Result<Self, DriverError> {
        let bar = client.region(0)?;
        let doorbell_map = match (&bar.file, bar.areas.first()) {
            (Some(file), Some(area)) if bar.info.flags.get() & RegionInfo::MMAP != 0 => {
                let (offset, size) = (area.offset.get(), area.size.get());
                let place = bar.info.offset.get() + offset;
                let mapping = Mapping::new(file.as_fd(), place, size, Rights::READ_WRITE)
                    .map_err(|error| ClientError::System(error.into()))?;
                Some(Arc::new(DoorbellMap::new(mapping, offset, size)))
            }
            _ => None,
        };
        let vectors = client.irq_info(MSIX)?.count.get();
        let mut command = [0; 2];
        client.region_read(CONFIG_REGION, 4, &mut command)?;
        // Memory Space Enable and Bus Master Enable.
        let command = u16::from_le_bytes(command) | 6;
        client.region_write(CONFIG_REGION, 4, &command.to_le_bytes())?;
        let mut unused = 0;
        let layout = take_queue(&memory, &mut unused, ADMIN_DEPTH, 1)?;
        let admin = admin_queue(&client, &memory, layout);
        let mut nvme =
            Self { client, memory, unused, admin, doorbell_map, shadow: None, next_qid: 1, vectors };
        nvme.enable(layout)?;
        Ok(nvme)
    }

    /// Identify Controller and Identify Namespace 1.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn identify(&mut self) -> Result<Identity, DriverError> {
        let controller = self.identify_page(0, 1, "Identify Controller")?;
        let namespace = self.identify_page(1, 0, "Identify Namespace")?;
        let text =
            |range: std::ops::Range<usize>| String::from_utf8_lossy(&controller[range]).trim_end().to_owned();
        let sgls = u32::from_le_bytes([controller[536], controller[537], controller[538], controller[539]]);
        let format = usize::from(namespace[26] & 0xf);
        let lbads = namespace[128 + 4 * format + 2].min(31);
        Ok(Identity {
            serial: text(4..24),
            model: text(24..64),
            max_transfer_bytes: match controller[77] {
                0 => 0,
                mdts => PAGE_BYTES.checked_shl(mdts.into()).unwrap_or(0),
            },
            sgl: sgls & 3 != 0,
            blocks: namespace[..8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            block_bytes: 1 << lbads,
        })
    }

    /// One page of Identify data.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn identify_page(&mut self, nsid: u32, cns: u32, what: &'static str) -> Result<Vec<u8>, DriverError> {
        let before = self.unused;
        let page = self.allocate(PAGE_BYTES)?;
        let data = DataPointer::Prp { iova: self.memory.iova() + page, len_bytes: 4096 };
        self.admin(what, &DriverCommand { opcode: 0x06, nsid, cdw: [cns, 0, 0, 0, 0, 0], data })?;
        let mut bytes = vec![0; 4096];
        self.memory.read(page, &mut bytes);
        self.unused = before;
        Ok(bytes)
    }

    /// Doorbell Buffer Config: gives the controller both pages. Queue pairs made afterwards with a shadow mode
    /// use them.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn enable_shadow(&mut self) -> Result<(), DriverError> {
        let shadow = self.allocate(PAGE_BYTES)?;
        let event_idx = self.allocate(PAGE_BYTES)?;
        self.memory.zero(shadow, PAGE_BYTES);
        self.memory.zero(event_idx, PAGE_BYTES);
        // PRP1 and PRP2 are two pages of their own, which two pages in a row are too.
        let data = DataPointer::Prp { iova: self.memory.iova() + shadow, len_bytes: 8192 };
        self.admin("Doorbell Buffer Config", &DriverCommand { opcode: 0x7c, nsid: 0, cdw: [0; 6], data })?;
        self.shadow = Some((shadow, event_idx));
        Ok(())
    }

    /// Creates an I/O queue pair of `depth` entries with `slots` commands in flight at most, with an interrupt
    /// if asked.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn create_queue_pair(
        &mut self,
        depth: u32,
        slots: u16,
        mode: DoorbellMode,
        interrupt: bool,
    ) -> Result<QueuePair, DriverError> {
        let qid = self.next_qid;
        let layout = take_queue(&self.memory, &mut self.unused, depth, slots)?;
        let mut eventfd = None;
        let mut flags = 1;
        if interrupt {
            if u32::from(qid) >= self.vectors {
                return Err(DriverError::Missing("interrupt vector for the queue"));
            }
            eventfd = Some(Arc::new(self.connect_vector(qid)?));
            flags |= u32::from(qid) << 16 | 2;
        }
        let size_and_qid = (depth - 1) << 16 | u32::from(qid);
        let cq = DataPointer::Prp { iova: self.memory.iova() + layout.cq, len_bytes: 1 };
        let create_cq =
            DriverCommand { opcode: 0x05, nsid: 0, cdw: [size_and_qid, flags, 0, 0, 0, 0], data: cq };
        self.admin("Create I/O Completion Queue", &create_cq)?;
        let sq = DataPointer::Prp { iova: self.memory.iova() + layout.sq, len_bytes: 1 };
        let cdw11 = u32::from(qid) << 16 | 1;
        let create_sq =
            DriverCommand { opcode: 0x01, nsid: 0, cdw: [size_and_qid, cdw11, 0, 0, 0, 0], data: sq };
        self.admin("Create I/O Submission Queue", &create_sq)?;
        self.next_qid += 1;
        let mut doorbells = [self.io_doorbell(qid, false, mode)?, self.io_doorbell(qid, true, mode)?];
        if let DoorbellMode::ShadowEventFd(_) = mode {
            let found = self.client.io_eventfds(0)?;
            for doorbell in &mut doorbells {
                let eventfd = found.iter().find(|found| found.offset == doorbell.offset);
                let eventfd = eventfd.ok_or(DriverError::Missing("ioeventfd for the doorbell"))?;
                doorbell.register = Register::EventFd(Arc::clone(&eventfd.eventfd));
            }
        }
        let [sq_doorbell, cq_doorbell] = doorbells;
        let memory = Arc::clone(&self.memory);
        Ok(QueuePair::new(memory, layout, slots, sq_doorbell, cq_doorbell, eventfd))
    }

    /// Deletes the newest I/O queue pair. Its memory isn't used again.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn delete_queue_pair(&mut self, qid: u16) -> Result<(), DriverError> {
        let delete = |opcode| DriverCommand {
            opcode,
            nsid: 0,
            cdw: [qid.into(), 0, 0, 0, 0, 0],
            data: DataPointer::None,
        };
        self.admin("Delete I/O Submission Queue", &delete(0x00))?;
        self.admin("Delete I/O Completion Queue", &delete(0x04))?;
        if qid + 1 == self.next_qid {
            self.next_qid = qid;
        }
        Ok(())
    }

    /// Runs one admin command to its end.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn admin(
        &mut self,
        what: &'static str,
        command: &DriverCommand,
    ) -> Result<CompletionQueueEntry, DriverError> {
        if self.admin.submit(command).is_none() {
            return Err(DriverError::TimedOut { what });
        }
        self.admin.ring()?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut found = None;
            self.admin.poll(1, &mut |entry| found = Some(entry))?;
            match found {
                Some(entry) if entry.status.is_success() => return Ok(entry),
                Some(entry) => return Err(DriverError::Command { what, status: entry.status }),
                None if Instant::now() > deadline => return Err(DriverError::TimedOut { what }),
                None => self.client.serve()?,
            }
            std::thread::yield_now();
        }
    }

    /// Takes `len_bytes` of page-aligned memory for good; returns its offset.
    ///
    /// # Errors
    /// [`DriverError::Memory`].
    pub fn allocate(&mut self, len_bytes: u64) -> Result<u64, DriverError> {
        take(&self.memory, &mut self.unused, len_bytes)
    }

    /// The driver's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<ClientMemory> {
        &self.memory
    }

    /// The client underneath.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Version (VS).
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn version(&mut self) -> Result<u32, DriverError> {
        self.read_u32(REG_VS)
    }

    /// Whether the doorbell page is mapped.
    #[must_use]
    pub fn has_doorbell_map(&self) -> bool {
        self.doorbell_map.is_some()
    }

    /// Makes a queue pair that exists already use the shadow doorbells, as Linux does, whose Doorbell Buffer
    /// Config comes after its queues. The controller has taken over their positions.
    ///
    /// # Errors
    /// [`DriverError::Missing`] before [`Nvme::enable_shadow`].
    pub fn attach_shadow(&self, queue: &mut QueuePair, rule: ShadowRule) -> Result<(), DriverError> {
        for doorbell in queue.doorbells_mut() {
            doorbell.shadow = Some(self.shadow_entry(doorbell.offset, rule)?);
        }
        Ok(())
    }

    /// Connects an MSI-X vector with a new eventfd.
    fn connect_vector(&mut self, vector: u16) -> Result<OwnedFd, DriverError> {
        let eventfd = new_eventfd().map_err(ClientError::Connect)?;
        let flags = IrqSet::DATA_EVENTFD | IrqSet::ACTION_TRIGGER;
        self.client.set_irqs(MSIX, flags, vector.into(), 1, &[eventfd.as_fd()])?;
        Ok(eventfd)
    }

    fn io_doorbell(
        &self,
        qid: u16,
        completion: bool,
        mode: DoorbellMode,
    ) -> Result<DriverDoorbell, DriverError> {
        let connection = self.client.connection().clone();
        let register = match mode {
            DoorbellMode::Message => Register::Message(connection),
            DoorbellMode::Posted | DoorbellMode::ShadowEventFd(_) => Register::Posted(connection),
            DoorbellMode::Mapped | DoorbellMode::Shadow(_) => match (&self.doorbell_map, mode) {
                (Some(map), _) => Register::Mapped(Arc::clone(map)),
                (None, DoorbellMode::Mapped) => return Err(DriverError::Missing("mapped doorbells")),
                (None, _) => Register::Posted(connection),
            },
        };
        let mut doorbell = doorbell(qid, completion, register);
        if let DoorbellMode::Shadow(rule) | DoorbellMode::ShadowEventFd(rule) = mode {
            doorbell.shadow = Some(self.shadow_entry(doorbell.offset, rule)?);
        }
        Ok(doorbell)
    }

    fn shadow_entry(&self, doorbell: u64, rule: ShadowRule) -> Result<DriverShadow, DriverError> {
        let (shadow, event_idx) = self.shadow.ok_or(DriverError::Missing("shadow doorbells yet"))?;
        let at = doorbell - DOORBELLS;
        let memory = Arc::clone(&self.memory);
        Ok(DriverShadow { rule, memory, shadow: shadow + at, event_idx: event_idx + at })
    }

    /// CAP.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn capabilities(&mut self) -> Result<u64, DriverError> {
        let mut bytes = [0; 8];
        self.client.region_read(0, REG_CAP, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn read_u32(&mut self, offset: u64) -> Result<u32, DriverError> {
        let mut bytes = [0; 4];
        self.client.region_read(0, offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), DriverError> {
        Ok(self.client.region_write(0, offset, &value.to_le_bytes())?)
    }
}

/// The admin queue pair, driven by messages.
pub(super) fn admin_queue(client: &Client, memory: &Arc<ClientMemory>, layout: QueueLayout) -> QueuePair {
    let register = Register::Message(client.connection().clone());
    let doorbells = [doorbell(0, false, register.clone()), doorbell(0, true, register)];
    let [submission, completion] = doorbells;
    QueuePair::new(Arc::clone(memory), layout, 1, submission, completion, None)
}

/// A doorbell that is written through `register`. CAP.DSTRD is 0.
fn doorbell(qid: u16, completion: bool, register: Register) -> DriverDoorbell {
    let index = u64::from(qid) * 2 + u64::from(completion);
    DriverDoorbell { offset: DOORBELLS + index * 4, register, shadow: None, value: 0, register_writes: 0 }
}

pub(super) fn take_queue(
    memory: &ClientMemory,
    unused: &mut u64,
    depth: u32,
    slots: u16,
) -> Result<QueueLayout, DriverError> {
    let sq = take(memory, unused, u64::from(depth) * 64)?;
    let cq = take(memory, unused, u64::from(depth) * 16)?;
    let lists = take(memory, unused, u64::from(slots) * PAGE_BYTES)?;
    memory.zero(cq, u64::from(depth) * 16);
    Ok(QueueLayout { depth, sq, cq, lists })
}

fn take(memory: &ClientMemory, unused: &mut u64, len_bytes: u64) -> Result<u64, DriverError> {
    let offset = *unused;
    let end = len_bytes
        .checked_next_multiple_of(PAGE_BYTES)
        .and_then(|len| offset.checked_add(len))
        .filter(|end| *end <= memory.size())
        .ok_or(DriverError::Memory(memory.size()))?;
    *unused = end;
    Ok(offset)
}
