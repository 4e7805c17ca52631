//! One seam, two engines: what a host uses of a controller and of a queue group, whoever carries it out.
//!
//! [`Controller`] and [`QueueGroup`] implement the traits by themselves, without a cost. A sandbox implements them
//! by the same code inside a module that it doesn't trust. A host that takes [`ControllerEngine`] and
//! [`GroupEngine`] serves both.
//!
//! What differs for a host that is to serve a sandbox too:
//!
//! * Everything takes `&mut self`, register reads and counters included.
//! * Completions may be posted later than [`GroupEngine::complete`] returns, at the latest in the next
//!   [`GroupEngine::poll_command`], [`GroupEngine::flush`] or [`GroupEngine::arm`]; so the host goes on with its
//!   loop after it has completed commands, and doesn't sleep without [`GroupEngine::arm`].
//! * [`GroupEngine::poll_command`] may fetch several commands at once. Those that the host hasn't taken yet
//!   count in [`GroupEngine::in_flight`], and [`GroupEngine::poll_command`] gives them out even while the group
//!   is paused or resetting.
//! * It may hold what the host hasn't taken yet. Before [`GroupEngine::save`] the host takes everything that
//!   [`GroupEngine::poll_fetched`] and the other polls give out, and calls [`GroupEngine::flush`].
//! * An engine can fail. It then says [`GroupEvent::Fatal`](crate::message::GroupEvent::Fatal), its controller
//!   shows CSTS.CFS, and the guest's next controller reset begins anew.

use crate::command::IoCommand;
use crate::controller::{
    Controller, ControllerConfig, HostReply, HostRequest, NamespaceChange, NamespaceConfig, NamespaceError,
    ResetKind, SmartCounters,
};
use crate::doorbell::Registers;
use crate::group::{Armed, Completed, QueueGroup, QueueStatistics};
use crate::memory::DmaMemory;
use crate::message::{DoorbellBuffer, GroupMessage, GroupRequest, GroupStatistics};
use crate::namespace::Namespace;
use crate::spec::status::Status;
use crate::state::StateError;
use crate::tag::Tag;

