//! A controller in a sandbox, and what takes its place while its tenant has failed.
//!
//! The module does what the core does; the host keeps what outlives an instance: the namespaces, the counters, and
//! the registers as the guest saw them last. When the tenant fails, every group is told to reset at once, so that
//! nothing touches guest memory any more, and [`failed`] answers the guest: CSTS.CFS is 1. The guest's next
//! controller reset makes a fresh instance.

mod failed;
mod namespaces;
mod upgrade;

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_abi::{
    ConfigRecord, CountersRecord, HostOutput, MessageRecord, NamespaceRecord, StateRecord, StatisticsRecord,
    namespace_error, reset_kind_code,
};
use doorbell_core::controller::{
    ControllerConfig, HostReply, HostRequest, NamespaceChange, NamespaceConfig, NamespaceError, ResetKind,
    SmartCounters,
};
use doorbell_core::doorbell::Registers;
use doorbell_core::engine::{ControllerEngine, MoveError};
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::{
    DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest, GroupStatistics,
};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::register;
use zerocopy::IntoBytes;

use self::failed::{Failed, REGISTER_BYTES, RegisterImage};
use self::namespaces::Namespaces;
use crate::error::Fault;
use crate::instance::Instance;
use crate::mirror::WriteBack;
use crate::sandbox::Shared;

/// A controller in an instance of its own. See the module.
#[derive(Debug)]
pub struct SandboxedController {
    shared: Arc<Shared>,
    config: ControllerConfig,
    state: State,
    /// Registers as the guest saw them last.
    image: RegisterImage,
    view: View,
    namespaces: Namespaces,
    /// As they were known last.
    counters: SmartCounters,
    /// What each group has reported last.
    group_statistics: Vec<GroupStatistics>,
    temperature: Option<u16>,
    /// Whether each group has a request to answer.
    asked: Vec<bool>,
    requests: VecDeque<(u16, GroupRequest)>,
    interrupts: VecDeque<u16>,
    host_requests: VecDeque<HostRequest>,
    changes: VecDeque<NamespaceChange>,
    /// The module has asked for a flush and hasn't had an answer.
    flushing: bool,
}

#[derive(Debug)]
enum State {
    Running(Box<Instance>),
    Failed(Failed),
}

/// What the controller shows between two calls.
#[derive(Clone, Copy, Debug, Default)]
struct View {
    ready: bool,
    level: bool,
    quiesced: bool,
    interrupt_mask: u32,
    doorbell_buffer: Option<DoorbellBuffer>,
}

impl SandboxedController {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, Fault> {
        let mut instance = shared.instance()?;
        let config = in_range(shared.config.controller, &instance);
        start(&mut instance, &config)?;
        let mut controller = Self {
            shared,
            config,
            state: State::Running(Box::new(instance)),
            image: RegisterImage::default(),
            view: View::default(),
            namespaces: Namespaces::default(),
            counters: SmartCounters::default(),
            group_statistics: vec![GroupStatistics::default(); usize::from(config.groups)],
            temperature: None,
            asked: vec![false; usize::from(config.groups)],
            requests: VecDeque::new(),
            interrupts: VecDeque::new(),
            host_requests: VecDeque::new(),
            changes: VecDeque::new(),
            flushing: false,
        };
        controller.call(|_| Ok(()));
        controller.look_at_registers();
        match controller.state {
            State::Running(_) => Ok(controller),
            State::Failed(_) => Err(controller.shared.fault()),
        }
    }

    /// Runs `call` of the module and takes the state that it leaves; an error fails the tenant. `None` where it
    /// has failed.
    fn call<R>(&mut self, call: impl FnOnce(&mut Instance) -> Result<R, Fault>) -> Option<R> {
        self.notice_failure();
        let State::Running(instance) = &mut self.state else { return None };
        let result = call(instance).and_then(|result| Ok((result, View::read(instance)?)));
        match result {
            Ok((result, view)) => {
                self.view = view;
                Some(result)
            }
            Err(fault) => {
                self.fail(fault);
                None
            }
        }
    }

