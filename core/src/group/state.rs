//! Saving a running group and going on with it elsewhere; see [`crate::state`].

use super::{
    ARBITRATION_BURST, EVENTS, GroupCompletion, GroupConfig, Pending, QueueGroup, QueueStatistics,
    Submission, get, get_mut, namespace_index,
};
use crate::message::{Coalescing, CommandError, DoorbellBuffer, GroupEvent, GroupReply};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::spec::status::Status;
use crate::state::group::{
    COMMAND_BYTES, COMPLETION_BYTES, CommandRecord, CompletionRecord, DoorbellBufferRecord, EVENT_BYTES,
    EventRecord, NAMESPACE_BYTES, NamespaceRecord, QueueGroupRecord, ReplyRecord, SUBMISSION_BYTES,
    StatisticsRecord, SubmissionRecord,
};
use crate::state::{HEADER_BYTES, Kind, Reader, StateError, Writer, ensure, flag, optional};
use crate::tag::Tag;
use zerocopy::little_endian::{U16, U32};

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    /// The most bytes that a state of such a group has.
    pub const STATE_BYTES: usize = HEADER_BYTES
        + size_of::<QueueGroupRecord>()
        + QUEUES * (SUBMISSION_BYTES + COMPLETION_BYTES)
        + NAMESPACES * NAMESPACE_BYTES
        + EVENTS * EVENT_BYTES
        + COMMANDS * (size_of::<U32>() + COMMAND_BYTES);

    /// Writes the state to the start of `buffer`, which [`QueueGroup::STATE_BYTES`] bytes are always enough for;
    /// how many bytes it has. The group itself doesn't change.
    ///
    /// The caller goes on with one of the two groups only. Commands in flight are in the state by their tags:
    /// the other group's [`QueueGroup::complete`] takes them.
    ///
    /// # Errors
    /// [`StateError::BufferTooSmall`].
    pub fn save(&self, buffer: &mut [u8]) -> Result<usize, StateError> {
        let mut writer = Writer::new(buffer);
        writer.record(&self.fixed_record())?;
        let mut queues = 0;
        for &index in &self.active {
            if let Some(submission) = get(&self.submission, index) {
                writer.record(&submission.record(index))?;
                queues = index.max(queues);
            }
        }
        for &index in &self.unannounced {
            if let Some(completion) = get(&self.completion, index) {
                writer.record(&completion.record(index))?;
            }
        }
        for (index, completion) in (0u16..).zip(&self.completion) {
            let Some(completion) = completion.as_ref() else { continue };
            queues = index.max(queues);
            if !self.unannounced.contains(&index) {
                writer.record(&completion.record(index))?;
            }
        }
        let mut namespaces = 0;
        for (index, entry) in (0u16..).zip(&self.namespaces) {
            if let Some(namespace) = entry.get() {
                writer.record(&NamespaceRecord::new(index, namespace))?;
                namespaces = index.saturating_add(1);
            }
            if entry.in_flight > 0 {
                namespaces = index.saturating_add(1);
            }
        }
        for event in &self.events {
            writer.record(&EventRecord::new(event))?;
        }
        self.slots.save(&mut writer)?;
        let queues =
            if self.completion.iter().any(|place| !place.is_empty()) { queues.saturating_add(1) } else { 0 };
        writer.finish(Kind::QueueGroup, [queues, self.slots.used(), namespaces, 0])
    }

    /// Goes on with a saved group in place of whatever this one did. Touches neither guest memory nor registers;
    /// whether the group is [paused](QueueGroup::pause) doesn't change.
    ///
    /// `has_storage` says whether the host has a storage for this namespace identifier of at least that size,
    /// and may write to it unless the namespace is read-only.
    ///
    /// # Errors
    /// Where the state isn't one, doesn't fit, or contradicts itself; the group is then empty.
    pub fn load(
        &mut self,
        state: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        let config = self.config;
        self.clear(config);
        let loaded = self.load_records(state, has_storage);
        if loaded.is_err() {
            self.clear(config);
        }
        loaded
    }

    #[inline(never)]
    fn clear(&mut self, config: GroupConfig) {
        let paused = self.paused;
        *self = Self::new(config);
        self.paused = paused;
    }

    fn fixed_record(&self) -> QueueGroupRecord {
        // Every field by name: a new one must be saved, or said to be derived or the host's.
        let Self {
            config: GroupConfig { mdts_bytes, posted_registers: _ },
            page_shift,
            write_through,
            submission: _,
            completion,
            active,
            turn,
            burst,
            unannounced: _,
            slots,
            namespaces,
            flushes_of_all: _,
            doorbell_buffer,
            coalescing: Coalescing { threshold_z, time_100us },
            resetting,
            paused: _,
            pending,
            reply,
            fatal,
            events,
            dropped_events,
            statistics,
        } = self;
        let (pending, pending_index) = match *pending {
            Place::Empty => (0, 0),
            Place::Full(Pending::DeleteSubmissionQueue { index }) => (1, index),
            // Tables have at most 65,534 entries.
            Place::Full(Pending::RemoveNamespace { index }) => (2, u16::try_from(index).unwrap_or(u16::MAX)),
            Place::Full(Pending::Abort { tag, told: false }) => (3, tag.slot),
            Place::Full(Pending::Abort { tag, told: true }) => (4, tag.slot),
        };
        QueueGroupRecord {
            mdts_bytes: (*mdts_bytes).into(),
            turn: (*turn).into(),
            burst: (*burst).into(),
            page_shift: *page_shift,
            write_through: (*write_through).into(),
            threshold_z: *threshold_z,
            time_100us: *time_100us,
            resetting: (*resetting).into(),
            pending,
            pending_index: pending_index.into(),
            has_fatal: fatal.is_some().into(),
            has_doorbell_buffer: doorbell_buffer.is_some().into(),
            fatal_qid: fatal.unwrap_or(0).into(),
            doorbell_buffer: DoorbellBufferRecord::new(*doorbell_buffer),
            reply: ReplyRecord::new(reply),
            dropped_events: (*dropped_events).into(),
            statistics: StatisticsRecord::new(*statistics),
            submission_queues: count(active.len()),
            completion_queues: count(completion.iter().flatten().count()),
            namespaces: count(namespaces.iter().filter(|entry| entry.get().is_some()).count()),
            events: count(events.len()),
            used_slots: slots.used().into(),
            commands: count(slots.occupied()),
        }
    }

    fn load_records(
        &mut self,
        state: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        let (mut reader, _) = Reader::open(state, Kind::QueueGroup)?;
        let record: &QueueGroupRecord = reader.record()?;
        if record.mdts_bytes.get() > self.config.mdts_bytes {
            return Err(StateError::Mismatch("MDTS is less than the guest was told"));
        }
        self.config.mdts_bytes = record.mdts_bytes.get();
        self.turn = record.turn.get();
        self.burst = record.burst.get();
        ensure(self.burst < ARBITRATION_BURST, "the arbitration burst")?;
        self.page_shift = record.page_shift;
        ensure(matches!(self.page_shift, 0 | 12..=27), "the memory page size")?;
        self.write_through = flag(record.write_through)?;
        self.coalescing = Coalescing { threshold_z: record.threshold_z, time_100us: record.time_100us };
        self.resetting = flag(record.resetting)?;
        self.fatal = optional(record.has_fatal, record.fatal_qid.get())?;
        self.doorbell_buffer = optional(record.has_doorbell_buffer, record.doorbell_buffer.restore()?)?;
        self.reply = record.reply.restore()?;
        self.dropped_events = record.dropped_events.get();
        self.statistics = record.statistics.restore();

        let submission = reader.records(record.submission_queues.get().into())?;
        let completion = reader.records(record.completion_queues.get().into())?;
        let namespaces = reader.records(record.namespaces.get().into())?;
        let events: &[EventRecord] = reader.records(record.events.get().into())?;
        let generations = reader.records(record.used_slots.get().into())?;
        let commands = usize::from(record.commands.get());
        let free = reader.records(generations.len().saturating_sub(commands))?;
        let commands = reader.records(commands)?;
        reader.finish()?;

        self.load_completion_queues(completion)?;
        self.load_submission_queues(submission)?;
        self.load_namespaces(namespaces, has_storage)?;
        for event in events {
            self.events.push_back(event.restore()?).map_err(|_| StateError::Inconsistent("events"))?;
        }
        self.slots.restore(generations, free, commands)?;
        self.load_commands(commands)?;
        self.load_pending(record)
    }

    fn load_completion_queues(&mut self, records: &[CompletionRecord]) -> Result<(), StateError> {
        for record in records {
            let index = record.place.get();
            ensure(self.find_completion_queue(record.qid.get()).is_none(), "a completion queue twice")?;
            let completion = record.restore(self.doorbell_buffer, self.config.posted_registers)?;
            if completion.unannounced > 0 {
                self.unannounced.push(index).map_err(|_| StateError::TooSmall("queues"))?;
            }
            let place = self.completion.get_mut(usize::from(index)).ok_or(StateError::TooSmall("queues"))?;
            ensure(place.is_empty(), "two completion queues in one place")?;
            *place = Place::Full(completion);
        }
        Ok(())
    }

    fn load_submission_queues(&mut self, records: &[SubmissionRecord]) -> Result<(), StateError> {
        for record in records {
            let index = record.place.get();
            ensure(self.find_submission_queue(record.qid.get()).is_none(), "a submission queue twice")?;
            let completion = get(&self.completion, record.completion.get())
                .ok_or(StateError::Inconsistent("a submission queue without a completion queue"))?;
            let cqid = completion.queue.qid;
            let submission = record.restore(cqid, self.doorbell_buffer, self.config.posted_registers)?;
            let place = self.submission.get_mut(usize::from(index)).ok_or(StateError::TooSmall("queues"))?;
            ensure(place.is_empty(), "two submission queues in one place")?;
            *place = Place::Full(submission);
            self.active.push(index).map_err(|_| StateError::TooSmall("queues"))?;
        }
        Ok(())
    }

    fn load_namespaces(
        &mut self,
        records: &[NamespaceRecord],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        for record in records {
            let index = record.index.get();
            let entry = self.namespaces.get_mut(usize::from(index));
            let entry = entry.ok_or(StateError::TooSmall("namespaces"))?;
            ensure(entry.get().is_none(), "a namespace twice")?;
            let namespace = record.restore()?;
            if !has_storage(u32::from(index).saturating_add(1), &namespace) {
                return Err(StateError::Mismatch("a namespace has no such storage"));
            }
            entry.set(namespace);
        }
        Ok(())
    }

    /// Counts the commands in flight where they count.
    fn load_commands(&mut self, records: &[CommandRecord]) -> Result<(), StateError> {
        ensure(!(self.resetting && records.is_empty()), "a reset that waits for nothing")?;
        for record in records {
            match record.nsid.get() {
                0 => self.flushes_of_all = self.flushes_of_all.wrapping_add(1),
                nsid => {
                    let entry = namespace_index(nsid).and_then(|index| self.namespaces.get_mut(index));
                    let entry = entry.ok_or(StateError::TooSmall("namespaces"))?;
                    entry.in_flight = entry.in_flight.wrapping_add(1);
                }
            }
            // Queues that a reset has taken away had these.
            if self.resetting {
                continue;
            }
            let submission = get_mut(&mut self.submission, record.submission.get())
                .ok_or(StateError::Inconsistent("a command without a submission queue"))?;
            submission.in_flight = submission.in_flight.wrapping_add(1);
            let completion = get_mut(&mut self.completion, submission.completion);
            let reserved = completion.is_some_and(|completion| completion.queue.reserve());
            ensure(reserved, "more commands in flight than a completion queue has entries")?;
        }
        Ok(())
    }

    /// The request whose reply waits, which has to have something to wait for.
    fn load_pending(&mut self, record: &QueueGroupRecord) -> Result<(), StateError> {
        let index = record.pending_index.get();
        let wrong = StateError::Inconsistent("a pending request that waits for nothing");
        self.pending = match record.pending {
            0 => Place::Empty,
            1 => match get(&self.submission, index) {
                Some(submission) if submission.stopped && submission.in_flight > 0 => {
                    Place::Full(Pending::DeleteSubmissionQueue { index })
                }
                _ => return Err(wrong),
            },
            2 => match self.namespaces.get(usize::from(index)) {
                Some(entry) if entry.in_flight > 0 || self.flushes_of_all > 0 => {
                    Place::Full(Pending::RemoveNamespace { index: index.into() })
                }
                _ => return Err(wrong),
            },
            3 | 4 => {
                let generation = self.slots.generation_in_flight(index).ok_or(wrong)?;
                Place::Full(Pending::Abort {
                    tag: Tag { slot: index, generation },
                    told: record.pending == 4,
                })
            }
            _ => return Err(wrong),
        };
        Ok(())
    }
}

