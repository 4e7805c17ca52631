//! Saving a running controller and going on with it elsewhere; see [`crate::state`].

mod logs;
mod namespaces;
mod queues;
mod settings;

use zerocopy::{FromZeros, IntoBytes};

use super::groups::{GroupSet, UnderWay};
use super::lifecycle::{Lifecycle, Shutdown};
use super::{Controller, ControllerConfig};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::state::controller::{
    AdminQueueRecord, ConfigRecord, ControllerRecord, ERROR_BYTES, EventsRecord, FeaturesRecord, GROUP_BYTES,
    GroupRecord, NAMESPACE_BYTES, PendingRecord, QUEUE_BYTES, RegistersRecord, SmartRecord,
};
use crate::state::group::{DoorbellBufferRecord, StatisticsRecord};
use crate::state::{HEADER_BYTES, Kind, Reader, StateError, Writer, ensure};

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// The most bytes that a state of such a controller has.
    pub const STATE_BYTES: usize = HEADER_BYTES
        + size_of::<ControllerRecord>()
        + GROUPS * GROUP_BYTES
        + QUEUES * QUEUE_BYTES
        + NAMESPACES * NAMESPACE_BYTES
        + NAMESPACES.div_ceil(8)
        + ERRORS * ERROR_BYTES;

    /// Writes the state to the start of `buffer`, which [`Controller::STATE_BYTES`] bytes are always enough for;
    /// how many bytes it has. The controller itself doesn't change, and the caller goes on with one of the two
    /// only.
    ///
    /// # Errors
    /// [`StateError::BufferTooSmall`].
    pub fn save(&self, buffer: &mut [u8]) -> Result<usize, StateError> {
        let mut writer = Writer::new(buffer);
        writer.record(&self.fixed_record())?;
        let count = usize::from(self.groups.count());
        for (under_way, statistics) in self.groups.under_way.iter().zip(&self.statistics).take(count) {
            writer.record(&under_way.record(StatisticsRecord::new(*statistics)))?;
        }
        self.queues.save(&mut writer, self.config.io_queues)?;
        self.namespaces.save(&mut writer)?;
        self.errors.save(&mut writer)?;
        let (highest_nsid, errors) = (self.highest_nsid(), self.error_capacity());
        writer.finish(Kind::Controller, [self.config.groups, self.config.io_queues, highest_nsid, errors])
    }

    /// Goes on with a saved controller in place of whatever this one did; its configuration says what the host
    /// has room for. Touches neither guest memory nor registers. The configuration in use afterwards is the
    /// state's ([`Controller::config`]).
    ///
    /// `has_storage` says whether the host has a storage for this namespace identifier of at least that size,
    /// and may write to it unless the namespace is read-only.
    ///
    /// # Errors
    /// Where the state isn't one, doesn't fit, or contradicts itself; the controller is then as
    /// [`Controller::new`] made it.
    pub fn load(
        &mut self,
        state: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        let config = self.config;
        self.clear(&config);
        let loaded = self.load_records(state, has_storage);
        if loaded.is_err() {
            self.clear(&config);
        }
        loaded
    }

    #[inline(never)]
    fn clear(&mut self, config: &ControllerConfig) {
        *self = Self::blank();
        self.configure(*config);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most 1,024, asserted where the controller is made"
    )]
    fn highest_nsid(&self) -> u16 {
        self.namespaces.highest_nsid() as u16
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most 256, asserted where the controller is made")]
    fn error_capacity(&self) -> u16 {
        self.errors.capacity() as u16
    }

    #[inline(never)]
    fn fixed_record(&self) -> ControllerRecord {
        // Every field by name: a new one must be saved, or said to be derived.
        let Self {
            config,
            registers,
            lifecycle,
            shutdown,
            flush_under_way,
            admin,
            page_shift,
            doorbell_buffer,
            pending,
            interrupt_due,
            queues: _,
            groups,
            namespaces,
            features,
            events,
            errors,
            smart,
            statistics: _,
        } = self;
        // One after the other, so that a value goes straight from here to there.
        let mut record = ControllerRecord::new_zeroed();
        record.config = ConfigRecord::new(config);
        record.registers = RegistersRecord::new(registers);
        record.lifecycle = match lifecycle {
            Lifecycle::Disabled => 0,
            Lifecycle::Enabling => 1,
            Lifecycle::Running => 2,
            Lifecycle::Failed => 3,
            Lifecycle::Resetting => 4,
        };
        record.shutdown = match shutdown {
            Shutdown::None => 0,
            Shutdown::Quiescing { abrupt: false } => 1,
            Shutdown::Quiescing { abrupt: true } => 2,
            Shutdown::FlushDue { abrupt: false } => 3,
            Shutdown::FlushDue { abrupt: true } => 4,
            Shutdown::Flushing => 5,
            Shutdown::Complete => 6,
        };
        record.flush_under_way = (*flush_under_way).into();
        record.page_shift = *page_shift;
        record.interrupt_due = (*interrupt_due).into();
        record.has_doorbell_buffer = doorbell_buffer.is_some().into();
        record.doorbell_buffer = DoorbellBufferRecord::new(*doorbell_buffer);
        record.admin = admin.as_ref().map_or_else(AdminQueueRecord::default, AdminQueueRecord::new);
        record.pending = PendingRecord::new(pending.as_ref());
        record.features = FeaturesRecord::new(features);
        record.events = EventsRecord::new(events);
        record.smart = SmartRecord::new(smart);
        record.error_count = errors.count().into();
        record.reset_due = groups.reset_due.0.into();
        record.clear_due = groups.clear_due.0.into();
        record.command_due = groups.command_due.0.into();
        record.command_sent = groups.command_sent.0.into();
        record.highest_nsid = self.highest_nsid().into();
        record.namespaces = namespaces.count().into();
        record.error_capacity = self.error_capacity().into();
        record.errors = errors.len().into();
        record
    }

    fn load_records(
        &mut self,
        state: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        let (mut reader, _) = Reader::open(state, Kind::Controller)?;
        let record: &ControllerRecord = reader.record()?;
        let config = record.config.restore();
        config.fits(&self.config, GROUPS, QUEUES)?;
        let highest_nsid = usize::from(record.highest_nsid.get());
        let groups = reader.records(config.groups.into())?;
        let queues = reader.records(config.io_queues.into())?;
        let namespaces = reader.records(record.namespaces.get().into())?;
        let changed = reader.records(highest_nsid.div_ceil(8))?;
        let errors = reader.records(record.errors.get().into())?;
        reader.finish()?;

        self.configure(config);
        self.load_lifecycle(record)?;
        let is_running = self.lifecycle == Lifecycle::Running;
        self.features = record.features.restore(&config)?;
        record.events.restore(&mut self.events);
        ensure(is_running || self.events.holds_nothing(), "event requests without an admin queue")?;
        self.smart = record.smart.restore();
        self.queues.load(queues)?;
        ensure(is_running || self.queues.is_empty(), "I/O queues without an admin queue")?;
        self.errors.load(record.error_capacity.get().into(), record.error_count.get(), errors)?;
        self.load_namespaces(highest_nsid, namespaces, changed, has_storage)?;
        self.load_admin(record)?;
        self.load_groups(record, groups)?;
        // Numbers out of range, flags that are neither 0 nor 1, reserved bits, texts that aren't printable, values
        // that are absent and not 0: all of these have become others.
        ensure(self.fixed_record().as_bytes() == record.as_bytes(), "a value that no controller has")
    }

    fn load_lifecycle(&mut self, record: &ControllerRecord) -> Result<(), StateError> {
        self.lifecycle = match record.lifecycle {
            0 => Lifecycle::Disabled,
            1 => Lifecycle::Enabling,
            2 => Lifecycle::Running,
            3 => Lifecycle::Failed,
            _ => Lifecycle::Resetting,
        };
        let (shutdown, shst) = match record.shutdown {
            0 => (Shutdown::None, 0),
            1 => (Shutdown::Quiescing { abrupt: false }, 1),
            2 => (Shutdown::Quiescing { abrupt: true }, 1),
            3 => (Shutdown::FlushDue { abrupt: false }, 1),
            4 => (Shutdown::FlushDue { abrupt: true }, 1),
            5 => (Shutdown::Flushing, 1),
            _ => (Shutdown::Complete, 2),
        };
        self.shutdown = shutdown;
        self.flush_under_way = record.flush_under_way != 0;
        ensure(shutdown != Shutdown::Flushing || self.flush_under_way, "a flush that nobody was asked for")?;
        record.registers.restore(&mut self.registers);
        self.registers.status.set_shst(shst);
        let is_enabled = self.registers.configuration.en();
        let (rdy, cfs) = (self.registers.status.rdy(), self.registers.status.cfs());
        let possible = match self.lifecycle {
            Lifecycle::Disabled => !rdy && !cfs,
            Lifecycle::Enabling => is_enabled && !rdy && !cfs,
            Lifecycle::Running => is_enabled && rdy,
            Lifecycle::Failed => is_enabled && !rdy && cfs,
            Lifecycle::Resetting => !cfs,
        };
        ensure(possible, "CC and CSTS")?;
        self.page_shift = record.page_shift;
        ensure((12..=27).contains(&self.page_shift), "the memory page size")?;
        self.interrupt_due = record.interrupt_due != 0;
        ensure(
            self.lifecycle == Lifecycle::Running || !self.interrupt_due,
            "an interrupt without admin queue",
        )
    }

    /// The admin queue, which is there while the controller runs, with its shadow doorbells and the command that
    /// waits for groups.
    fn load_admin(&mut self, record: &ControllerRecord) -> Result<(), StateError> {
        let is_running = self.lifecycle == Lifecycle::Running;
        if record.has_doorbell_buffer != 0 {
            self.doorbell_buffer = Some(record.doorbell_buffer.restore()?);
        }
        let is_serving = is_running && self.shutdown == Shutdown::None;
        ensure(is_serving || self.doorbell_buffer.is_none(), "doorbell buffers without a driver")?;
        if record.pending.is_there != 0 {
            let pending = record.pending.restore().filter(|pending| self.is_possible(&pending.request));
            let impossible = StateError::Inconsistent("what a pending command asks of the groups");
            self.pending = Place::Full(pending.ok_or(impossible)?);
            ensure(is_serving, "a pending command without a driver")?;
        }
        if is_running {
            let reserved = !self.pending.is_empty();
            self.admin = Place::Full(record.admin.restore(self.doorbell_buffer, reserved)?);
        }
        Ok(())
    }

    fn load_groups(&mut self, record: &ControllerRecord, groups: &[GroupRecord]) -> Result<(), StateError> {
        let all = self.groups.all();
        let set = |bits: u64, what| {
            ensure(bits & !all.0 == 0, what)?;
            Ok(GroupSet(bits))
        };
        self.groups.reset_due = set(record.reset_due.get(), "groups to be reset")?;
        self.groups.clear_due = set(record.clear_due.get(), "groups to give up doorbell buffers")?;
        self.groups.command_due = set(record.command_due.get(), "groups to be sent a command")?;
        self.groups.command_sent = set(record.command_sent.get(), "groups that were sent a command")?;
        let places = self.groups.under_way.iter_mut().zip(&mut self.statistics);
        for (record, (under_way, statistics)) in groups.iter().zip(places) {
            *under_way = record.restore()?;
            *statistics = record.statistics.restore();
            if let UnderWay::Namespace(index) = *under_way {
                let known = self.namespaces.has_entry(index);
                ensure(known, "a group is told of a namespace that isn't there")?;
            }
        }
        ensure(!self.pending.is_empty() || self.groups.command_answered(), "a command that isn't there")?;
        // Whoever has been asked will answer.
        for group in 0..self.groups.count() {
            let under_way = self.groups.under_way(group);
            let sent = self.groups.command_sent.contains(group);
            ensure(!sent || under_way == UnderWay::Command, "an answer that will never come")?;
            let told = self.namespaces.all_told_by(group, under_way);
            ensure(told, "an answer about a namespace that will never come")?;
        }
        Ok(())
    }
}