    /// Runs `call` with the doorbells in the module's array.
    fn call_with_doorbells<R>(
        &mut self,
        registers: &Registers,
        how: WriteBack,
        call: impl FnOnce(&mut Instance) -> Result<R, Fault>,
    ) -> Option<R> {
        self.call(|instance| {
            instance.stage_registers(registers);
            let result = call(instance);
            instance.write_back(registers, how);
            result
        })
    }

    /// Another instance of the tenant may have failed.
    fn notice_failure(&mut self) {
        if matches!(self.state, State::Running(_)) && self.shared.is_failed() {
            self.begin_failure();
        }
    }

    #[cold]
    fn fail(&mut self, fault: Fault) {
        self.shared.fail(fault);
        self.begin_failure();
    }

    /// Takes the instance's place and tells every group to let go of everything.
    #[cold]
    fn begin_failure(&mut self) {
        self.image.fail(self.view.ready);
        self.state = State::Failed(Failed::new(self.config.groups));
        self.requests = (0..self.config.groups).map(|group| (group, GroupRequest::Reset)).collect();
        self.asked.fill(true);
        self.interrupts.clear();
        // A flush that the host carries out goes on, and its answer is taken.
        self.host_requests.clear();
        self.view = View { quiesced: false, ready: self.view.ready, ..View::default() };
    }

    /// Makes a fresh instance once everything of the old life is over and the guest has reset the controller.
    fn restart_if_due(&mut self) {
        let State::Failed(failed) = &self.state else { return };
        if !failed.is_restart_asked() || !self.view.quiesced || !self.shared.may_restart() {
            return;
        }
        // Counts as a start whether it succeeds or not, so that a module can't make a host try all the time.
        self.shared.restarted();
        match self.fresh() {
            Ok(instance) => {
                self.state = State::Running(Box::new(instance));
                self.asked.fill(false);
                let written = self.image.configured();
                self.call(|_| Ok(()));
                // What the guest has set up since the reset.
                for (offset, bytes) in written {
                    self.write_register(offset, &bytes);
                }
                self.look_at_registers();
            }
            Err(fault) => self.fail(fault),
        }
    }

    fn fresh(&mut self) -> Result<Instance, Fault> {
        let mut instance = self.shared.instance()?;
        start(&mut instance, &self.config)?;
        instance.set_scratch(CountersRecord::encode(&self.own_counters()).as_bytes());
        instance.call(|calls| &calls.controller_counters, 1)?;
        if let Some(kelvins) = self.temperature {
            instance.call(|calls| &calls.controller_temperature, u32::from(kelvins))?;
        }
        for (nsid, config) in self.namespaces.all() {
            if add_namespace(&mut instance, Some(nsid), &config)? != Ok(nsid) {
                return Err(Fault::Interface("a namespace was refused that was taken before"));
            }
        }
        Ok(instance)
    }

    /// The controller's part of the counters: the groups report theirs again.
    fn own_counters(&self) -> SmartCounters {
        let mut counters = self.counters;
        for group in &self.group_statistics {
            counters.bytes_read = counters.bytes_read.saturating_sub(group.bytes_read);
            counters.bytes_written = counters.bytes_written.saturating_sub(group.bytes_written);
            counters.read_commands = counters.read_commands.saturating_sub(group.read_commands);
            counters.write_commands = counters.write_commands.saturating_sub(group.write_commands);
            counters.media_errors = counters.media_errors.saturating_sub(group.media_errors);
            counters.error_log_entries = counters.error_log_entries.saturating_sub(group.error_log_entries);
        }
        // A fresh controller counts its own power cycle.
        counters.power_cycles = counters.power_cycles.saturating_sub(1);
        counters
    }

    /// Keeps the registers as the guest sees them now.
    fn look_at_registers(&mut self) {
        let mut bytes = [0; REGISTER_BYTES];
        if self.read_from_instance(0, &mut bytes) {
            self.image.set(bytes);
        }
    }

