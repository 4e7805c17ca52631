//! The Error Information log (NVM Express Base Specification 2.0, section 5.16.1.2).

use crate::message::CommandError;
use crate::spec::log::ErrorInformationEntry;
use crate::spec::status::Status;

/// The newest entries, and how many there ever were.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorLog<const ERRORS: usize> {
    entries: [Entry; ERRORS],
    /// Index of the place for the next entry.
    next: usize,
    /// Entries over the life of the controller, earlier lives of the host included.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Entries up to this one; 0 where the place is empty.
    count: u64,
    error: ControllerError,
}

/// What an entry tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControllerError {
    sqid: u16,
    cid: u16,
    status: Status,
    lba: u64,
    nsid: u32,
}

/// Submission queue and command identifier of an error that belongs to no command.
const NO_COMMAND: u16 = 0xffff;

impl ControllerError {
    /// An error of an admin command.
    pub(super) const fn of_admin_command(cid: u16, nsid: u32, status: Status) -> Self {
        Self { sqid: 0, cid, status, lba: 0, nsid }
    }

    /// An error that belongs to a queue and to none of its commands.
    pub(super) const fn of_queue(qid: u16, status: Status) -> Self {
        Self { sqid: qid, cid: NO_COMMAND, status, lba: 0, nsid: 0 }
    }

    /// An error that belongs to no queue.
    pub(super) const fn of_controller(status: Status) -> Self {
        Self { sqid: NO_COMMAND, cid: NO_COMMAND, status, lba: 0, nsid: 0 }
    }
}

impl From<CommandError> for ControllerError {
    fn from(error: CommandError) -> Self {
        let CommandError { sqid, cid, status, lba, nsid } = error;
        Self { sqid, cid, status, lba, nsid }
    }
}

impl<const ERRORS: usize> ErrorLog<ERRORS> {
    pub(super) const fn new() -> Self {
        const EMPTY: ControllerError =
            ControllerError { sqid: 0, cid: 0, status: Status::SUCCESS, lba: 0, nsid: 0 };
        Self { entries: [Entry { count: 0, error: EMPTY }; ERRORS], next: 0, count: 0 }
    }

    pub(super) fn push(&mut self, error: ControllerError) {
        self.count = self.count.saturating_add(1);
        if let Some(place) = self.entries.get_mut(self.next) {
            *place = Entry { count: self.count, error };
        }
        self.next = self.next.wrapping_add(1);
        if self.next >= ERRORS {
            self.next = 0;
        }
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Counts on from an earlier life of the host.
    pub(super) fn continue_from(&mut self, count: u64) {
        self.count = self.count.saturating_add(count);
    }

    /// The entries, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = ErrorInformationEntry> + '_ {
        let (newer, older) = self.entries.split_at_checked(self.next).unwrap_or((&self.entries, &[]));
        newer
            .iter()
            .rev()
            .chain(older.iter().rev())
            .filter(|entry| entry.count != 0)
            .map(ErrorInformationEntry::from)
    }
}

impl From<&Entry> for ErrorInformationEntry {
    fn from(entry: &Entry) -> Self {
        let ControllerError { sqid, cid, status, lba, nsid } = entry.error;
        Self {
            error_count: entry.count.into(),
            sqid: sqid.into(),
            cid: cid.into(),
            status: status.0.wrapping_shl(1).into(),
            parameter_error_location: 0xffff.into(),
            lba: lba.into(),
            nsid: nsid.into(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_entries_come_first_and_the_oldest_are_lost() {
        let mut log = ErrorLog::<3>::new();
        assert_eq!(log.newest_first().count(), 0);
        for cid in 1..=5 {
            log.push(ControllerError::of_admin_command(cid, 0, Status::DATA_TRANSFER_ERROR.dnr()));
        }
        let counts: Vec<u64> = log.newest_first().map(|entry| entry.error_count.get()).collect();
        assert_eq!(counts, [5, 4, 3]);
        // Status Field in bits 15:1: DNR is bit 15, Data Transfer Error 04h.
        assert!(log.newest_first().all(|entry| entry.status.get() == 0x8008));
    }
}
