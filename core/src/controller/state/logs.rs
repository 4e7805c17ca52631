//! Asynchronous events, the error log and SMART as records.

use zerocopy::little_endian::U16;

use super::super::error_log::{ControllerError, Entry, ErrorLog};
use super::super::events::{Events, Request};
use super::super::smart::{Smart, SmartCounters};
use crate::spec::status::Status;
use crate::state::controller::{ErrorRecord, EventRequestRecord, EventsRecord, SmartRecord};
use crate::state::{StateError, Writer, ensure};

/// Every bit of an event, and of an event type.
const EVENT_BITS: u8 = 0b1111;
const TYPE_BITS: u8 = 0b111;

impl EventsRecord {
    pub(super) fn new(events: &Events) -> Self {
        let Events { requests, pending, masked } = *events;
        let requests = requests.map(|request| match request {
            Request::None => EventRequestRecord::default(),
            Request::Held(cid) => EventRequestRecord { kind: 1, reserved: 0, cid: cid.into() },
            Request::Aborted(cid) => EventRequestRecord { kind: 2, reserved: 0, cid: cid.into() },
        });
        Self { requests, pending, masked, reserved: U16::ZERO }
    }

    pub(super) fn restore(&self, events: &mut Events) {
        (events.pending, events.masked) = (self.pending & EVENT_BITS, self.masked & TYPE_BITS);
        for (record, request) in self.requests.iter().zip(&mut events.requests) {
            *request = match record.kind {
                1 => Request::Held(record.cid.get()),
                2 => Request::Aborted(record.cid.get()),
                _ => Request::None,
            };
        }
    }
}

impl<const ERRORS: usize> ErrorLog<ERRORS> {
    /// Entries that there are.
    pub(super) fn len(&self) -> u16 {
        u16::try_from(self.entries.iter().filter(|entry| entry.count != 0).count()).unwrap_or(u16::MAX)
    }

    /// The entries, oldest first.
    pub(super) fn save(&self, writer: &mut Writer<'_>) -> Result<(), StateError> {
        let (newer, older) = self.entries.split_at_checked(self.next).unwrap_or((&self.entries, &[]));
        for entry in older.iter().chain(newer).filter(|entry| entry.count != 0) {
            let Entry { count, error: ControllerError { sqid, cid, status, lba, nsid } } = *entry;
            writer.record(&ErrorRecord {
                count: count.into(),
                sqid: sqid.into(),
                cid: cid.into(),
                status: status.0.into(),
                reserved: U16::ZERO,
                lba: lba.into(),
                nsid: nsid.into(),
            })?;
        }
        Ok(())
    }

    /// Fills an empty log that keeps `capacity` entries.
    pub(super) fn load(
        &mut self,
        capacity: usize,
        count: u64,
        records: &[ErrorRecord],
    ) -> Result<(), StateError> {
        self.hidden = ERRORS.checked_sub(capacity).ok_or(StateError::TooSmall("error log"))?;
        ensure(capacity > 0 && records.len() <= capacity, "the error log's length")?;
        for record in records {
            let error = ControllerError {
                sqid: record.sqid.get(),
                cid: record.cid.get(),
                status: Status(record.status.get()),
                lba: record.lba.get(),
                nsid: record.nsid.get(),
            };
            ensure((1..=count).contains(&record.count.get()), "the number of an error")?;
            self.put(Entry { count: record.count.get(), error });
        }
        self.count = count;
        Ok(())
    }
}

impl SmartRecord {
    pub(super) fn new(smart: &Smart) -> Self {
        let Smart { base, started_ns, now_ns, temperature } = *smart;
        let SmartCounters {
            bytes_read,
            bytes_written,
            read_commands,
            write_commands,
            busy_ns,
            power_cycles,
            power_on_ns,
            unsafe_shutdowns,
            media_errors,
            error_log_entries,
        } = base;
        Self {
            bytes_read: bytes_read.into(),
            bytes_written: bytes_written.into(),
            read_commands: read_commands.into(),
            write_commands: write_commands.into(),
            busy_ns: busy_ns.into(),
            power_cycles: power_cycles.into(),
            power_on_ns: power_on_ns.into(),
            unsafe_shutdowns: unsafe_shutdowns.into(),
            media_errors: media_errors.into(),
            error_log_entries: error_log_entries.into(),
            started_ns: started_ns.unwrap_or(0).into(),
            now_ns: now_ns.into(),
            temperature: temperature.into(),
            has_started: started_ns.is_some().into(),
            reserved: 0,
        }
    }

    pub(super) fn restore(&self) -> Smart {
        let base = SmartCounters {
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            read_commands: self.read_commands.get(),
            write_commands: self.write_commands.get(),
            busy_ns: self.busy_ns.get(),
            power_cycles: self.power_cycles.get(),
            power_on_ns: self.power_on_ns.get(),
            unsafe_shutdowns: self.unsafe_shutdowns.get(),
            media_errors: self.media_errors.get(),
            error_log_entries: self.error_log_entries.get(),
        };
        let started_ns = (self.has_started != 0).then_some(self.started_ns.get());
        Smart { base, started_ns, now_ns: self.now_ns.get(), temperature: self.temperature.get() }
    }
}
