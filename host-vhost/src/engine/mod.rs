//! The engine behind a device: the core in this process, or the core in a sandbox.
//!
//! The control thread has a [`HostedController`], each poller a [`HostedGroup`] for every device it serves. They are
//! the same to their callers; which is which is decided by a branch that a processor predicts. [`Hosting`] is what a
//! person asks for, [`EngineSource`] what makes them.

mod source;

pub use source::{EngineSource, Hosting, HostingError};

use doorbell_core::command::IoCommand;
use doorbell_core::controller::{
    Controller, ControllerConfig, HostReply, HostRequest, NamespaceChange, NamespaceConfig, NamespaceError,
    ResetKind, SmartCounters,
};
use doorbell_core::doorbell::Registers;
use doorbell_core::engine::{ControllerEngine, GroupEngine, MoveError};
use doorbell_core::group::{Armed, Completed, GroupConfig, QueueGroup, QueueStatistics};
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::{DoorbellBuffer, GroupMessage, GroupRequest, GroupStatistics};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use crate::device::{MAX_COMMANDS, MAX_GROUPS, MAX_NAMESPACES, MAX_QUEUES};

/// The core's controller in the size that this host uses.
pub type NativeController = Controller<MAX_GROUPS, MAX_QUEUES, MAX_NAMESPACES>;

/// The core's queue group in the size that this host uses.
pub type NativeGroup = QueueGroup<MAX_QUEUES, MAX_COMMANDS, MAX_NAMESPACES>;

/// A controller, wherever it runs.
#[derive(Debug)]
pub enum HostedController {
    /// In this process.
    Native(Box<NativeController>),
    /// In a sandbox of its tenant.
    #[cfg(feature = "sandbox")]
    Sandboxed(Box<doorbell_wasm::SandboxedController>),
}

/// A queue group, wherever it runs.
#[derive(Debug)]
pub enum HostedGroup {
    /// In this process.
    Native(Box<NativeGroup>),
    /// In a sandbox of its tenant.
    #[cfg(feature = "sandbox")]
    Sandboxed(Box<doorbell_wasm::SandboxedGroup>),
}

impl HostedController {
    /// A controller of this process.
    #[must_use]
    pub fn native(config: ControllerConfig) -> Self {
        Self::Native(Box::new(NativeController::new(config)))
    }
}

impl HostedGroup {
    /// A group of this process.
    #[must_use]
    pub fn native(config: GroupConfig) -> Self {
        Self::Native(Box::new(NativeGroup::new(config)))
    }
}

/// Forty methods with the same body, which has to name every kind of engine: written once.
macro_rules! hosted {
    ($self:ident, $engine:ident => $call:expr) => {
        match $self {
            Self::Native($engine) => $call,
            #[cfg(feature = "sandbox")]
            Self::Sandboxed($engine) => $call,
        }
    };
}

impl ControllerEngine for HostedController {
    fn config(&self) -> &ControllerConfig {
        hosted!(self, engine => engine.config())
    }
    fn read_register(&mut self, offset: u32, data: &mut [u8]) {
        hosted!(self, engine => engine.read_register(offset, data))
    }
    fn write_register(&mut self, offset: u32, data: &[u8]) {
        hosted!(self, engine => engine.write_register(offset, data))
    }
    fn handle_doorbell_write(&mut self, registers: &Registers, offset: u32, data: &[u8]) {
        hosted!(self, engine => engine.handle_doorbell_write(registers, offset, data))
    }
    fn poll(&mut self, memory: &impl DmaMemory, registers: &Registers, now_ns: u64) -> bool {
        hosted!(self, engine => engine.poll(memory, registers, now_ns))
    }
    fn poll_group_request(&mut self) -> Option<(u16, GroupRequest)> {
        hosted!(self, engine => engine.poll_group_request())
    }
    fn handle_group_message(&mut self, group: u16, message: GroupMessage) {
        hosted!(self, engine => engine.handle_group_message(group, message))
    }
    fn poll_interrupt(&mut self) -> Option<u16> {
        hosted!(self, engine => engine.poll_interrupt())
    }
    fn poll_host_request(&mut self) -> Option<HostRequest> {
        hosted!(self, engine => engine.poll_host_request())
    }
    fn handle_host_reply(&mut self, reply: HostReply) {
        hosted!(self, engine => engine.handle_host_reply(reply))
    }
    fn poll_namespace_change(&mut self) -> Option<NamespaceChange> {
        hosted!(self, engine => engine.poll_namespace_change())
    }
    fn reset(&mut self, kind: ResetKind) {
        hosted!(self, engine => engine.reset(kind))
    }
    fn quiesced(&self) -> bool {
        hosted!(self, engine => engine.quiesced())
    }
    fn handle_unmap(&mut self, address: u64, len_bytes: u64) {
        hosted!(self, engine => engine.handle_unmap(address, len_bytes))
    }
    fn is_level_asserted(&self) -> bool {
        hosted!(self, engine => engine.is_level_asserted())
    }
    fn interrupt_mask(&self) -> u32 {
        hosted!(self, engine => engine.interrupt_mask())
    }
    fn is_ready(&self) -> bool {
        hosted!(self, engine => engine.is_ready())
    }
    fn doorbell_buffer(&self) -> Option<DoorbellBuffer> {
        hosted!(self, engine => engine.doorbell_buffer())
    }
    fn restore_smart_counters(&mut self, counters: SmartCounters) {
        hosted!(self, engine => engine.restore_smart_counters(counters))
    }
    fn smart_counters(&mut self) -> SmartCounters {
        hosted!(self, engine => engine.smart_counters())
    }
    fn update_statistics(&mut self, group: u16, statistics: GroupStatistics) {
        hosted!(self, engine => engine.update_statistics(group, statistics))
    }
    fn add_busy_time(&mut self, busy_ns: u64) {
        hosted!(self, engine => engine.add_busy_time(busy_ns))
    }
    fn set_temperature(&mut self, kelvins: u16) {
        hosted!(self, engine => engine.set_temperature(kelvins))
    }
    fn add_namespace(&mut self, nsid: Option<u32>, config: NamespaceConfig) -> Result<u32, NamespaceError> {
        hosted!(self, engine => engine.add_namespace(nsid, config))
    }
    fn resize_namespace(&mut self, nsid: u32, size_blocks: u64) -> Result<(), NamespaceError> {
        hosted!(self, engine => engine.resize_namespace(nsid, size_blocks))
    }
    fn remove_namespace(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        hosted!(self, engine => engine.remove_namespace(nsid))
    }
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        hosted!(self, engine => ControllerEngine::save(&mut **engine, buffer))
    }
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        hosted!(self, engine => ControllerEngine::load(&mut **engine, state, has_storage))
    }
}