    /// Whether the instance has answered.
    fn read_from_instance(&mut self, offset: u32, data: &mut [u8]) -> bool {
        let mut offset = offset;
        for piece in data.chunks_mut(64) {
            let len = piece.len();
            let read = self.call(|instance| {
                instance.call(|calls| &calls.controller_read, (offset, len as u32))?;
                piece.copy_from_slice(instance.scratch_bytes(len));
                Ok(())
            });
            if read.is_none() {
                return false;
            }
            offset = offset.saturating_add(len as u32);
        }
        true
    }

    /// Takes what `controller_poll` has left. A list that is longer than its place, or means nothing, is a fault.
    fn take_outputs(&mut self) -> Result<(), Fault> {
        let State::Running(instance) = &self.state else { return Ok(()) };
        let state: StateRecord =
            instance.layout.state.get(instance.memory(), 0).ok_or(Fault::Interface("no state record"))?;
        let count = state.outputs.get() as usize;
        if count > instance.layout.outputs.count {
            return Err(Fault::Interface("a list is longer than its place"));
        }
        for index in 0..count {
            let State::Running(instance) = &self.state else { break };
            let record: MessageRecord =
                instance.layout.outputs.get(instance.memory(), index).ok_or(Fault::Interface("no output"))?;
            match HostOutput::decode(&record) {
                Some(output) => self.take_output(output)?,
                None => {
                    let (group, request) =
                        record.decode_request().ok_or(Fault::Interface("an output that means nothing"))?;
                    self.take_request(group, request)?;
                }
            }
        }
        Ok(())
    }

    fn take_output(&mut self, output: HostOutput) -> Result<(), Fault> {
        match output {
            HostOutput::Interrupt(0) => self.interrupts.push_back(0),
            HostOutput::Interrupt(_) => return Err(Fault::Interface("an interrupt that no queue has")),
            HostOutput::Request(request) if self.host_requests.is_empty() => {
                self.flushing = true;
                self.host_requests.push_back(request);
            }
            HostOutput::Request(_) => return Err(Fault::Interface("one flush before another")),
            HostOutput::Namespace(change) => {
                let change = self.namespaces.reported(change)?;
                self.changes.extend(change);
            }
        }
        Ok(())
    }

    /// A request to a group: one at a time, but a reset overtakes any other.
    fn take_request(&mut self, group: u16, request: GroupRequest) -> Result<(), Fault> {
        let asked =
            self.asked.get_mut(usize::from(group)).ok_or(Fault::Interface("a group that isn't there"))?;
        if *asked && request != GroupRequest::Reset {
            return Err(Fault::Interface("two requests to a group at once"));
        }
        self.config_allows(&request)?;
        self.asked[usize::from(group)] = true;
        self.requests.push_back((group, request));
        Ok(())
    }

    /// What hosts index tables by has to be in range, whoever says it.
    fn config_allows(&self, request: &GroupRequest) -> Result<(), Fault> {
        let queue = |qid: u16| (1..=self.config.io_queues).contains(&qid);
        let size = |size: u32| (2..=self.config.max_queue_entries).contains(&size);
        let vector = |vector: u16| vector < self.config.vectors;
        let allowed = match *request {
            GroupRequest::CreateCompletionQueue { qid, size: entries, vector: number, .. } => {
                queue(qid) && size(entries) && number.is_none_or(vector)
            }
            GroupRequest::CreateSubmissionQueue { qid, cqid, size: entries, page_shift, .. } => {
                queue(qid) && queue(cqid) && size(entries) && (12..=27).contains(&page_shift)
            }
            GroupRequest::DeleteCompletionQueue { qid } | GroupRequest::DeleteSubmissionQueue { qid } => {
                queue(qid)
            }
            GroupRequest::SetNamespace { nsid, namespace } => self.namespaces.has_shape(nsid, &namespace),
            _ => true,
        };
        if allowed { Ok(()) } else { Err(Fault::Interface("a request out of range")) }
    }
}

