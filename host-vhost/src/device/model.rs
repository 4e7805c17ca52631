//! The device as its vfio-user client sees it: the core's controller and configuration space, and the way
//! from there to pollers, interrupts and storages.
//!
//! [`Model`] lives on the control thread. What a client's message starts is carried on by [`Model::pump`] after
//! the message has been handled, because only then guest memory may be touched by message.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use doorbell_core::controller::{HostReply, HostRequest, NamespaceChange, ResetKind};
use doorbell_core::engine::ControllerEngine;
use doorbell_core::message::{GroupMessage, GroupReply, GroupRequest};
use doorbell_core::pci::{ConfigSpace, MSIX_PBA_OFFSET, PciEvents};
use doorbell_core::spec::register;
use doorbell_core::spec::status::Status;
use rustix::io::Errno;

use super::ioeventfd::IoEventFds;
use super::{ControlMail, DeviceShared, DoorbellMode, MAX_GROUPS, MAX_QUEUES, flush_all};
use crate::doorbell_page::{DOORBELL_BYTES, DOORBELL_OFFSET};
use crate::engine::HostedController;
use crate::interrupt::{INTX, InterruptView};
use crate::mailbox::Mailbox;
use crate::memory::MemoryView;
use crate::poller::idle::now_ns;
use crate::poller::{FromGroup, PollerMail, ToGroup};
use crate::vfio_user::device::{
    Device, InterruptDescription, IoEventFdDescription, MemoryRange, Progress, RegionDescription,
    RegionMapping, Ticket,
};
use crate::vfio_user::request::{IrqAction, IrqData, SetIrqs};

/// BAR0: registers, doorbells, MSI-X table and PBA.
const BAR0: u32 = 0;
/// The configuration space's region.
const CONFIGURATION: u32 = 7;

/// How often a client that doesn't answer is asked what its memory holds.
const SHARING_LOOKS: u32 = 8;

/// The poller of a group.
#[derive(Clone, Debug)]
pub(super) struct GroupAddress {
    pub(super) mailbox: Arc<Mailbox<PollerMail>>,
    pub(super) epoll: Arc<OwnedFd>,
}

/// Doorbell writes that came as messages, by doorbell index.
#[derive(Debug)]
pub(super) struct DoorbellMessages(Box<[u64]>);

impl DoorbellMessages {
    fn new() -> Self {
        Self(vec![0; 2 * (MAX_QUEUES + 1)].into())
    }

    fn count(&mut self, index: u64) {
        if let Some(counter) = usize::try_from(index).ok().and_then(|index| self.0.get_mut(index)) {
            *counter += 1;
        }
    }

    /// Those for one doorbell.
    pub(super) fn of(&self, index: u32) -> u64 {
        self.0.get(index as usize).copied().unwrap_or(0)
    }

    /// Those for all of them.
    pub(super) fn all(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) controller: HostedController,
    /// Where it runs.
    pub(super) engine: String,
    pci: ConfigSpace,
    pub(super) shared: Arc<DeviceShared>,
    pub(super) groups: Vec<GroupAddress>,
    view: MemoryView,
    interrupts: InterruptView,
    pub(super) ioeventfds: IoEventFds,
    pub(super) doorbell_messages: DoorbellMessages,
    /// Unmaps and resets that are answered once the controller has quiesced.
    tickets: Vec<Ticket>,
    /// Groups that have still to say that their INTx level is up to date, before the client's unmask counts.
    level_checks: usize,
    /// What this turn of the control thread has to tell its pollers once.
    look: bool,
    flushing: bool,
    /// Looks at whether the client's memory is shared that are still due.
    pub(super) sharing_looks: u32,
}

impl Model {
    pub(super) fn new(
        controller: HostedController,
        engine: String,
        pci: ConfigSpace,
        shared: Arc<DeviceShared>,
        groups: Vec<GroupAddress>,
    ) -> Self {
        Self {
            controller,
            engine,
            pci,
            view: MemoryView::new(Arc::clone(&shared.memory)),
            interrupts: InterruptView::new(Arc::clone(&shared.interrupts)),
            shared,
            groups,
            ioeventfds: IoEventFds::default(),
            doorbell_messages: DoorbellMessages::new(),
            tickets: Vec::new(),
            level_checks: 0,
            look: false,
            flushing: false,
            sharing_looks: SHARING_LOOKS,
        }
    }