fn count(entries: usize) -> U16 {
    // Tables have at most 65,534 entries.
    U16::new(u16::try_from(entries).unwrap_or(u16::MAX))
}

impl Submission {
    fn record(&self, place: u16) -> SubmissionRecord {
        let Self { queue, completion, in_flight: _, stopped, statistics } = self;
        let QueueStatistics {
            sqid: _,
            cqid: _,
            commands,
            errors,
            bytes_read,
            bytes_written,
            doorbell_reads,
            rearms_won,
            rearms_lost,
            cq_full,
            interrupts: _,
        } = *statistics;
        SubmissionRecord {
            place: place.into(),
            qid: queue.qid.into(),
            completion: (*completion).into(),
            stopped: (*stopped).into(),
            reserved: 0,
            ring: queue.save(),
            commands: commands.into(),
            errors: errors.into(),
            bytes_read: bytes_read.into(),
            bytes_written: bytes_written.into(),
            doorbell_reads: doorbell_reads.into(),
            rearms_won: rearms_won.into(),
            rearms_lost: rearms_lost.into(),
            cq_full: cq_full.into(),
        }
    }
}

impl SubmissionRecord {
    fn restore(
        &self,
        cqid: u16,
        buffer: Option<DoorbellBuffer>,
        posted_registers: bool,
    ) -> Result<Submission, StateError> {
        let sqid = self.qid.get();
        self.ring.check(1)?;
        Ok(Submission {
            queue: SubmissionQueue::restore(sqid, &self.ring, buffer, posted_registers),
            completion: self.completion.get(),
            in_flight: 0,
            stopped: flag(self.stopped)?,
            statistics: QueueStatistics {
                sqid,
                cqid,
                commands: self.commands.get(),
                errors: self.errors.get(),
                bytes_read: self.bytes_read.get(),
                bytes_written: self.bytes_written.get(),
                doorbell_reads: self.doorbell_reads.get(),
                rearms_won: self.rearms_won.get(),
                rearms_lost: self.rearms_lost.get(),
                cq_full: self.cq_full.get(),
                interrupts: 0,
            },
        })
    }
}

