//! One submission queue and one completion queue, from the driver's side.
//!
//! Nothing is allocated after [`QueuePair::new`], and where doorbells are mapped or shadowed the way of a
//! command takes no system call: commands are written with [`QueuePair::submit`], shown to the controller with
//! [`QueuePair::ring`] once a batch, and collected with [`QueuePair::poll`], which writes the completion
//! queue's doorbell once a batch.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use doorbell_core::spec::queue_entry::CompletionQueueEntry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::memory::ClientMemory;
use super::post_region_write;
use crate::memory::Mapping;
use crate::vfio_user::connection::{Connection, Lost};
use crate::vfio_user::protocol::{Command, RegionAccess};
use zerocopy::IntoBytes;

/// Bytes of a memory page (CC.MPS 0).
pub const PAGE_BYTES: u64 = 4096;

/// The longest transfer: one page of PRP entries.
pub const MAX_TRANSFER_BYTES: u32 = 1 << 21;

/// When a driver writes the register of a shadowed doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowRule {
    /// Linux: the position moved past EventIdx.
    Linux,
    /// SPDK: it moved past EventIdx or onto it.
    Spdk,
}

impl ShadowRule {
    fn wants_register(self, event_idx: u32, new: u32, old: u32) -> bool {
        let [event_idx, new, old] = [event_idx as u16, new as u16, old as u16];
        let moved = new.wrapping_sub(old);
        match self {
            Self::Linux => new.wrapping_sub(event_idx).wrapping_sub(1) < moved,
            Self::Spdk => new.wrapping_sub(event_idx) <= moved,
        }
    }
}

/// How a register of BAR0 is written.
#[derive(Clone, Debug)]
pub enum Register {
    /// By a message that waits for its reply, as QEMU does where some region is mapped.
    Message(Connection),
    /// By a message without reply.
    Posted(Connection),
    /// Through the mapped page.
    Mapped(Arc<DoorbellMap>),
    /// By an eventfd that stands for it; only of use where the value is in the shadow.
    EventFd(Arc<OwnedFd>),
}

/// The doorbell page, mapped.
#[derive(Debug)]
pub struct DoorbellMap {
    mapping: Mapping,
    offset: u64,
    size: u64,
}

impl DoorbellMap {
    /// `mapping` is `size` bytes of BAR0 from `offset`.
    #[must_use]
    pub fn new(mapping: Mapping, offset: u64, size: u64) -> Self {
        Self { mapping, offset, size }
    }

    /// The register at `offset` of BAR0.
    #[must_use]
    #[expect(unsafe_code, reason = "an atomic in a shared mapping")]
    pub fn register(&self, offset: u64) -> Option<&AtomicU32> {
        let at = offset.checked_sub(self.offset)?;
        if at.checked_add(4)? > self.size || !at.is_multiple_of(4) {
            return None;
        }
        // SAFETY: inside the mapping.
        let register = unsafe { self.mapping.base().0.as_ptr().add(at as usize) };
        // SAFETY: aligned, mapped as long as `self` lives, and changed by others as atomics may be.
        Some(unsafe { AtomicU32::from_ptr(register.cast()) })
    }
}

/// A doorbell as its driver writes it.
#[derive(Debug)]
pub struct DriverDoorbell {
    /// Place of the register in BAR0.
    pub offset: u64,
    /// How the register is written.
    pub register: Register,
    /// Where the shadow and EventIdx entries are, if they are in use.
    pub shadow: Option<DriverShadow>,
    /// What was written last.
    pub value: u32,
    /// Writes of the register so far.
    pub register_writes: u64,
}

/// The shadow of a doorbell.
#[derive(Clone, Debug)]
pub struct DriverShadow {
    /// When the register is written too.
    pub rule: ShadowRule,
    /// The memory that both entries are in.
    pub memory: Arc<ClientMemory>,
    /// Offset of the Shadow Doorbell entry.
    pub shadow: u64,
    /// Offset of the EventIdx entry.
    pub event_idx: u64,
}

impl DriverDoorbell {
    /// Shows the controller a new position.
    #[inline]
    fn write(&mut self, value: u32) -> Result<(), Lost> {
        if value == self.value {
            return Ok(());
        }
        let old = std::mem::replace(&mut self.value, value);
        if let Some(shadow) = &self.shadow {
            // Entries before the position; pairs with the controller's acquire after it reads the shadow.
            shadow.memory.dwords(shadow.shadow, 1)[0].store(value, Ordering::Release);
            // Pairs with the fence of the controller between its EventIdx store and its last look at the
            // shadow: one of the two sides sees the other.
            fence(Ordering::SeqCst);
            let event_idx = shadow.memory.dwords(shadow.event_idx, 1)[0].load(Ordering::Relaxed);
            if !shadow.rule.wants_register(event_idx, value, old) {
                return Ok(());
            }
        }
        self.write_register(value)
    }

