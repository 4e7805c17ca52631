//! The controller: registers, the admin queue and what it commands; never on the I/O path.
//!
//! The host drives a [`Controller`] from one thread:
//!
//! * inputs: [`Controller::write_register`], [`Controller::handle_group_message`],
//!   [`Controller::handle_host_reply`], [`Controller::reset`], [`Controller::handle_unmap`] and the namespace
//!   calls. Each is followed by [`Controller::poll`], which is where guest memory is touched;
//! * outputs, asked for until they return `None`: [`Controller::poll_group_request`],
//!   [`Controller::poll_interrupt`], [`Controller::poll_host_request`],
//!   [`Controller::poll_namespace_change`].
//!
//! Admin commands run one after the other. One that needs queue groups waits for their replies and no other is
//! fetched meanwhile; Asynchronous Event Requests are held apart from that.

mod admin;
mod admin_queue;
mod config;
mod error_log;
mod events;
mod features;
mod groups;
mod identify;
mod lifecycle;
mod logs;
mod namespaces;
mod page;
mod queues;
mod register;
mod smart;
#[cfg(all(test, not(loom)))]
mod tests;

pub use config::{Ascii, ControllerConfig};
pub use lifecycle::ResetKind;
pub use namespaces::{NamespaceChange, NamespaceConfig, NamespaceError};
pub use smart::SmartCounters;

use crate::data::{DataWriter, Segments};
use crate::doorbell::Registers;
use crate::memory::DmaMemory;
use crate::message::{DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest, GroupStatistics};
use crate::place::Place;
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::register::DOORBELLS;
use crate::spec::status::Status;
use crate::sync::Ordering;
use admin_queue::AdminQueue;
use error_log::{ControllerError, ErrorLog};
use events::{Event, Events};
use features::Features;
use groups::{Due, Groups, UnderWay};
use lifecycle::{Lifecycle, Shutdown};
use namespaces::Namespaces;
use page::PageWriter;
use queues::Queues;
use register::RegisterFile;
use smart::Smart;

/// An NVMe controller without its I/O path.
///
/// `GROUPS` is the most queue groups it can have (up to 64), `QUEUES` the most I/O queue pairs (up to 511, so
/// that all doorbells fit into a page), `NAMESPACES` the highest namespace identifier (up to 1024), `ERRORS`
/// the entries of the Error Information log (up to 256). All of it is plain data.
#[derive(Clone, Debug)]
pub struct Controller<
    const GROUPS: usize = 8,
    const QUEUES: usize = 64,
    const NAMESPACES: usize = 16,
    const ERRORS: usize = 64,
> {
    config: ControllerConfig,
    registers: RegisterFile,
    lifecycle: Lifecycle,
    shutdown: Shutdown,
    /// The host has been asked to flush and hasn't answered.
    flush_under_way: bool,
    /// There while the controller is ready.
    admin: Place<AdminQueue>,
    /// Memory page size as a power of two, as it was when the controller was enabled.
    page_shift: u8,
    doorbell_buffer: Option<DoorbellBuffer>,
    pending: Place<PendingCommand>,
    interrupt_due: bool,
    queues: Queues<QUEUES>,
    groups: Groups<GROUPS>,
    namespaces: Namespaces<NAMESPACES>,
    features: Features,
    events: Events,
    errors: ErrorLog<ERRORS>,
    smart: Smart,
    /// What each group has reported last.
    statistics: [GroupStatistics; GROUPS],
}

/// What the host is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// A shutdown: make every completed write durable. No command is in flight any more.
    FlushAll {
        /// The guest is about to lose power (SHN 10b): be quick.
        abrupt: bool,
    },
}

/// The answer to a [`HostRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostReply {
    /// To [`HostRequest::FlushAll`]. An error goes to the Error Information log; the shutdown completes.
    FlushAll(Result<(), Status>),
}

/// How an admin command goes on.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// It is done, with this dword 0.
    Result(u32),
    /// It is an Asynchronous Event Request and held.
    Held,
    /// One group has to do something first.
    ForGroup(u16, GroupRequest),
    /// Every group has to do something first.
    ForAllGroups(GroupRequest),
}

/// The admin command that waits for groups.
#[derive(Clone, Copy, Debug)]
struct PendingCommand {
    command: SubmissionQueueEntry,
    request: GroupRequest,
    failure: Option<Status>,
    aborted: bool,
}

impl PendingCommand {
    const fn new(command: SubmissionQueueEntry, request: GroupRequest) -> Self {
        Self { command, request, failure: None, aborted: false }
    }

    fn fail_if_doorbell_buffer(&mut self, gone: impl Fn(&DoorbellBuffer) -> bool) {
        if let GroupRequest::SetDoorbellBuffer(buffer) = &self.request
            && gone(buffer)
        {
            self.failure = Some(Status::DATA_TRANSFER_ERROR.dnr());
        }
    }
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// A disabled controller without namespaces.
    #[must_use]
    pub const fn new(config: ControllerConfig) -> Self {
        let mut controller = Self::blank();
        controller.configure(config);
        controller
    }