impl ControllerEngine for SandboxedController {
    fn config(&self) -> &ControllerConfig {
        &self.config
    }

    fn read_register(&mut self, offset: u32, data: &mut [u8]) {
        self.restart_if_due();
        if !self.read_from_instance(offset, data) {
            self.image.read(offset, data);
        }
    }

    fn write_register(&mut self, offset: u32, data: &[u8]) {
        let mut at = offset;
        for piece in data.chunks(64) {
            let written = self.call(|instance| {
                instance.set_scratch(piece);
                instance.call(|calls| &calls.controller_write, (at, piece.len() as u32))
            });
            if written.is_none() {
                self.write_failed(at, piece);
            }
            at = at.saturating_add(piece.len() as u32);
        }
        self.look_at_registers();
    }

    fn handle_doorbell_write(&mut self, registers: &Registers, offset: u32, data: &[u8]) {
        let piece = data.get(..64).unwrap_or(data);
        self.call_with_doorbells(registers, WriteBack::Store, |instance| {
            instance.set_scratch(piece);
            instance.call(|calls| &calls.controller_doorbell, (offset, piece.len() as u32))
        });
    }

    fn poll(&mut self, memory: &impl DmaMemory, registers: &Registers, now_ns: u64) -> bool {
        self.notice_failure();
        self.restart_if_due();
        let State::Running(instance) = &mut self.state else { return false };
        let count = instance.layout.registers.count as u32;
        instance.mirror().watch(0..count);
        let more = self.call_with_doorbells(registers, WriteBack::StoreZeroes, |instance| {
            instance.call_with(memory, registers, |calls| &calls.controller_poll, now_ns)
        });
        let Some(more) = more else { return false };
        if let Err(fault) = self.take_outputs() {
            self.fail(fault);
            return false;
        }
        // Arming saw a copy of the doorbells.
        let moved = match &mut self.state {
            State::Running(instance) => instance.mirror().has_moved_any(registers, 2),
            State::Failed(_) => false,
        };
        more != 0 || moved
    }

    fn poll_group_request(&mut self) -> Option<(u16, GroupRequest)> {
        self.requests.pop_front()
    }

    fn handle_group_message(&mut self, group: u16, message: GroupMessage) {
        if let GroupMessage::Reply(GroupReply::Statistics(statistics)) = message {
            self.note_statistics(group, statistics);
        }
        if matches!(message, GroupMessage::Event(GroupEvent::Fatal { .. })) {
            // The group's instance may be what failed.
            self.notice_failure();
        }
        if let State::Failed(failed) = &mut self.state {
            if message == GroupMessage::Reply(GroupReply::ResetDone) {
                failed.group_answered(group);
                if failed.are_groups_quiet() {
                    self.view.quiesced = true;
                    self.changes.extend(self.namespaces.groups_are_quiet());
                }
            }
            return;
        }
        if matches!(message, GroupMessage::Reply(_))
            && let Some(asked) = self.asked.get_mut(usize::from(group))
        {
            // An answer to a request that a reset has overtaken leaves the reset's to come.
            *asked = false;
        }
        let record = MessageRecord::encode_message(&message);
        self.call(|instance| {
            instance.set_scratch(record.as_bytes());
            match instance.call(|calls| &calls.controller_message, u32::from(group))? {
                0 => Ok(()),
                _ => Err(Fault::Interface("a message wasn't understood")),
            }
        });
    }

    fn poll_interrupt(&mut self) -> Option<u16> {
        self.interrupts.pop_front()
    }

    fn poll_host_request(&mut self) -> Option<HostRequest> {
        self.host_requests.pop_front()
    }

    fn handle_host_reply(&mut self, reply: HostReply) {
        let HostReply::FlushAll(result) = reply;
        self.flushing = false;
        let status = result.map_or_else(|status| u32::from(status.0), |()| 0);
        let told = self.call(|instance| instance.call(|calls| &calls.controller_flushed, status));
        if told.is_none() {
            self.image.flushed();
        }
    }