    fn write_register(&mut self, value: u32) -> Result<(), Lost> {
        self.register_writes += 1;
        match &self.register {
            Register::Mapped(map) => {
                if let Some(register) = map.register(self.offset) {
                    // Entries before the doorbell.
                    register.store(value, Ordering::Release);
                }
                Ok(())
            }
            Register::Posted(connection) => post_region_write(connection, 0, self.offset, value),
            Register::Message(connection) => {
                connection.set_reader();
                let access = RegionAccess { offset: self.offset.into(), region: 0.into(), count: 4.into() };
                let parts = [access.as_bytes(), &value.to_le_bytes()];
                match connection.call(Command::REGION_WRITE, parts, &[], super::TIMEOUT, &mut Vec::new()) {
                    Ok(_) => Ok(()),
                    Err(crate::vfio_user::connection::CallError::Lost(lost)) => Err(lost),
                    Err(_) => Err(Lost::Closed),
                }
            }
            Register::EventFd(eventfd) => {
                // A counter that is full has been signalled already.
                let _ = rustix::io::write(&**eventfd, &1u64.to_ne_bytes());
                Ok(())
            }
        }
    }
}

/// How a command names its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// No data.
    None,
    /// PRP entries, and a PRP list where there are more than two pages.
    Prp {
        /// First guest address.
        iova: u64,
        /// Bytes, at most [`MAX_TRANSFER_BYTES`].
        len_bytes: u32,
    },
    /// One SGL data block descriptor.
    Sgl {
        /// First guest address.
        iova: u64,
        /// Bytes.
        len_bytes: u32,
    },
}

/// A command as the driver's user gives it.
#[derive(Clone, Copy, Debug)]
pub struct DriverCommand {
    /// Opcode.
    pub opcode: u8,
    /// Namespace identifier.
    pub nsid: u32,
    /// Command dwords 10 to 15.
    pub cdw: [u32; 6],
    /// The data.
    pub data: DataPointer,
}

impl DriverCommand {
    /// Read (02h) or Write (01h) of `blocks` blocks at `slba`.
    #[must_use]
    pub fn transfer(opcode: u8, nsid: u32, slba: u64, blocks: u32, data: DataPointer) -> Self {
        let cdw = [slba as u32, (slba >> 32) as u32, blocks.wrapping_sub(1) & 0xffff, 0, 0, 0];
        Self { opcode, nsid, cdw, data }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    memory: Arc<ClientMemory>,
    layout: QueueLayout,
    tail: u32,
    /// What the controller has taken of the submission queue, by SQHD.
    sq_head: u32,
    cq_head: u32,
    phase: bool,
    /// Command identifiers that are free.
    free: Vec<u16>,
    sq_doorbell: DriverDoorbell,
    cq_doorbell: DriverDoorbell,
    interrupt: Option<Arc<OwnedFd>>,
    submitted: u64,
    completed: u64,
    interrupts: u64,
}

/// Where a queue pair is in its memory, as offsets.
#[derive(Clone, Copy, Debug)]
pub struct QueueLayout {
    /// Entries of either queue, 2 to 65,536.
    pub depth: u32,
    /// The submission queue.
    pub sq: u64,
    /// The completion queue, all zero.
    pub cq: u64,
    /// One page of PRP list for each command.
    pub lists: u64,
}

impl QueuePair {
    /// A queue pair that the controller knows or will know; `slots` commands at most are in flight.
    #[must_use]
    pub fn new(
        memory: Arc<ClientMemory>,
        layout: QueueLayout,
        slots: u16,
        sq_doorbell: DriverDoorbell,
        cq_doorbell: DriverDoorbell,
        interrupt: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            memory,
            layout,
            tail: 0,
            sq_head: 0,
            cq_head: 0,
            phase: true,
            free: (0..slots).rev().collect(),
            sq_doorbell,
            cq_doorbell,
            interrupt,
            submitted: 0,
            completed: 0,
            interrupts: 0,
        }
    }

    /// Writes a command into the queue, or returns `None` where there is no room. The controller sees it after
    /// [`QueuePair::ring`]. The result is the command identifier, which [`QueuePair::poll`] gives back.
    #[inline]
    pub fn submit(&mut self, command: &DriverCommand) -> Option<u16> {
        let next = if self.tail + 1 == self.layout.depth { 0 } else { self.tail + 1 };
        if next == self.sq_head {
            return None;
        }
        let cid = self.free.pop()?;
        let (psdt, prp1, prp2) = match command.data {
            DataPointer::None => (0, 0, 0),
            DataPointer::Prp { iova, len_bytes } => {
                let (prp1, prp2) = self.prps(cid, iova, len_bytes);
                (0, prp1, prp2)
            }
            DataPointer::Sgl { iova, len_bytes } => (1 << 14, iova, u64::from(len_bytes)),
        };
        let dword0 = u64::from(cid) << 16 | psdt | u64::from(command.opcode);
        let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = command.cdw.map(u64::from);
        let entry = self.sq_entry(self.tail);
        entry[0].store(u64::from(command.nsid) << 32 | dword0, Ordering::Relaxed);
        entry[1].store(0, Ordering::Relaxed);
        entry[2].store(0, Ordering::Relaxed);
        entry[3].store(prp1, Ordering::Relaxed);
        entry[4].store(prp2, Ordering::Relaxed);
        entry[5].store(cdw11 << 32 | cdw10, Ordering::Relaxed);
        entry[6].store(cdw13 << 32 | cdw12, Ordering::Relaxed);
        entry[7].store(cdw15 << 32 | cdw14, Ordering::Relaxed);
        self.tail = next;
        self.submitted += 1;
        Some(cid)
    }