    /// A controller that is zero bytes throughout, so that a static of it takes no room in flash. It can't be
    /// enabled until [`Controller::configure`] has told it what it is.
    #[must_use]
    pub const fn blank() -> Self {
        const {
            assert!(GROUPS >= 1 && GROUPS <= 64, "1 to 64 groups");
            assert!(QUEUES >= 1 && QUEUES <= 511, "1 to 511 queue pairs");
            assert!(NAMESPACES >= 1 && NAMESPACES <= 1024, "1 to 1024 namespaces");
            assert!(ERRORS >= 1 && ERRORS <= 256, "1 to 256 error log entries");
        }
        Self {
            config: ControllerConfig::BLANK,
            registers: RegisterFile::blank(),
            lifecycle: Lifecycle::Disabled,
            shutdown: Shutdown::None,
            flush_under_way: false,
            admin: Place::Empty,
            page_shift: 0,
            doorbell_buffer: None,
            pending: Place::Empty,
            interrupt_due: false,
            queues: Queues::new(),
            groups: Groups::new(0),
            namespaces: Namespaces::new(),
            features: Features::blank(),
            events: Events::new(),
            errors: ErrorLog::new(),
            smart: Smart::blank(),
            statistics: [GroupStatistics {
                bytes_read: 0,
                bytes_written: 0,
                read_commands: 0,
                write_commands: 0,
                media_errors: 0,
                error_log_entries: 0,
            }; GROUPS],
        }
    }

    /// Configures a controller that nobody has used yet; namespaces are added afterwards.
    pub const fn configure(&mut self, config: ControllerConfig) {
        self.config = config.in_range(GROUPS, QUEUES);
        self.registers = RegisterFile::new(&self.config);
        self.page_shift = self.config.page_shift_min;
        self.groups = Groups::new(self.config.groups);
        self.features = Features::new(&self.config);
        self.smart = Smart::new();
    }

    /// The configuration as it was brought into range.
    #[must_use]
    pub const fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// A request for the group at this index, or `None`. The host carries it there and brings the answer to
    /// [`Controller::handle_group_message`].
    #[must_use = "the controller waits for the answer"]
    pub fn poll_group_request(&mut self) -> Option<(u16, GroupRequest)> {
        for group in 0..self.groups.count() {
            let (under_way, request) = match self.groups.take_due(group) {
                Due::Busy => continue,
                Due::Reset => (UnderWay::Reset, GroupRequest::Reset),
                Due::ClearDoorbellBuffer => {
                    (UnderWay::ClearDoorbellBuffer, GroupRequest::ClearDoorbellBuffer)
                }
                Due::Nothing => match self.namespaces.take_due(group) {
                    Some((index, request)) => (UnderWay::Namespace(index), request),
                    None => match self.pending.as_ref() {
                        Some(pending) if self.groups.command_due.remove(group) => {
                            self.groups.command_sent.insert(group);
                            (UnderWay::Command, pending.request)
                        }
                        _ => continue,
                    },
                },
            };
            self.groups.set_under_way(group, under_way);
            return Some((group, request));
        }
        None
    }

    /// Takes a message of the group at this index. Answers to requests that a reset has overtaken are
    /// recognised and dropped. The host calls [`Controller::poll`] afterwards.
    pub fn handle_group_message(&mut self, group: u16, message: GroupMessage) {
        match message {
            GroupMessage::Reply(reply) => self.handle_group_reply(group, reply),
            GroupMessage::Event(event) => self.handle_group_event(group, event),
        }
    }

    fn handle_group_reply(&mut self, group: u16, reply: GroupReply) {
        if let GroupReply::Statistics(statistics) = reply {
            self.update_statistics(group, statistics);
        }
        let under_way = self.groups.under_way(group);
        if (under_way == UnderWay::Reset) != (reply == GroupReply::ResetDone) {
            return;
        }
        self.groups.set_under_way(group, UnderWay::Nothing);
        match under_way {
            UnderWay::Namespace(index) => {
                let failed = matches!(reply, GroupReply::Failed(_));
                self.namespace_answered(group, index, failed);
            }
            UnderWay::Command => {
                self.groups.command_sent.remove(group);
                if let Some(pending) = self.pending.as_mut() {
                    match reply {
                        GroupReply::Failed(status) => pending.failure = Some(status),
                        GroupReply::Abort { aborted } => pending.aborted |= aborted,
                        GroupReply::Done | GroupReply::Statistics(_) | GroupReply::ResetDone => {}
                    }
                }
            }
            UnderWay::Nothing | UnderWay::Reset | UnderWay::ClearDoorbellBuffer => {}
        }
    }

    fn handle_group_event(&mut self, group: u16, event: GroupEvent) {
        if let GroupEvent::CommandError(error) = event {
            self.log_error(error.into());
        }
        // What a group says about queues that it is giving up concerns nobody.
        if self.lifecycle != Lifecycle::Running || self.groups.under_way(group) == UnderWay::Reset {
            return;
        }
        match event {
            GroupEvent::InvalidDoorbell { qid, .. } => {
                self.invalid_doorbell(qid, Event::InvalidDoorbellValue)
            }
            GroupEvent::Fatal { .. } => self.registers.status.set_cfs(true),
            GroupEvent::CommandError(_) => {}
        }
    }

