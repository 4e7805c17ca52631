//! The admin queue served: fetching, dispatching, and the one command that may wait for groups.

use super::admin_queue::AdminQueueError;
use super::error_log::ControllerError;
use super::events::{Completion, Event};
use super::lifecycle::{Lifecycle, Shutdown};
use super::{Answer, Controller, PendingCommand};
use crate::doorbell::Registers;
use crate::memory::DmaMemory;
use crate::message::GroupRequest;
use crate::place::Place;
use crate::spec::admin::AdminOpcode;
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::support;

/// Commands that one call of [`Controller::poll`] takes.
const COMMANDS_PER_POLL: u8 = 16;

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// Does what there is to do: moves enabling, reset and shutdown along, and takes admin commands and
    /// carries them out, a bounded number of them. Returns whether there is more to do right now.
    ///
    /// Called after every register write, group message and host reply, when the guest rang an admin doorbell,
    /// and, where the guest can do that without the host's knowledge, from time to time. `now_ns` is the
    /// host's monotonic clock in nanoseconds. Once this has returned `false` the driver's next admin command
    /// writes a doorbell register, also where shadow doorbells are in use.
    #[must_use = "whether to call again at once"]
    pub fn poll(&mut self, memory: &impl DmaMemory, registers: &Registers, now_ns: u64) -> bool {
        self.smart.tick(now_ns);
        self.advance(memory, registers);
        // Also after a shutdown: the head lowers a pin-based interrupt.
        if let Some(admin) = self.admin.as_mut() {
            let polled = admin.poll_head(memory, registers);
            self.admin_queue_result(polled);
        }
        if !self.is_executing() {
            return false;
        }
        self.finish_pending(memory, registers);
        for _ in 0..COMMANDS_PER_POLL {
            if !self.pending.is_empty() || !self.is_executing() {
                break;
            }
            let Some(command) = self.fetch(memory, registers) else { break };
            self.execute(memory, &command);
        }
        self.post_events(memory);
        if !self.is_executing() {
            return false;
        }
        let has_work = self.pending.is_empty() && self.admin.as_ref().is_some_and(|admin| admin.has_work());
        has_work || self.arm(memory, registers)
    }

    /// Whether admin commands run.
    pub(super) fn is_executing(&self) -> bool {
        self.lifecycle == Lifecycle::Running
            && self.shutdown == Shutdown::None
            && !self.registers.status.cfs()
    }

    fn fetch(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<SubmissionQueueEntry> {
        let fetched = self.admin.as_mut()?.fetch(memory, registers);
        match fetched {
            Ok(command) => command,
            Err(error) => {
                self.admin_queue_result(Err(error));
                None
            }
        }
    }

    /// Carries out a fetched command, or starts to.
    fn execute(&mut self, memory: &impl DmaMemory, command: &SubmissionQueueEntry) {
        match self.dispatch(memory, command) {
            Ok(Answer::Result(result)) => self.complete(memory, command, Ok(result)),
            Ok(Answer::Held) => {
                if let Some(admin) = self.admin.as_mut() {
                    admin.release();
                }
            }
            Ok(answer @ (Answer::ForGroup(_, request) | Answer::ForAllGroups(request))) => {
                self.groups.send_command(self.groups_for(&answer));
                self.pending = Place::Full(PendingCommand::new(*command, request));
            }
            Err(status) => self.complete(memory, command, Err(status)),
        }
    }

    fn dispatch(
        &mut self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        support::admin_command(command.opcode, self.config.doorbell_buffer)
            .ok_or(Status::INVALID_OPCODE.dnr())?;
        // No fused admin commands, and on PCIe admin commands use PRPs.
        if command.flags.fuse() != 0 || command.flags.psdt() != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match AdminOpcode(command.opcode) {
            AdminOpcode::DELETE_SUBMISSION_QUEUE => self.delete_submission_queue(command),
            AdminOpcode::CREATE_SUBMISSION_QUEUE => self.create_submission_queue(memory, command),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(memory, command),
            AdminOpcode::DELETE_COMPLETION_QUEUE => self.delete_completion_queue(command),
            AdminOpcode::CREATE_COMPLETION_QUEUE => self.create_completion_queue(memory, command),
            AdminOpcode::IDENTIFY => self.identify(memory, command),
            AdminOpcode::ABORT => self.abort(command),
            AdminOpcode::SET_FEATURES => self.set_features(command),
            AdminOpcode::GET_FEATURES => self.get_features(command),
            AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST => {
                if self.events.hold(command.cid.get()) {
                    Ok(Answer::Held)
                } else {
                    Err(Status::AER_LIMIT_EXCEEDED.dnr())
                }
            }
            AdminOpcode::DOORBELL_BUFFER_CONFIG => self.doorbell_buffer_config(memory, command),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Ends the pending command once every group that it concerns has answered.
    fn finish_pending(&mut self, memory: &impl DmaMemory, registers: &Registers) {
        if !self.groups.command_answered() {
            return;
        }
        let Some(pending) = self.pending.take() else { return };
        let outcome = self.outcome(memory, registers, &pending);
        self.complete(memory, &pending.command, outcome);
    }

    fn outcome(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        pending: &PendingCommand,
    ) -> Result<u32, Status> {
        if let Some(status) = pending.failure {
            if matches!(pending.request, GroupRequest::SetDoorbellBuffer(_)) {
                // The pages vanished after they had been checked. Some groups may use them, so none shall.
                self.clear_doorbell_buffer();
            }
            return Err(status);
        }
        match pending.request {
            GroupRequest::Abort { .. } => return Ok(u32::from(!pending.aborted)),
            GroupRequest::ReportStatistics => {
                self.finish_smart_log(memory, &pending.command)?;
            }
            GroupRequest::SetDoorbellBuffer(buffer) => {
                if let Some(admin) = self.admin.as_mut() {
                    let attached = admin.attach(memory, registers, buffer);
                    if attached == Err(AdminQueueError::Shadow) {
                        self.clear_doorbell_buffer();
                        return Err(Status::DATA_TRANSFER_ERROR.dnr());
                    }
                    self.admin_queue_result(attached);
                }
                self.doorbell_buffer = Some(buffer);
            }
            _ => {
                self.queues.group_obeyed(&pending.request);
                self.features.groups_obeyed(&pending.request);
            }
        }
        Ok(0)
    }

    /// Posts the completion of a fetched command, for which an entry is reserved.
    fn complete(
        &mut self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
        outcome: Result<u32, Status>,
    ) {
        let (mut status, result) = match outcome {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (status, 0),
        };
        if is_worth_logging(status) {
            let error = ControllerError::of_admin_command(command.cid.get(), command.nsid.get(), status);
            self.log_error(error);
            status = status.with_more();
        }
        self.post(memory, command.cid.get(), status, result);
    }

    fn post(&mut self, memory: &impl DmaMemory, cid: u16, status: Status, result: u32) {
        let Some(admin) = self.admin.as_mut() else { return };
        match admin.post(memory, cid, status, result) {
            Ok(()) => self.interrupt_due = true,
            Err(_) => self.registers.status.set_cfs(true),
        }
    }

    /// Completes event requests as far as there are events and entries for them.
    fn post_events(&mut self, memory: &impl DmaMemory) {
        while self.events.has_completion() {
            if !self.admin.as_mut().is_some_and(|admin| admin.reserve()) {
                return;
            }
            match self.events.take_completion() {
                Some(Completion::Event { cid, result }) => self.post(memory, cid, Status::SUCCESS, result),
                Some(Completion::Aborted { cid }) => self.post(memory, cid, Status::ABORT_REQUESTED, 0),
                None => return,
            }
        }
    }

    fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool {
        let Some(admin) = self.admin.as_mut() else { return false };
        match admin.arm(memory, registers) {
            Ok(moved) => moved && self.pending.is_empty(),
            Err(error) => {
                self.admin_queue_result(Err(error));
                false
            }
        }
    }

    /// Draws the consequence of a fault of the admin queue.
    fn admin_queue_result(&mut self, result: Result<(), AdminQueueError>) {
        match result {
            Ok(()) => {}
            Err(AdminQueueError::InvalidDoorbell) => self.invalid_doorbell(0, Event::InvalidDoorbellValue),
            Err(AdminQueueError::Shadow) => self.clear_doorbell_buffer(),
            Err(AdminQueueError::Fatal) => self.registers.status.set_cfs(true),
        }
    }
}

/// Whether a failed admin command belongs in the Error Information log. A driver that probes for what a
/// controller can do (unknown opcodes, log pages, features) fills no log.
fn is_worth_logging(status: Status) -> bool {
    matches!(
        (status.code_type(), status.code()),
        // Data Transfer Error, Internal Error, PRP Offset Invalid.
        (0, 0x04 | 0x06 | 0x13)
    )
}