impl GroupEngine for HostedGroup {
    fn handle_request(&mut self, memory: &impl DmaMemory, registers: &Registers, request: GroupRequest) {
        hosted!(self, engine => engine.handle_request(memory, registers, request))
    }
    #[inline]
    fn poll_command(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<IoCommand> {
        hosted!(self, engine => engine.poll_command(memory, registers))
    }
    fn poll_fetched(&mut self) -> Option<IoCommand> {
        hosted!(self, engine => engine.poll_fetched())
    }
    #[inline]
    fn complete(&mut self, memory: &impl DmaMemory, tag: Tag, status: Status) -> Completed {
        hosted!(self, engine => engine.complete(memory, tag, status))
    }
    #[inline]
    fn flush(&mut self, memory: &impl DmaMemory, registers: &Registers) {
        hosted!(self, engine => engine.flush(memory, registers))
    }
    #[inline]
    fn poll_interrupt(&mut self, now_ns: u64) -> Option<u16> {
        hosted!(self, engine => engine.poll_interrupt(now_ns))
    }
    #[inline]
    fn wants_interrupt(&self) -> bool {
        hosted!(self, engine => engine.wants_interrupt())
    }
    fn interrupt_deadline_ns(&self) -> Option<u64> {
        hosted!(self, engine => engine.interrupt_deadline_ns())
    }
    fn is_level_asserted(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool {
        hosted!(self, engine => engine.is_level_asserted(memory, registers))
    }
    #[inline]
    fn poll_message(&mut self) -> Option<GroupMessage> {
        hosted!(self, engine => engine.poll_message())
    }
    #[inline]
    fn poll_cancel(&mut self) -> Option<Tag> {
        hosted!(self, engine => engine.poll_cancel())
    }
    fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers, level_interrupts: bool) -> Armed {
        hosted!(self, engine => engine.arm(memory, registers, level_interrupts))
    }
    #[inline]
    fn in_flight(&self) -> usize {
        hosted!(self, engine => engine.in_flight())
    }
    fn pause(&mut self) {
        hosted!(self, engine => engine.pause())
    }
    fn resume(&mut self) {
        hosted!(self, engine => engine.resume())
    }
    fn is_resetting(&self) -> bool {
        hosted!(self, engine => engine.is_resetting())
    }
    fn abandon_commands(&mut self) {
        hosted!(self, engine => engine.abandon_commands())
    }
    fn dropped_events(&self) -> u64 {
        hosted!(self, engine => engine.dropped_events())
    }
    fn statistics(&mut self) -> GroupStatistics {
        hosted!(self, engine => engine.statistics())
    }
    fn visit_queue_statistics(&mut self, visit: impl FnMut(QueueStatistics)) {
        hosted!(self, engine => engine.visit_queue_statistics(visit))
    }
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        hosted!(self, engine => GroupEngine::save(&mut **engine, buffer))
    }
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        hosted!(self, engine => GroupEngine::load(&mut **engine, state, has_storage))
    }
}