    /// A write into the doorbell region that the host has seen: stores it into `registers`, or raises the event
    /// for a doorbell that doesn't exist. `offset` counts from the start of the registers, so it is at least
    /// 1000h; only naturally aligned dwords are doorbells.
    ///
    /// Hosts whose guests write doorbells through a mapping need this for the writes that don't go that way.
    pub fn handle_doorbell_write(&mut self, registers: &Registers, offset: u32, data: &[u8]) {
        if self.lifecycle != Lifecycle::Running {
            return;
        }
        let index = offset.checked_sub(DOORBELLS).filter(|offset| offset & 3 == 0).map(|offset| offset >> 2);
        if let (Some(index), Ok(bytes)) = (index, <[u8; 4]>::try_from(data))
            && let Ok(qid) = u16::try_from(index >> 1)
            && let Some(register) = registers.get(index as usize)
        {
            let exists = match index & 1 {
                _ if qid == 0 => true,
                0 => self.queues.completion_queue_of(qid).is_some(),
                _ => self.queues.has_completion_queue(qid),
            };
            if exists {
                register.store(u32::from_le_bytes(bytes), Ordering::Release);
            } else {
                self.invalid_doorbell(qid, Event::InvalidDoorbellRegister);
            }
            return;
        }
        self.invalid_doorbell(0xffff, Event::InvalidDoorbellRegister);
    }

    /// The vector of an interrupt to raise on account of the admin queue (always vector 0), or `None`.
    #[must_use = "the interrupt has to be raised"]
    pub fn poll_interrupt(&mut self) -> Option<u16> {
        core::mem::take(&mut self.interrupt_due).then_some(0)
    }

    /// For pin-based interrupts: whether the admin completion queue asserts the pin, as of the last
    /// [`Controller::poll`]. The host adds the groups' level where [`Controller::interrupt_mask`] bit 0 is 0.
    #[must_use]
    pub fn is_level_asserted(&self) -> bool {
        self.registers.interrupt_mask & 1 == 0 && self.admin.as_ref().is_some_and(AdminQueue::has_unread)
    }

    /// The interrupt mask that INTMS and INTMC make, for pin-based interrupts: bit 0 is the pin.
    #[must_use]
    pub const fn interrupt_mask(&self) -> u32 {
        self.registers.interrupt_mask
    }

    /// Whether CSTS.RDY is 1.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.registers.status.rdy()
    }

    /// The shadow doorbells in use.
    #[must_use]
    pub const fn doorbell_buffer(&self) -> Option<DoorbellBuffer> {
        self.doorbell_buffer
    }

    /// Goes on with the counters of an earlier life of the host. Once, before the guest sees the controller.
    pub fn restore_smart_counters(&mut self, counters: SmartCounters) {
        self.errors.continue_from(counters.error_log_entries);
        self.smart.continue_from(counters);
    }

    /// The counters to keep over a restart of the host. The groups' part is as new as their last report: a
    /// SMART log page read by the driver, or [`Controller::update_statistics`].
    #[must_use]
    pub fn smart_counters(&self) -> SmartCounters {
        self.smart.counters(&self.statistics, self.errors.count())
    }

    /// A group's statistics, which the host may bring unasked.
    pub fn update_statistics(&mut self, group: u16, statistics: GroupStatistics) {
        if let Some(place) = self.statistics.get_mut(usize::from(group)) {
            *place = statistics;
        }
    }

    /// Adds time that an I/O command was in flight; a host that measures it calls this from time to time.
    pub fn add_busy_time(&mut self, busy_ns: u64) {
        self.smart.add_busy_time(busy_ns);
    }

    /// Sets the composite temperature in kelvins; without a call it is 313.
    pub fn set_temperature(&mut self, kelvins: u16) {
        self.smart.set_temperature(kelvins);
        self.check_temperature();
    }

    fn check_temperature(&mut self) {
        let warning = self.features.temperature_warning(self.smart.temperature());
        if self.features.wants_warning(warning) {
            self.events.raise(Event::TemperatureThreshold);
        }
    }

    fn invalid_doorbell(&mut self, qid: u16, event: Event) {
        self.log_error(ControllerError::of_queue(qid, Status::INVALID_FIELD));
        self.events.raise(event);
    }

    fn log_error(&mut self, error: ControllerError) {
        self.errors.push(error);
    }

    fn page_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.page_shift))
    }

    /// A writer of `len_bytes` bytes from `offset` of a page of data to the guest memory that `command` names.
    fn page_writer<'a, M: DmaMemory>(
        &self,
        memory: &'a M,
        command: &SubmissionQueueEntry,
        offset: u64,
        len_bytes: u32,
    ) -> PageWriter<'a, M> {
        let segments = Segments::from_prp(command, len_bytes, self.page_shift);
        PageWriter::new(memory, DataWriter::new(segments), offset, len_bytes)
    }
}
