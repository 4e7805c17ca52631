//! Saving a running group and going on with it elsewhere; see [`crate::state`].

use super::{
    ARBITRATION_BURST, EVENTS, GroupCompletion, GroupConfig, Pending, QueueGroup, QueueStatistics,
    Submission, get, get_mut, namespace_index,
};
use crate::message::{
    Coalescing, CommandError, DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupStatistics,
    MessageWords, kind,
};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::spec::status::Status;
use crate::state::group::{
    COMMAND_BYTES, COMPLETION_BYTES, CommandRecord, CompletionRecord, DoorbellBufferRecord, EVENT_BYTES,
    EventRecord, NAMESPACE_BYTES, NamespaceRecord, QueueGroupRecord, ReplyRecord, SUBMISSION_BYTES,
    StatisticsRecord, SubmissionRecord,
};
use crate::state::{HEADER_BYTES, Kind, Reader, StateError, Writer, ensure, flag};
use crate::tag::Tag;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

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

    #[inline(never)]
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
        // One after the other, so that a value goes straight from here to there.
        let mut record = QueueGroupRecord::new_zeroed();
        record.mdts_bytes = (*mdts_bytes).into();
        record.turn = (*turn).into();
        record.burst = (*burst).into();
        record.page_shift = *page_shift;
        record.write_through = (*write_through).into();
        record.threshold_z = *threshold_z;
        record.time_100us = *time_100us;
        record.resetting = (*resetting).into();
        record.pending = pending;
        record.pending_index = pending_index.into();
        record.has_fatal = fatal.is_some().into();
        record.has_doorbell_buffer = doorbell_buffer.is_some().into();
        record.fatal_qid = fatal.unwrap_or(0).into();
        record.doorbell_buffer = DoorbellBufferRecord::new(*doorbell_buffer);
        record.reply = ReplyRecord::new(reply);
        record.dropped_events = (*dropped_events).into();
        record.statistics = StatisticsRecord::new(*statistics);
        record.submission_queues = count(active.len());
        record.completion_queues = count(completion.iter().flatten().count());
        record.namespaces = count(namespaces.iter().filter(|entry| entry.get().is_some()).count());
        record.events = count(events.len());
        record.used_slots = slots.used().into();
        record.commands = count(slots.occupied());
        record
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
        self.write_through = record.write_through != 0;
        self.coalescing = Coalescing { threshold_z: record.threshold_z, time_100us: record.time_100us };
        self.resetting = record.resetting != 0;
        self.fatal = (record.has_fatal != 0).then_some(record.fatal_qid.get());
        if record.has_doorbell_buffer != 0 {
            self.doorbell_buffer = Some(record.doorbell_buffer.restore()?);
        }
        self.reply = record.reply.restore();
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
            let impossible = StateError::Inconsistent("events");
            let restored = event.restore().ok_or(impossible)?;
            ensure(EventRecord::new(&restored).as_bytes() == event.as_bytes(), "an event")?;
            self.events.push_back(restored).map_err(|_| impossible)?;
        }
        self.slots.restore(generations, free, commands)?;
        self.load_commands(commands)?;
        self.load_pending(record)?;
        // Numbers out of range, flags that are neither 0 nor 1, values that are absent and not 0: all of these have
        // become others.
        ensure(self.fixed_record().as_bytes() == record.as_bytes(), "a value that no group has")
    }

    fn load_completion_queues(&mut self, records: &[CompletionRecord]) -> Result<(), StateError> {
        for record in records {
            let index = record.place.get();
            ensure(self.find_completion_queue(record.qid.get()).is_none(), "a completion queue twice")?;
            record.ring.check(CompletionQueue::ALIGNMENT)?;
            let completion = record.restore(self.doorbell_buffer, self.config.posted_registers);
            ensure(completion.record(index).as_bytes() == record.as_bytes(), "a completion queue's flags")?;
            let owed = completion.unannounced > 0;
            ensure(!owed || completion.vector.is_some(), "an interrupt owed to no vector")?;
            ensure(owed || !completion.is_waiting, "an interrupt that is owed to nothing")?;
            if owed {
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
            record.ring.check(1)?;
            let submission = record.restore(cqid, self.doorbell_buffer, self.config.posted_registers);
            ensure(submission.record(index).as_bytes() == record.as_bytes(), "a submission queue's flags")?;
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
    fn restore(&self, cqid: u16, buffer: Option<DoorbellBuffer>, posted_registers: bool) -> Submission {
        let sqid = self.qid.get();
        Submission {
            queue: SubmissionQueue::restore(sqid, &self.ring, buffer, posted_registers),
            completion: self.completion.get(),
            in_flight: 0,
            stopped: self.stopped != 0,
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
        }
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
    fn restore(&self, buffer: Option<DoorbellBuffer>, posted_registers: bool) -> GroupCompletion {
        let phase = self.phase != 0;
        GroupCompletion {
            queue: CompletionQueue::restore(self.qid.get(), &self.ring, phase, buffer, posted_registers),
            vector: (self.has_vector != 0).then_some(self.vector.get()),
            coalesce: self.coalesce != 0,
            is_waiting: self.is_waiting != 0,
            unannounced: self.unannounced.get(),
            since_ns: self.since_ns.get(),
            interrupts: self.interrupts.get(),
        }
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
        let fits = size_blocks.leading_zeros() >= u32::from(block_shift);
        ensure(matches!(block_shift, 9 | 12) && fits, "a namespace's shape")?;
        Ok(Namespace { size_blocks, block_shift, read_only: flag(self.read_only)? })
    }
}

impl ReplyRecord {
    fn new(reply: &Place<GroupReply>) -> Self {
        let mut record = Self::default();
        if let Place::Full(reply) = *reply {
            let MessageWords { kind, a, q, .. } = GroupMessage::Reply(reply).to_words();
            [record.kind, _] = kind.wrapping_sub(kind::DONE - 1).to_le_bytes();
            match kind {
                kind::ABORT_REPLY => [record.aborted, _] = a.to_le_bytes(),
                _ => record.status = a.into(),
            }
            record.statistics = StatisticsRecord::new(GroupStatistics::from_words(q));
        }
        record
    }

    /// Another reply, where the record is none that [`ReplyRecord::new`] makes.
    fn restore(&self) -> Place<GroupReply> {
        Place::Full(match self.kind {
            1 => GroupReply::Done,
            2 => GroupReply::Failed(Status(self.status.get())),
            3 => GroupReply::Abort { aborted: self.aborted != 0 },
            4 => GroupReply::Statistics(self.statistics.restore()),
            5 => GroupReply::ResetDone,
            _ => return Place::Empty,
        })
    }
}

impl EventRecord {
    fn new(event: &GroupEvent) -> Self {
        let MessageWords { kind, a, b, c, d, q: [lba, ..] } = GroupMessage::Event(*event).to_words();
        let mut record =
            Self { qid: a.into(), status: c.into(), value: d.into(), lba: lba.into(), ..Self::default() };
        [record.kind, _] = kind.wrapping_sub(kind::INVALID_DOORBELL - 1).to_le_bytes();
        match kind {
            kind::INVALID_DOORBELL => [record.completion, _] = b.to_le_bytes(),
            _ => record.cid = b.into(),
        }
        record
    }

    /// `None` where the kind is none; another event, where the record is none that [`EventRecord::new`] makes.
    fn restore(&self) -> Option<GroupEvent> {
        let (qid, value) = (self.qid.get(), self.value.get());
        Some(match self.kind {
            1 => GroupEvent::InvalidDoorbell { qid, completion: self.completion != 0, value },
            2 => GroupEvent::CommandError(CommandError {
                sqid: qid,
                cid: self.cid.get(),
                status: Status(self.status.get()),
                lba: self.lba.get(),
                nsid: value,
            }),
            3 => GroupEvent::Fatal { qid },
            _ => return None,
        })
    }
}