    /// Sends `message` to every group.
    pub(super) fn tell_groups(&self, message: ToGroup) {
        for group in 0..self.groups.len() {
            self.tell_group(group as u16, message);
        }
    }

    fn tell_group(&self, group: u16, message: ToGroup) {
        if let Some(address) = self.groups.get(usize::from(group)) {
            let device = Arc::as_ptr(&self.shared).addr();
            address.mailbox.send(PollerMail::Group { device, group, message });
        }
    }

    /// How many groups there are.
    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Takes what a group says that concerns the controller or the interrupt level.
    pub(super) fn handle_group(&mut self, group: u16, message: &FromGroup) {
        match message {
            FromGroup::Message(message) => {
                if *message == GroupMessage::Reply(GroupReply::ResetDone) {
                    self.shared.set_level(usize::from(group), false);
                }
                self.controller.handle_group_message(group, *message);
            }
            FromGroup::LevelChecked => {
                // An answer to a client that has gone counts for nothing.
                let Some(left) = self.level_checks.checked_sub(1) else { return };
                self.level_checks = left;
                if left == 0 {
                    self.shared.interrupts.unmask_intx();
                }
            }
            FromGroup::Report(report) => self.controller.update_statistics(group, report.statistics),
            FromGroup::Statistics(statistics) => self.controller.update_statistics(group, *statistics),
            FromGroup::Paused { .. }
            | FromGroup::Refreshed { .. }
            | FromGroup::Upgraded(_)
            | FromGroup::Detached => {}
        }
    }

    /// The thread that flushes is done.
    pub(super) fn handle_flushed(&mut self, durable: bool) {
        self.flushing = false;
        let result = if durable { Ok(()) } else { Err(Status::INTERNAL_ERROR) };
        self.controller.handle_host_reply(HostReply::FlushAll(result));
    }

    /// Carries on whatever can be carried on: admin commands, requests to groups, interrupts. Returns namespace
    /// changes that every group knows by now.
    pub(super) fn pump(&mut self) -> Vec<NamespaceChange> {
        self.view.update();
        self.view.release_retired();
        self.interrupts.update();
        let mut changes = Vec::new();
        loop {
            let shared = Arc::clone(&self.shared);
            let more = self.controller.poll(&self.view, shared.doorbells.registers(), now_ns());
            while let Some((group, request)) = self.controller.poll_group_request() {
                self.note_request(group, request);
                self.tell_group(group, ToGroup::Request(request));
            }
            while let Some(vector) = self.controller.poll_interrupt() {
                if !self.shared.is_pin_based() {
                    self.interrupts.raise(vector);
                }
            }
            while let Some(request) = self.controller.poll_host_request() {
                self.handle_host_request(request);
            }
            while let Some(change) = self.controller.poll_namespace_change() {
                changes.push(change);
            }
            if !more {
                break;
            }
        }
        self.ioeventfds.set_active(
            self.controller.doorbell_buffer().is_some() && self.shared.doorbell_mode == DoorbellMode::Shadow,
        );
        self.shared.set_level_masked(self.controller.interrupt_mask() & 1 != 0);
        self.shared.set_level(MAX_GROUPS, self.shared.is_pin_based() && self.controller.is_level_asserted());
        let ready = self.controller.is_ready();
        if self.shared.set_enabled(ready) || self.look {
            self.look = false;
            self.tell_groups(ToGroup::Look);
        }
        changes
    }

    /// Unmaps and resets that are over.
    pub(super) fn finished_tickets(&mut self) -> Vec<Ticket> {
        if self.controller.quiesced() { std::mem::take(&mut self.tickets) } else { Vec::new() }
    }

    /// Whether something waits for the groups to quiesce.
    pub(super) fn is_quiescing(&self) -> bool {
        !self.controller.quiesced()
    }