impl GroupCompletion {
    fn record(&self, place: u16) -> CompletionRecord {
        let Self { queue, vector, coalesce, is_waiting, unannounced, since_ns, interrupts } = *self;
        CompletionRecord {
            place: place.into(),
            qid: queue.qid.into(),
            vector: vector.unwrap_or(0).into(),
            has_vector: vector.is_some().into(),
            coalesce: coalesce.into(),
            phase: queue.phase().into(),
            is_waiting: is_waiting.into(),
            reserved: U16::ZERO,
            ring: queue.save(),
            unannounced: unannounced.into(),
            since_ns: if is_waiting { since_ns } else { 0 }.into(),
            interrupts: interrupts.into(),
        }
    }
}

impl CompletionRecord {
    fn restore(
        &self,
        buffer: Option<DoorbellBuffer>,
        posted_registers: bool,
    ) -> Result<GroupCompletion, StateError> {
        let phase = flag(self.phase)?;
        self.ring.check(CompletionQueue::ALIGNMENT)?;
        let completion = GroupCompletion {
            queue: CompletionQueue::restore(self.qid.get(), &self.ring, phase, buffer, posted_registers),
            vector: optional(self.has_vector, self.vector.get())?,
            coalesce: flag(self.coalesce)?,
            is_waiting: flag(self.is_waiting)?,
            unannounced: self.unannounced.get(),
            since_ns: self.since_ns.get(),
            interrupts: self.interrupts.get(),
        };
        let owed = completion.unannounced > 0;
        ensure(!owed || completion.vector.is_some(), "an interrupt owed to no vector")?;
        ensure(owed || !completion.is_waiting, "an interrupt that is owed to nothing")?;
        Ok(completion)
    }
}

