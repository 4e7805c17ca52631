//! A group in the module, as the core's tests make one.

use doorbell_core::command::IoCommand;
use doorbell_core::doorbell::Registers;
use doorbell_core::engine::{GroupEngine, MoveError};
use doorbell_core::group::{Armed, Completed, GroupConfig, QueueStatistics};
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::{GroupMessage, GroupRequest, GroupStatistics};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;
use doorbell_core::testing::TestGroup;
use doorbell_wasm::{Sandbox, SandboxConfig, SandboxedGroup};

use crate::rig;

/// A sandboxed group.
#[derive(Debug)]
pub(crate) struct ModuleGroup(SandboxedGroup, Sandbox);

impl TestGroup for ModuleGroup {
    fn make(config: GroupConfig) -> Self {
        let mut sandbox = SandboxConfig { posted_registers: config.posted_registers, ..rig::config(1) };
        sandbox.controller.mdts_bytes = config.mdts_bytes;
        let sandbox = Sandbox::new(rig::module(), sandbox);
        Self(sandbox.group().expect("a group"), sandbox)
    }
}

impl ModuleGroup {
    /// Calls of the module that were turns.
    pub(crate) fn calls(&self) -> u64 {
        self.1.statistics().polls
    }
}

impl Drop for ModuleGroup {
    fn drop(&mut self) {
        // No driver, however hostile, makes the module break a rule.
        if !std::thread::panicking() {
            assert_eq!(self.1.last_fault(), None);
        }
    }
}

impl GroupEngine for ModuleGroup {
    fn handle_request(&mut self, memory: &impl DmaMemory, registers: &Registers, request: GroupRequest) {
        self.0.handle_request(memory, registers, request)
    }
    fn poll_command(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<IoCommand> {
        self.0.poll_command(memory, registers)
    }
    fn poll_fetched(&mut self) -> Option<IoCommand> {
        self.0.poll_fetched()
    }
    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        self.0.save(buffer)
    }
    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        self.0.load(state, has_storage)
    }
    fn complete(&mut self, memory: &impl DmaMemory, tag: Tag, status: Status) -> Completed {
        self.0.complete(memory, tag, status)
    }
    fn flush(&mut self, memory: &impl DmaMemory, registers: &Registers) {
        self.0.flush(memory, registers)
    }
    fn poll_interrupt(&mut self, now_ns: u64) -> Option<u16> {
        self.0.poll_interrupt(now_ns)
    }
    fn wants_interrupt(&self) -> bool {
        self.0.wants_interrupt()
    }
    fn interrupt_deadline_ns(&self) -> Option<u64> {
        self.0.interrupt_deadline_ns()
    }
    fn is_level_asserted(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool {
        self.0.is_level_asserted(memory, registers)
    }
    fn poll_message(&mut self) -> Option<GroupMessage> {
        self.0.poll_message()
    }
    fn poll_cancel(&mut self) -> Option<Tag> {
        self.0.poll_cancel()
    }
    fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers, level_interrupts: bool) -> Armed {
        self.0.arm(memory, registers, level_interrupts)
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn pause(&mut self) {
        self.0.pause()
    }
    fn resume(&mut self) {
        self.0.resume()
    }
    fn is_resetting(&self) -> bool {
        self.0.is_resetting()
    }
    fn abandon_commands(&mut self) {
        self.0.abandon_commands()
    }
    fn dropped_events(&self) -> u64 {
        self.0.dropped_events()
    }
    fn statistics(&mut self) -> GroupStatistics {
        self.0.statistics()
    }
    fn visit_queue_statistics(&mut self, visit: impl FnMut(QueueStatistics)) {
        self.0.visit_queue_statistics(visit)
    }
}