    /// The client is gone: everything that it lent is given up.
    pub(super) fn client_lost(&mut self) {
        self.controller.reset(ResetKind::Disconnect);
        self.pci.reset();
        self.shared.interrupts.clear();
        self.shared.set_pin_based(true);
        self.ioeventfds.clear();
        self.tickets.clear();
        self.level_checks = 0;
        self.look = true;
        self.sharing_looks = SHARING_LOOKS;
    }

    /// Whether a guest would lose something if we ended now; `None` in the middle of a reset or a shutdown.
    pub(super) fn is_in_use(&mut self) -> Option<bool> {
        let mut csts = [0; 4];
        self.controller.read_register(register::CSTS, &mut csts);
        // RDY, and SHST 10b for a shutdown that is complete.
        match (csts[0] & 1 != 0, csts[0] >> 2 & 3) {
            (true, 0) => Some(true),
            (_, 2) => Some(false),
            _ => None,
        }
    }

    /// The admin submission queue's guest address, once the guest has written a command there.
    pub(super) fn admin_queue_with_commands(&mut self) -> Option<u64> {
        let rung =
            self.shared.doorbells.registers().first().is_some_and(|tail| tail.load(Ordering::Relaxed) != 0);
        if !rung || !self.controller.is_ready() {
            return None;
        }
        let mut asq = [0; 8];
        self.controller.read_register(register::ASQ, &mut asq);
        Some(u64::from_le_bytes(asq))
    }

    /// Unmasks INTx if the client's eventfd says so.
    pub(super) fn handle_intx_unmask(&mut self) {
        if self.shared.interrupts.take_intx_unmask() {
            self.unmask_intx();
        }
    }

    /// The level must be up to date before it can be raised again, or a guest sees an interrupt for completions
    /// that it has taken already.
    fn unmask_intx(&mut self) {
        if self.level_checks == 0 {
            self.level_checks = self.groups.len();
            self.tell_groups(ToGroup::CheckLevel);
        }
    }

    /// Keeps the ioeventfds in step with the queues.
    fn note_request(&mut self, group: u16, request: GroupRequest) {
        let Some(address) = self.groups.get(usize::from(group)) else { return };
        match request {
            GroupRequest::CreateCompletionQueue { qid, .. } => {
                self.ioeventfds.completion_queue_created(qid, group, &address.epoll);
            }
            GroupRequest::CreateSubmissionQueue { qid, .. } => {
                self.ioeventfds.submission_queue_created(qid, group, &address.epoll);
            }
            GroupRequest::DeleteCompletionQueue { qid } => self.ioeventfds.completion_queue_deleted(qid),
            GroupRequest::DeleteSubmissionQueue { qid } => self.ioeventfds.submission_queue_deleted(qid),
            GroupRequest::Reset => self.ioeventfds.clear(),
            _ => {}
        }
    }

