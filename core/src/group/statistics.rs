//! Counters.

use super::slots::{Kind, Slot};
use crate::message::GroupStatistics;
use crate::spec::status::Status;

/// Counters of one submission queue since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Submission queue identifier.
    pub sqid: u16,
    /// Identifier of its completion queue.
    pub cqid: u16,
    /// Completed commands.
    pub commands: u64,
    /// Completed commands with a status other than Successful Completion.
    pub errors: u64,
    /// Bytes of user data read.
    pub bytes_read: u64,
    /// Bytes of user data written.
    pub bytes_written: u64,
    /// Times the tail doorbell (register or shadow) was looked at.
    pub doorbell_reads: u64,
    /// Times the queue was armed and nothing had moved.
    pub rearms_won: u64,
    /// Times the queue was armed and the driver had moved meanwhile.
    pub rearms_lost: u64,
    /// Times a command had to wait for an entry of the completion queue.
    pub cq_full: u64,
    /// Interrupts of the completion queue.
    pub interrupts: u64,
}

impl QueueStatistics {
    #[inline]
    pub(super) fn completed(&mut self, slot: &Slot, status: Status) {
        self.commands = self.commands.wrapping_add(1);
        if !status.is_success() {
            self.errors = self.errors.wrapping_add(1);
            return;
        }
        match slot.kind {
            Kind::Read => self.bytes_read = self.bytes_read.wrapping_add(u64::from(slot.bytes)),
            Kind::Write => self.bytes_written = self.bytes_written.wrapping_add(u64::from(slot.bytes)),
            Kind::FlushAll | Kind::Other | Kind::Refused => {}
        }
    }
}

impl GroupStatistics {
    #[inline]
    pub(super) fn completed(&mut self, slot: &Slot, status: Status) {
        if !status.is_success() {
            if status.code_type() == 2 && status != Status::COMPARE_FAILURE {
                self.media_errors = self.media_errors.wrapping_add(1);
            }
            if is_logged(status) {
                self.error_log_entries = self.error_log_entries.wrapping_add(1);
            }
            return;
        }
        match slot.kind {
            Kind::Read => {
                self.read_commands = self.read_commands.wrapping_add(1);
                self.bytes_read = self.bytes_read.wrapping_add(u64::from(slot.bytes));
            }
            Kind::Write => {
                self.write_commands = self.write_commands.wrapping_add(1);
                self.bytes_written = self.bytes_written.wrapping_add(u64::from(slot.bytes));
            }
            Kind::FlushAll | Kind::Other | Kind::Refused => {}
        }
    }
}

/// Whether a status goes to the Error Information log: failures do, answers that a driver asked for (a compare
/// that differs, an abort) don't.
#[inline]
pub(super) fn is_logged(status: Status) -> bool {
    !status.is_success() && !matches!((status.code_type(), status.code()), (2, 0x85) | (0, 0x07))
}