    /// Shows the controller what was submitted.
    ///
    /// # Errors
    /// The server is gone.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Lost> {
        self.sq_doorbell.write(self.tail)
    }

    /// Collects what has completed, `limit` entries at most, and tells the controller once.
    ///
    /// # Errors
    /// The server is gone.
    #[inline]
    pub fn poll(&mut self, limit: usize, each: &mut impl FnMut(CompletionQueueEntry)) -> Result<usize, Lost> {
        let mut count = 0;
        while count < limit {
            let [low, high] = self.cq_entry(self.cq_head) else { break };
            // The half with the Phase Tag first; pairs with the controller's release before it stores it.
            let high = high.load(Ordering::Acquire);
            if (high >> 48 & 1 != 0) != self.phase {
                break;
            }
            let low = low.load(Ordering::Relaxed);
            let entry = CompletionQueueEntry::from_dwords([
                low as u32,
                (low >> 32) as u32,
                high as u32,
                (high >> 32) as u32,
            ]);
            self.sq_head = u32::from(entry.sqhd);
            self.free.push(entry.cid);
            self.cq_head += 1;
            if self.cq_head == self.layout.depth {
                self.cq_head = 0;
                self.phase = !self.phase;
            }
            count += 1;
            each(entry);
        }
        if count > 0 {
            self.completed += count as u64;
            self.cq_doorbell.write(self.cq_head)?;
        }
        Ok(count)
    }

    /// Sleeps until the queue's interrupt, at most `timeout`. Returns whether it came. Look at the queue
    /// before and after.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(&mut self, timeout: std::time::Duration) -> Result<bool, rustix::io::Errno> {
        let Some(interrupt) = &self.interrupt else { return Ok(false) };
        let timeout = Timespec::try_from(timeout).map_err(|_| rustix::io::Errno::INVAL)?;
        let mut fds = [PollFd::new(&**interrupt, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Ok(false);
        }
        let mut count = [0; 8];
        rustix::io::read(&**interrupt, &mut count)?;
        self.interrupts += u64::from_ne_bytes(count);
        Ok(true)
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.submitted - self.completed
    }

    /// Commands that completed.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Interrupts that [`QueuePair::wait`] has taken, those that came together included.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Register writes of both doorbells.
    #[must_use]
    pub fn register_writes(&self) -> u64 {
        self.sq_doorbell.register_writes + self.cq_doorbell.register_writes
    }

    /// The two doorbells, to change how they are written: submission queue tail, completion queue head.
    pub fn doorbells_mut(&mut self) -> [&mut DriverDoorbell; 2] {
        [&mut self.sq_doorbell, &mut self.cq_doorbell]
    }

    /// PRP entries for a transfer, with its list in the page of the command.
    #[inline]
    fn prps(&self, cid: u16, iova: u64, len_bytes: u32) -> (u64, u64) {
        let first = PAGE_BYTES - iova % PAGE_BYTES;
        let len_bytes = u64::from(len_bytes);
        if len_bytes <= first {
            return (iova, 0);
        }
        let second = iova + first;
        if len_bytes - first <= PAGE_BYTES {
            return (iova, second);
        }
        let count = (len_bytes - first).div_ceil(PAGE_BYTES) as usize;
        let list = self.layout.lists + u64::from(cid) * PAGE_BYTES;
        let mut page = second;
        for entry in self.memory.qwords(list, count) {
            entry.store(page, Ordering::Relaxed);
            page += PAGE_BYTES;
        }
        (iova, self.memory.iova() + list)
    }

    #[inline]
    fn sq_entry(&self, index: u32) -> &[AtomicU64] {
        self.memory.qwords(self.layout.sq + u64::from(index) * 64, 8)
    }

    #[inline]
    fn cq_entry(&self, index: u32) -> &[AtomicU64] {
        self.memory.qwords(self.layout.cq + u64::from(index) * 16, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_behind_rings_never_with_linux_and_at_a_full_ring_with_spdk() {
        for (rule, rings) in [(ShadowRule::Linux, 0), (ShadowRule::Spdk, 1)] {
            let size = 64;
            let found = (1..size)
                .filter(|step| rule.wants_register((10 + size - 1) % size, (10 + step) % size, 10))
                .count();
            assert_eq!(found, rings, "{rule:?}");
        }
    }
}