impl NamespaceRecord {
    fn new(index: u16, namespace: Namespace) -> Self {
        let Namespace { size_blocks, block_shift, read_only } = namespace;
        let read_only = read_only.into();
        Self { index: index.into(), block_shift, read_only, size_blocks: size_blocks.into() }
    }

    fn restore(&self) -> Result<Namespace, StateError> {
        let (size_blocks, block_shift) = (self.size_blocks.get(), self.block_shift);
        let bytes = size_blocks.checked_mul(1u64.wrapping_shl(u32::from(block_shift)));
        ensure(matches!(block_shift, 9 | 12) && bytes.is_some(), "a namespace's shape")?;
        Ok(Namespace { size_blocks, block_shift, read_only: flag(self.read_only)? })
    }
}

impl ReplyRecord {
    fn new(reply: &Place<GroupReply>) -> Self {
        let mut record = Self::default();
        match *reply {
            Place::Empty => {}
            Place::Full(GroupReply::Done) => record.kind = 1,
            Place::Full(GroupReply::Failed(status)) => {
                (record.kind, record.status) = (2, status.0.into());
            }
            Place::Full(GroupReply::Abort { aborted }) => {
                (record.kind, record.aborted) = (3, aborted.into());
            }
            Place::Full(GroupReply::Statistics(statistics)) => {
                (record.kind, record.statistics) = (4, StatisticsRecord::new(statistics));
            }
            Place::Full(GroupReply::ResetDone) => record.kind = 5,
        }
        record
    }