/// Why an engine's state was not saved or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoveError {
    /// The state itself.
    State(StateError),
    /// The engine holds something that the host has to take before: what.
    Undrained(&'static str),
    /// The engine can't, or says something else than its host knows: what.
    Engine(&'static str),
}

impl From<StateError> for MoveError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl core::fmt::Display for MoveError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::State(error) => error.fmt(f),
            Self::Undrained(what) => write!(f, "the controller is busy with {what}: try again"),
            Self::Engine(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for MoveError {}

/// A controller without its I/O path. Each method is [`Controller`]'s of the same name.
pub trait ControllerEngine {
    /// The configuration as it was brought into range.
    fn config(&self) -> &ControllerConfig;

    /// Reads registers below the doorbells.
    fn read_register(&mut self, offset: u32, data: &mut [u8]);

    /// Writes registers below the doorbells. The host calls [`ControllerEngine::poll`] afterwards.
    fn write_register(&mut self, offset: u32, data: &[u8]);

    /// A write into the doorbell region that the host has seen.
    fn handle_doorbell_write(&mut self, registers: &Registers, offset: u32, data: &[u8]);

    /// Does what there is to do; whether there is more to do right now.
    #[must_use = "whether to call again at once"]
    fn poll(&mut self, memory: &impl DmaMemory, registers: &Registers, now_ns: u64) -> bool;

    /// A request for the group at this index, or `None`.
    #[must_use = "the controller waits for the answer"]
    fn poll_group_request(&mut self) -> Option<(u16, GroupRequest)>;

    /// Takes a message of the group at this index.
    fn handle_group_message(&mut self, group: u16, message: GroupMessage);

    /// The vector of an interrupt to raise, or `None`.
    #[must_use = "the interrupt has to be raised"]
    fn poll_interrupt(&mut self) -> Option<u16>;

    /// Asks for what the host is to do, or `None`.
    #[must_use = "a shutdown waits for the reply"]
    fn poll_host_request(&mut self) -> Option<HostRequest>;

    /// The answer to a [`HostRequest`].
    fn handle_host_reply(&mut self, reply: HostReply);

    /// A namespace change that has reached every group, or `None`.
    #[must_use = "a removed namespace's storage waits for this"]
    fn poll_namespace_change(&mut self) -> Option<NamespaceChange>;

    /// Resets the controller.
    fn reset(&mut self, kind: ResetKind);

    /// Whether nothing of an earlier life can touch guest memory any more.
    fn quiesced(&self) -> bool;

    /// Guest memory is going away.
    fn handle_unmap(&mut self, address: u64, len_bytes: u64);

    /// Whether the admin completion queue asserts the pin, as of the last poll.
    fn is_level_asserted(&self) -> bool;

    /// The interrupt mask for pin-based interrupts.
    fn interrupt_mask(&self) -> u32;

    /// Whether CSTS.RDY is 1.
    fn is_ready(&self) -> bool;

    /// The shadow doorbells in use.
    fn doorbell_buffer(&self) -> Option<DoorbellBuffer>;

    /// Goes on with the counters of an earlier life of the host.
    fn restore_smart_counters(&mut self, counters: SmartCounters);

    /// The counters to keep over a restart of the host.
    fn smart_counters(&mut self) -> SmartCounters;

    /// A group's statistics, which the host may bring unasked.
    fn update_statistics(&mut self, group: u16, statistics: GroupStatistics);

    /// Adds time that an I/O command was in flight.
    fn add_busy_time(&mut self, busy_ns: u64);

    /// Sets the composite temperature in kelvins.
    fn set_temperature(&mut self, kelvins: u16);

    /// Adds a namespace.
    ///
    /// # Errors
    /// As [`Controller::add_namespace`].
    fn add_namespace(&mut self, nsid: Option<u32>, config: NamespaceConfig) -> Result<u32, NamespaceError>;

    /// Gives a namespace another size.
    ///
    /// # Errors
    /// As [`Controller::resize_namespace`].
    fn resize_namespace(&mut self, nsid: u32, size_blocks: u64) -> Result<(), NamespaceError>;

    /// Removes a namespace.
    ///
    /// # Errors
    /// As [`Controller::remove_namespace`].
    fn remove_namespace(&mut self, nsid: u32) -> Result<(), NamespaceError>;

    /// Writes the state into `buffer`; its bytes ([`Controller::save`]).
    ///
    /// # Errors
    /// Where the engine can't or mustn't be moved now; it goes on.
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError>;

    /// Goes on with a saved controller ([`Controller::load`]).
    ///
    /// # Errors
    /// Where the state can't be had; the engine is of no use any more.
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError>;
}

/// A queue group. Each method is [`QueueGroup`]'s of the same name but for those that say otherwise.
pub trait GroupEngine {
    /// Takes a request of the controller.
    fn handle_request(&mut self, memory: &impl DmaMemory, registers: &Registers, request: GroupRequest);

    /// The next command to carry out, or `None` where there is none now.
    #[must_use = "a command that is dropped never completes"]
    fn poll_command(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<IoCommand>;

    /// A command that [`GroupEngine::poll_command`] has fetched already and would give out next; fetches none.
    #[must_use = "a command that is dropped never completes"]
    fn poll_fetched(&mut self) -> Option<IoCommand>;

    /// Ends a command.
    fn complete(&mut self, memory: &impl DmaMemory, tag: Tag, status: Status) -> Completed;

    /// Posts every completion that [`GroupEngine::complete`] was told of, where that hasn't been done yet: for a
    /// host that won't poll again soon.
    fn flush(&mut self, memory: &impl DmaMemory, registers: &Registers);

    /// The vector of a completion queue whose new entries the driver should be told of, or `None`.
    #[must_use = "the interrupt has to be raised"]
    fn poll_interrupt(&mut self, now_ns: u64) -> Option<u16>;

    /// Whether [`GroupEngine::poll_interrupt`] has anything to decide.
    fn wants_interrupt(&self) -> bool;

    /// When [`GroupEngine::poll_interrupt`] should be called again for interrupts that are held back.
    fn interrupt_deadline_ns(&self) -> Option<u64>;

    /// Whether a pin-based interrupt is to be asserted on account of this group.
    fn is_level_asserted(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool;

    /// What the controller is to be told, or `None`.
    #[must_use = "the controller waits for replies"]
    fn poll_message(&mut self) -> Option<GroupMessage>;

    /// A command that the host should try to cancel.
    #[must_use]
    fn poll_cancel(&mut self) -> Option<Tag>;

    /// Prepares for sleep; whether the owner may.
    fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers, level_interrupts: bool) -> Armed;

    /// Commands fetched and not completed.
    fn in_flight(&self) -> usize;

    /// Stops fetching.
    fn pause(&mut self);

    /// Undoes [`GroupEngine::pause`].
    fn resume(&mut self);

    /// Whether a reset waits for commands in flight.
    fn is_resetting(&self) -> bool;

    /// Gives up every command in flight during a reset.
    fn abandon_commands(&mut self);

    /// Events that were dropped because the host didn't take them.
    fn dropped_events(&self) -> u64;

    /// The sums of all queues since the group came into being.
    fn statistics(&mut self) -> GroupStatistics;

    /// Calls `visit` with the counters of each submission queue ([`QueueGroup::queue_statistics`]).
    fn visit_queue_statistics(&mut self, visit: impl FnMut(QueueStatistics));

    /// Writes the state into `buffer`; its bytes ([`QueueGroup::save`]).
    ///
    /// # Errors
    /// Where the engine can't or mustn't be moved now; it goes on.
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError>;

    /// Goes on with a saved group ([`QueueGroup::load`]).
    ///
    /// # Errors
    /// Where the state can't be had; the engine is of no use any more.
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError>;
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize> ControllerEngine
    for Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    fn config(&self) -> &ControllerConfig {
        self.config()
    }
    fn read_register(&mut self, offset: u32, data: &mut [u8]) {
        Self::read_register(self, offset, data);
    }
    fn write_register(&mut self, offset: u32, data: &[u8]) {
        self.write_register(offset, data);
    }
    fn handle_doorbell_write(&mut self, registers: &Registers, offset: u32, data: &[u8]) {
        self.handle_doorbell_write(registers, offset, data);
    }
    fn poll(&mut self, memory: &impl DmaMemory, registers: &Registers, now_ns: u64) -> bool {
        self.poll(memory, registers, now_ns)
    }
    fn poll_group_request(&mut self) -> Option<(u16, GroupRequest)> {
        self.poll_group_request()
    }
    fn handle_group_message(&mut self, group: u16, message: GroupMessage) {
        self.handle_group_message(group, message);
    }
    fn poll_interrupt(&mut self) -> Option<u16> {
        self.poll_interrupt()
    }
    fn poll_host_request(&mut self) -> Option<HostRequest> {
        self.poll_host_request()
    }
    fn handle_host_reply(&mut self, reply: HostReply) {
        self.handle_host_reply(reply);
    }
    fn poll_namespace_change(&mut self) -> Option<NamespaceChange> {
        self.poll_namespace_change()
    }
    fn reset(&mut self, kind: ResetKind) {
        self.reset(kind);
    }
    fn quiesced(&self) -> bool {
        self.quiesced()
    }
    fn handle_unmap(&mut self, address: u64, len_bytes: u64) {
        self.handle_unmap(address, len_bytes);
    }
    fn is_level_asserted(&self) -> bool {
        self.is_level_asserted()
    }
    fn interrupt_mask(&self) -> u32 {
        self.interrupt_mask()
    }
    fn is_ready(&self) -> bool {
        self.is_ready()
    }
    fn doorbell_buffer(&self) -> Option<DoorbellBuffer> {
        self.doorbell_buffer()
    }
    fn restore_smart_counters(&mut self, counters: SmartCounters) {
        self.restore_smart_counters(counters);
    }
    fn smart_counters(&mut self) -> SmartCounters {
        Self::smart_counters(self)
    }
    fn update_statistics(&mut self, group: u16, statistics: GroupStatistics) {
        self.update_statistics(group, statistics);
    }
    fn add_busy_time(&mut self, busy_ns: u64) {
        self.add_busy_time(busy_ns);
    }
    fn set_temperature(&mut self, kelvins: u16) {
        self.set_temperature(kelvins);
    }
    fn add_namespace(&mut self, nsid: Option<u32>, config: NamespaceConfig) -> Result<u32, NamespaceError> {
        self.add_namespace(nsid, config)
    }
    fn resize_namespace(&mut self, nsid: u32, size_blocks: u64) -> Result<(), NamespaceError> {
        self.resize_namespace(nsid, size_blocks)
    }
    fn remove_namespace(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        self.remove_namespace(nsid)
    }
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        Ok(Self::save(self, buffer)?)
    }
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        Ok(Self::load(self, state, has_storage)?)
    }
}

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize> GroupEngine
    for QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    fn handle_request(&mut self, memory: &impl DmaMemory, registers: &Registers, request: GroupRequest) {
        self.handle_request(memory, registers, request);
    }
    #[inline]
    fn poll_command(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<IoCommand> {
        self.poll_command(memory, registers)
    }
    #[inline]
    fn poll_fetched(&mut self) -> Option<IoCommand> {
        None
    }
    #[inline]
    fn complete(&mut self, memory: &impl DmaMemory, tag: Tag, status: Status) -> Completed {
        self.complete(memory, tag, status)
    }
    #[inline]
    fn flush(&mut self, _memory: &impl DmaMemory, _registers: &Registers) {}
    #[inline]
    fn poll_interrupt(&mut self, now_ns: u64) -> Option<u16> {
        self.poll_interrupt(now_ns)
    }
    #[inline]
    fn wants_interrupt(&self) -> bool {
        self.wants_interrupt()
    }
    fn interrupt_deadline_ns(&self) -> Option<u64> {
        self.interrupt_deadline_ns()
    }
    fn is_level_asserted(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool {
        self.is_level_asserted(memory, registers)
    }
    #[inline]
    fn poll_message(&mut self) -> Option<GroupMessage> {
        self.poll_message()
    }
    #[inline]
    fn poll_cancel(&mut self) -> Option<Tag> {
        self.poll_cancel()
    }
    fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers, level_interrupts: bool) -> Armed {
        self.arm(memory, registers, level_interrupts)
    }
    #[inline]
    fn in_flight(&self) -> usize {
        self.in_flight()
    }
    fn pause(&mut self) {
        self.pause();
    }
    fn resume(&mut self) {
        self.resume();
    }
    fn is_resetting(&self) -> bool {
        self.is_resetting()
    }
    fn abandon_commands(&mut self) {
        self.abandon_commands();
    }
    fn dropped_events(&self) -> u64 {
        self.dropped_events()
    }
    fn statistics(&mut self) -> GroupStatistics {
        Self::statistics(self)
    }
    fn visit_queue_statistics(&mut self, mut visit: impl FnMut(QueueStatistics)) {
        for statistics in self.queue_statistics() {
            visit(statistics);
        }
    }
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        Ok(Self::save(self, buffer)?)
    }
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        Ok(Self::load(self, state, has_storage)?)
    }
}
