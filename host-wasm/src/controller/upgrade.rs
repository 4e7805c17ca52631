//! A controller's state, and what the host knows by it.

use doorbell_core::engine::{ControllerEngine, MoveError};
use doorbell_core::message::GroupStatistics;
use doorbell_core::namespace::Namespace;
use doorbell_core::state::controller::{ControllerRecord, GroupRecord, NamespaceRecord, QueueRecord};
use doorbell_core::state::{HEADER_BYTES, StateError};
use zerocopy::FromBytes;

use super::namespaces::Namespaces;
use super::{SandboxedController, State};
use crate::upgrade::{CheckedController, FAILED, Part};

/// Records of a state that has been checked.
struct Records<'a> {
    fixed: &'a ControllerRecord,
    groups: &'a [GroupRecord],
    namespaces: &'a [NamespaceRecord],
}

impl<'a> Records<'a> {
    fn read(state: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = ControllerRecord::ref_from_prefix(state.get(HEADER_BYTES..)?).ok()?;
        let (groups, rest) =
            <[GroupRecord]>::ref_from_prefix_with_elems(rest, fixed.config.groups.get().into()).ok()?;
        let queues = fixed.config.io_queues.get();
        let (_, rest) = <[QueueRecord]>::ref_from_prefix_with_elems(rest, queues.into()).ok()?;
        let (namespaces, _) =
            <[NamespaceRecord]>::ref_from_prefix_with_elems(rest, fixed.namespaces.get().into()).ok()?;
        Some(Self { fixed, groups, namespaces })
    }

    fn statistics(&self) -> Vec<GroupStatistics> {
        let of = |record: &GroupRecord| GroupStatistics {
            bytes_read: record.statistics.bytes_read.get(),
            bytes_written: record.statistics.bytes_written.get(),
            read_commands: record.statistics.read_commands.get(),
            write_commands: record.statistics.write_commands.get(),
            media_errors: record.statistics.media_errors.get(),
            error_log_entries: record.statistics.error_log_entries.get(),
        };
        self.groups.iter().map(of).collect()
    }

    fn asked(&self) -> Vec<bool> {
        self.groups.iter().map(|record| record.under_way != 0).collect()
    }
}

const UNREADABLE: MoveError = MoveError::State(StateError::WrongLength);

impl SandboxedController {
    pub(super) fn save_checked(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        self.notice_failure();
        let State::Running(instance) = &mut self.state else { return Err(FAILED) };
        for (held, what) in [
            (!self.requests.is_empty(), "requests"),
            (!self.interrupts.is_empty(), "interrupts"),
            (!self.host_requests.is_empty(), "a flush"),
            (!self.changes.is_empty(), "changes of namespaces"),
        ] {
            if held {
                return Err(MoveError::Undrained(what));
            }
        }
        let mut checked = Box::new(CheckedController::new(self.config));
        let namespaces = &self.namespaces;
        checked.load(instance.save_state(Part::Controller)?, |nsid, _| namespaces.contains(nsid))?;
        let len = checked.save(buffer)?;
        let records = Records::read(buffer.get(..len).unwrap_or_default()).ok_or(UNREADABLE)?;
        self.agrees(&records).map_err(MoveError::Engine)?;
        Ok(len)
    }

    /// Whether a state says what the host knows by itself: what it indexes tables by, or waits for.
    fn agrees(&self, records: &Records<'_>) -> Result<(), &'static str> {
        if records.asked() != self.asked {
            return Err("the running module saves other requests to groups than are under way: try again");
        }
        if (records.fixed.flush_under_way != 0) != self.flushing {
            return Err("the running module saves another flush than is under way");
        }
        let mut namespaces = records.namespaces.iter();
        let same = records.namespaces.len() == self.namespaces.len()
            && namespaces
                .all(|record| self.namespaces.is(u32::from(record.index.get()) + 1, &record.config()));
        if same { Ok(()) } else { Err("the running module saves other namespaces than there are") }
    }

    pub(super) fn load_checked(
        &mut self,
        state: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), MoveError> {
        self.notice_failure();
        let mut checked = Box::new(CheckedController::new(self.shared.config.controller));
        checked.load(state, has_storage)?;
        let mut bytes = vec![0; CheckedController::STATE_BYTES];
        let len = checked.save(&mut bytes)?;
        bytes.truncate(len);
        let records = Records::read(&bytes).ok_or(UNREADABLE)?;
        let State::Running(instance) = &mut self.state else { return Err(FAILED) };
        instance.load_state(Part::Controller, &bytes)?;
        checked.load(instance.save_state(Part::Controller)?, |_, _| true)?;
        let mut again = vec![0; CheckedController::STATE_BYTES];
        let len = checked.save(&mut again)?;
        if again.get(..len) != Some(&bytes[..]) {
            return Err(MoveError::Engine("the new module doesn't save what it has loaded"));
        }
        // A doorbell may be written by way of the controller before it is polled.
        let count = instance.layout.registers.count as u32;
        instance.mirror().watch(0..count);
        self.config = *checked.config();
        self.asked = records.asked();
        self.group_statistics = records.statistics();
        self.temperature = Some(records.fixed.smart.temperature.get());
        self.flushing = records.fixed.flush_under_way != 0;
        self.namespaces = Namespaces::default();
        for record in records.namespaces {
            let nsid = u32::from(record.index.get()) + 1;
            self.namespaces.moved(nsid, record.config(), record.state, record.report);
        }
        self.requests.clear();
        self.interrupts.clear();
        self.host_requests.clear();
        self.changes.clear();
        // Takes the view that the module has left, and what the guest sees.
        self.call(|_| Ok(()));
        let _ = self.smart_counters();
        self.look_at_registers();
        match self.state {
            State::Running(_) => Ok(()),
            State::Failed(_) => Err(FAILED),
        }
    }
}