    fn restore(&self) -> Result<Place<GroupReply>, StateError> {
        Ok(Place::Full(match self.kind {
            0 => return Ok(Place::Empty),
            1 => GroupReply::Done,
            2 => GroupReply::Failed(Status(self.status.get())),
            3 => GroupReply::Abort { aborted: flag(self.aborted)? },
            4 => GroupReply::Statistics(self.statistics.restore()),
            5 => GroupReply::ResetDone,
            _ => return Err(StateError::Inconsistent("a reply")),
        }))
    }
}

impl EventRecord {
    fn new(event: &GroupEvent) -> Self {
        match *event {
            GroupEvent::InvalidDoorbell { qid, completion, value } => {
                let completion = completion.into();
                Self { kind: 1, completion, qid: qid.into(), value: value.into(), ..Self::default() }
            }
            GroupEvent::CommandError(CommandError { sqid, cid, status, lba, nsid }) => Self {
                kind: 2,
                completion: 0,
                qid: sqid.into(),
                cid: cid.into(),
                status: status.0.into(),
                value: nsid.into(),
                lba: lba.into(),
            },
            GroupEvent::Fatal { qid } => Self { kind: 3, qid: qid.into(), ..Self::default() },
        }
    }

    fn restore(&self) -> Result<GroupEvent, StateError> {
        let (qid, value) = (self.qid.get(), self.value.get());
        Ok(match self.kind {
            1 => GroupEvent::InvalidDoorbell { qid, completion: flag(self.completion)?, value },
            2 => GroupEvent::CommandError(CommandError {
                sqid: qid,
                cid: self.cid.get(),
                status: Status(self.status.get()),
                lba: self.lba.get(),
                nsid: value,
            }),
            3 => GroupEvent::Fatal { qid },
            _ => return Err(StateError::Inconsistent("an event")),
        })
    }
}