    fn handle_host_request(&mut self, request: HostRequest) {
        let HostRequest::FlushAll { abrupt } = request;
        tracing::debug!(abrupt, "shutdown: flushing");
        if self.flushing {
            return;
        }
        self.flushing = true;
        let shared = Arc::clone(&self.shared);
        let spawned = crate::device_thread::spawn("flush", move || {
            let storages: Vec<_> = shared.storages().iter().flatten().cloned().collect();
            let flushed = flush_all(&storages);
            if let Err(error) = &flushed {
                tracing::error!(%error, "flush at shutdown failed");
            }
            shared.control.send(ControlMail::Flushed(flushed.is_ok()));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to flush at shutdown");
            self.handle_flushed(false);
        }
    }

    fn write_bar0(&mut self, offset: u64, data: &[u8]) {
        if offset < DOORBELL_OFFSET {
            let (registers, beyond) = data.split_at(data.len().min((DOORBELL_OFFSET - offset) as usize));
            self.controller.write_register(offset as u32, registers);
            if !beyond.is_empty() {
                self.write_bar0(DOORBELL_OFFSET, beyond);
            }
        } else if offset < DOORBELL_OFFSET + DOORBELL_BYTES {
            self.doorbell_messages.count((offset - DOORBELL_OFFSET) / 4);
            let shared = Arc::clone(&self.shared);
            self.controller.handle_doorbell_write(shared.doorbells.registers(), offset as u32, data);
            if offset >= DOORBELL_OFFSET + 8 {
                let group = self.ioeventfds.group_of(((offset - DOORBELL_OFFSET) / 4) as u32);
                if let Some(address) = group.and_then(|group| self.groups.get(usize::from(group))) {
                    address.mailbox.waker().wake();
                }
            }
        }
    }

    fn read_bar0(&mut self, offset: u64, data: &mut [u8]) {
        if offset < DOORBELL_OFFSET {
            let (registers, beyond) = data.split_at_mut(data.len().min((DOORBELL_OFFSET - offset) as usize));
            self.controller.read_register(offset as u32, registers);
            if !beyond.is_empty() {
                self.read_bar0(DOORBELL_OFFSET, beyond);
            }
            return;
        }
        // Doorbells are write-only: reads are vendor specific, and 0 here. The MSI-X table is the client's.
        data.fill(0);
        let pba = u64::from(MSIX_PBA_OFFSET);
        for (place, byte) in (offset..).zip(data.iter_mut()) {
            if let Some(vectors) = place.checked_sub(pba).and_then(|index| u16::try_from(index * 8).ok()) {
                *byte = (0..8).fold(0, |byte, bit| {
                    byte | u8::from(self.shared.interrupts.is_pending(vectors + bit)) << bit
                });
            }
        }
    }

    fn handle_pci_events(&mut self, events: PciEvents) {
        if events.contains(PciEvents::FLR) {
            self.controller.reset(ResetKind::Flr);
            self.look = true;
        }
        if events.contains(PciEvents::D3HOT_ENTERED) {
            self.controller.reset(ResetKind::D3hot);
            self.look = true;
        }
    }
}

impl Device for Model {
    fn region(&self, index: u32) -> RegionDescription<'_> {
        match index {
            BAR0 => RegionDescription {
                size: self.pci.config().bar0_bytes,
                readable: true,
                writable: true,
                mapping: (self.shared.doorbell_mode == DoorbellMode::Mapped).then(|| RegionMapping {
                    file: self.shared.doorbells.as_fd(),
                    file_offset: 0,
                    areas: self.shared.doorbells.areas(),
                }),
            },
            CONFIGURATION => RegionDescription { size: 4096, readable: true, writable: true, mapping: None },
            _ => RegionDescription::default(),
        }
    }

    fn interrupts(&self, index: u32) -> InterruptDescription {
        self.shared.interrupts.describe(index)
    }

    fn io_eventfds(&self, region: u32) -> Vec<IoEventFdDescription<'_>> {
        if region == BAR0 { self.ioeventfds.describe() } else { Vec::new() }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        match region {
            BAR0 => self.read_bar0(offset, data),
            CONFIGURATION => self.pci.read(offset as u32, data),
            _ => data.fill(0xff),
        }
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region {
            BAR0 => self.write_bar0(offset, data),
            CONFIGURATION => {
                let events = self.pci.write(offset as u32, data);
                self.handle_pci_events(events);
            }
            _ => {}
        }
    }

    fn set_irqs(&mut self, request: &SetIrqs<'_>, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        if request.index == INTX
            && request.action == IrqAction::Unmask
            && matches!(request.data, IrqData::None)
            && request.count > 0
            && self.shared.is_pin_based()
        {
            self.unmask_intx();
            return Ok(());
        }
        let result = self.shared.interrupts.set(request, fds);
        self.shared.set_pin_based(!self.shared.interrupts.msix_in_use());
        self.look = true;
        result
    }

    fn memory_removed(&mut self, ranges: &[MemoryRange], ticket: Ticket) -> Progress {
        for range in ranges {
            self.controller.handle_unmap(range.iova, range.size);
        }
        self.look = true;
        self.tickets.push(ticket);
        Progress::Later
    }

    fn reset(&mut self, ticket: Ticket) -> Progress {
        self.controller.reset(ResetKind::Flr);
        self.pci.reset();
        self.look = true;
        self.tickets.push(ticket);
        Progress::Later
    }
}