    fn poll_namespace_change(&mut self) -> Option<NamespaceChange> {
        self.changes.pop_front()
    }

    fn reset(&mut self, kind: ResetKind) {
        let told =
            self.call(|instance| instance.call(|calls| &calls.controller_reset, reset_kind_code(kind)));
        if told.is_none()
            && let State::Failed(failed) = &mut self.state
        {
            self.image.reset();
            failed.ask_restart();
        }
        self.look_at_registers();
    }

    fn quiesced(&self) -> bool {
        self.view.quiesced
    }

    fn handle_unmap(&mut self, address: u64, len_bytes: u64) {
        self.call(|instance| instance.call(|calls| &calls.controller_unmap, (address, len_bytes)));
    }

    fn is_level_asserted(&self) -> bool {
        self.view.level
    }

    fn interrupt_mask(&self) -> u32 {
        self.view.interrupt_mask
    }

    fn is_ready(&self) -> bool {
        self.view.ready
    }

    fn doorbell_buffer(&self) -> Option<DoorbellBuffer> {
        self.view.doorbell_buffer
    }

    fn restore_smart_counters(&mut self, counters: SmartCounters) {
        self.counters = counters;
        let record = CountersRecord::encode(&counters);
        self.call(|instance| {
            instance.set_scratch(record.as_bytes());
            instance.call(|calls| &calls.controller_counters, 1)
        });
    }

    fn smart_counters(&mut self) -> SmartCounters {
        let record = self.call(|instance| {
            instance.call(|calls| &calls.controller_counters, 0)?;
            Ok(instance.scratch::<CountersRecord>())
        });
        if let Some(Some(record)) = record {
            self.counters = record.decode();
        }
        self.counters
    }

    fn update_statistics(&mut self, group: u16, statistics: GroupStatistics) {
        self.note_statistics(group, statistics);
        let record = StatisticsRecord::encode(&statistics);
        self.call(|instance| {
            instance.set_scratch(record.as_bytes());
            instance.call(|calls| &calls.controller_statistics, u32::from(group))
        });
    }

    fn add_busy_time(&mut self, busy_ns: u64) {
        self.call(|instance| instance.call(|calls| &calls.controller_busy, busy_ns));
    }

    fn set_temperature(&mut self, kelvins: u16) {
        self.temperature = Some(kelvins);
        self.call(|instance| instance.call(|calls| &calls.controller_temperature, u32::from(kelvins)));
    }

    fn add_namespace(&mut self, nsid: Option<u32>, config: NamespaceConfig) -> Result<u32, NamespaceError> {
        self.notice_failure();
        if matches!(self.state, State::Failed(_)) {
            return self.namespaces.add_while_failed(nsid, config);
        }
        let added = match self.call_add(nsid, &config) {
            Some(Ok(Ok(added))) => added,
            Some(Ok(Err(error))) => return Err(error),
            _ => return Err(NamespaceError::Full),
        };
        // What the module answers becomes an index of the host's.
        if nsid.is_some_and(|asked| asked != added)
            || added == 0
            || added > 1024
            || self.namespaces.contains(added)
        {
            self.fail(Fault::Interface("a namespace got an identifier that it can't have"));
            return Err(NamespaceError::Full);
        }
        self.namespaces.added(added, config);
        Ok(added)
    }

    fn resize_namespace(&mut self, nsid: u32, size_blocks: u64) -> Result<(), NamespaceError> {
        self.notice_failure();
        if matches!(self.state, State::Running(_)) {
            self.call_namespace(|instance| {
                instance.call(|calls| &calls.namespace_resize, (nsid, size_blocks))
            })?;
        }
        self.namespaces.resized(nsid, size_blocks)
    }

    fn remove_namespace(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        self.notice_failure();
        if matches!(self.state, State::Running(_)) {
            self.call_namespace(|instance| instance.call(|calls| &calls.namespace_remove, nsid))?;
            self.namespaces.removed(nsid)
        } else {
            let gone = self.namespaces.remove_while_failed(nsid, self.view.quiesced)?;
            self.changes.extend(gone);
            Ok(())
        }
    }

    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        self.save_checked(buffer)
    }

    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        self.load_checked(state, has_storage)
    }
}

impl SandboxedController {
    fn note_statistics(&mut self, group: u16, statistics: GroupStatistics) {
        if let Some(place) = self.group_statistics.get_mut(usize::from(group)) {
            *place = statistics;
        }
    }

    /// A register write while the tenant has failed.
    fn write_failed(&mut self, offset: u32, data: &[u8]) {
        let State::Failed(failed) = &mut self.state else { return };
        let asks = self.image.write(offset, data);
        if asks.restart {
            failed.ask_restart();
        }
        if asks.flush {
            self.host_requests.push_back(HostRequest::FlushAll { abrupt: false });
        }
    }

    fn call_add(
        &mut self,
        nsid: Option<u32>,
        config: &NamespaceConfig,
    ) -> Option<Result<Result<u32, NamespaceError>, Fault>> {
        self.call(|instance| Ok(add_namespace(instance, nsid, config)))
    }

    fn call_namespace(
        &mut self,
        call: impl FnOnce(&mut Instance) -> Result<u64, Fault>,
    ) -> Result<(), NamespaceError> {
        let code = self.call(|instance| {
            let code = (call(instance)? >> 32) as u32;
            if code == 0 {
                Ok(None)
            } else {
                namespace_error(code).map(Some).ok_or(Fault::Interface("an error"))
            }
        });
        match code {
            Some(None) => Ok(()),
            Some(Some(error)) => Err(error),
            // The tenant has just failed; the namespaces are the host's, and the change isn't lost.
            None => Ok(()),
        }
    }
}

fn add_namespace(
    instance: &mut Instance,
    nsid: Option<u32>,
    config: &NamespaceConfig,
) -> Result<Result<u32, NamespaceError>, Fault> {
    instance.set_scratch(NamespaceRecord::encode(config).as_bytes());
    let answer = instance.call(|calls| &calls.namespace_add, nsid.unwrap_or(0))?;
    match (answer >> 32) as u32 {
        0 => Ok(Ok(answer as u32)),
        code => namespace_error(code).map(Err).ok_or(Fault::Interface("an error that isn't one")),
    }
}

/// The configuration for tables of the module's sizes.
fn in_range(config: ControllerConfig, instance: &Instance) -> ControllerConfig {
    let groups = config.groups.clamp(1, instance.layout.groups as u16);
    let io_queues = config.io_queues.clamp(1, instance.layout.queues as u16);
    // The rest as the core does it.
    let full: doorbell_core::controller::Controller<1, 1, 1, 1> =
        doorbell_core::controller::Controller::new(config);
    ControllerConfig { groups, io_queues, ..*full.config() }
}

fn start(instance: &mut Instance, config: &ControllerConfig) -> Result<(), Fault> {
    instance.set_scratch(ConfigRecord::encode(config).as_bytes());
    instance.call(|calls| &calls.controller_init, ())
}

impl View {
    fn read(instance: &Instance) -> Result<Self, Fault> {
        let record: StateRecord =
            instance.layout.state.get(instance.memory(), 0).ok_or(Fault::Interface("no state record"))?;
        let flags = record.flags.get();
        let buffer = DoorbellBuffer { shadow: record.shadow.get(), event_idx: record.event_idx.get() };
        Ok(Self {
            ready: flags & StateRecord::READY != 0,
            level: flags & StateRecord::LEVEL != 0,
            quiesced: flags & StateRecord::QUIESCED != 0,
            interrupt_mask: record.interrupt_mask.get(),
            doorbell_buffer: (flags & StateRecord::DOORBELL_BUFFER != 0).then_some(buffer),
        })
    }
}

/// The offset of a register that the module's image doesn't reach has no meaning for it.
const _: () = assert!(register::ACQ as usize + 8 <= REGISTER_BYTES);
