//! A group's state, and what the host knows by it.

use doorbell_core::engine::MoveError;
use doorbell_core::group::GroupConfig;
use doorbell_core::message::{DoorbellBuffer, GroupRequest, GroupStatistics};
use doorbell_core::namespace::Namespace;
use doorbell_core::state::group::{
    CommandRecord, CompletionRecord, EventRecord, NamespaceRecord, QueueGroupRecord, SubmissionRecord,
};
use doorbell_core::state::{HEADER_BYTES, StateError};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::check::slot;
use super::{Fetched, Outstanding, Queues, SandboxedGroup};
use crate::upgrade::{CheckedGroup, FAILED, Part};

/// Records of a state that has been checked.
struct Records<'a> {
    fixed: &'a QueueGroupRecord,
    submission: &'a [SubmissionRecord],
    completion: &'a [CompletionRecord],
    namespaces: &'a [NamespaceRecord],
    generations: &'a [U32],
    commands: &'a [CommandRecord],
}

impl<'a> Records<'a> {
    fn read(state: &'a [u8]) -> Option<Self> {
        let rest = &mut state.get(HEADER_BYTES..)?;
        let (fixed, after) = QueueGroupRecord::ref_from_prefix(rest).ok()?;
        *rest = after;
        let submission = take(rest, fixed.submission_queues.get())?;
        let completion = take(rest, fixed.completion_queues.get())?;
        let namespaces = take(rest, fixed.namespaces.get())?;
        let _: &[EventRecord] = take(rest, fixed.events.get())?;
        let generations = take(rest, fixed.used_slots.get())?;
        let _: &[U16] = take(rest, fixed.used_slots.get().checked_sub(fixed.commands.get())?)?;
        let commands = take(rest, fixed.commands.get())?;
        Some(Self { fixed, submission, completion, namespaces, generations, commands })
    }

    fn queues(&self) -> Queues {
        let completion = self.completion.iter().map(|record| {
            let vector = (record.has_vector != 0).then_some(record.vector.get());
            (record.qid.get(), vector, record.ring.base.get(), u64::from(record.ring.size.get()) * 16)
        });
        Queues {
            submission: self.submission.iter().map(|record| record.qid.get()).collect(),
            completion: completion.collect(),
        }
    }

    fn shapes(&self) -> impl Iterator<Item = (usize, Namespace)> {
        self.namespaces.iter().map(|record| {
            let shape = Namespace {
                size_blocks: record.size_blocks.get(),
                block_shift: record.block_shift,
                read_only: record.read_only != 0,
            };
            (usize::from(record.index.get()), shape)
        })
    }

    /// Commands in flight by slot.
    fn outstanding(&self) -> impl Iterator<Item = (usize, Outstanding)> {
        self.commands.iter().filter_map(|record| {
            let slot = usize::from(record.slot.get());
            let generation = self.generations.get(slot)?.get();
            Some((slot, Outstanding { generation, nsid: record.nsid.get() }))
        })
    }

    /// The request that hasn't been answered.
    fn request(&self) -> Option<GroupRequest> {
        if self.fixed.resetting != 0 {
            return Some(GroupRequest::Reset);
        }
        let index = self.fixed.pending_index.get();
        match self.fixed.pending {
            1 => {
                let queue = self.submission.iter().find(|record| record.place.get() == index)?;
                Some(GroupRequest::DeleteSubmissionQueue { qid: queue.qid.get() })
            }
            2 => Some(GroupRequest::RemoveNamespace { nsid: u32::from(index) + 1 }),
            3 | 4 => {
                let command = self.commands.iter().find(|record| record.slot.get() == index)?;
                let mut queues = self.submission.iter();
                let queue = queues.find(|record| record.place.get() == command.submission.get())?;
                Some(GroupRequest::Abort { sqid: queue.qid.get(), cid: command.cid.get() })
            }
            _ => None,
        }
    }
}

fn take<'a, T>(rest: &mut &'a [u8], count: u16) -> Option<&'a [T]>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let (records, after) = <[T]>::ref_from_prefix_with_elems(rest, count.into()).ok()?;
    *rest = after;
    Some(records)
}

const UNREADABLE: MoveError = MoveError::State(StateError::WrongLength);

impl SandboxedGroup {
    fn checked(&self) -> Box<CheckedGroup> {
        let config = &self.shared.config;
        Box::new(CheckedGroup::new(GroupConfig {
            mdts_bytes: config.controller.mdts_bytes,
            posted_registers: config.posted_registers,
        }))
    }

    pub(super) fn save_checked(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        if !self.is_alive() {
            return Err(FAILED);
        }
        for (held, what) in [
            (!self.fetched.places.is_empty(), "commands"),
            (!self.ended.is_empty(), "completions"),
            (!self.messages.is_empty(), "messages"),
            (!self.interrupts.is_empty(), "interrupts"),
            (!self.cancels.is_empty(), "cancellations"),
        ] {
            if held {
                return Err(MoveError::Undrained(what));
            }
        }
        let mut checked = self.checked();
        let Some(instance) = &mut self.instance else { return Err(FAILED) };
        let namespaces = &self.namespaces;
        let known = |nsid: u32, shape: &Namespace| {
            namespaces.get((nsid as usize).wrapping_sub(1)).copied().flatten() == Some(*shape)
        };
        checked.load(instance.save_state(Part::Group)?, known)?;
        // What instances before this one have done.
        checked.add_statistics(self.statistics_base);
        let len = checked.save(buffer)?;
        let records = Records::read(buffer.get(..len).unwrap_or_default()).ok_or(UNREADABLE)?;
        if records.fixed.reply.kind != 0 {
            return Err(MoveError::Undrained("an answer"));
        }
        self.agrees(&records).map_err(MoveError::Engine)?;
        Ok(len)
    }

    /// Whether a state says what the host knows by itself: what it indexes tables by, waits for or is waited for.
    fn agrees(&self, records: &Records<'_>) -> Result<(), &'static str> {
        let Queues { submission, completion } = records.queues();
        let same_queues = submission.len() == self.queues.submission.len()
            && submission.iter().all(|queue| self.queues.submission.contains(queue))
            && completion.len() == self.queues.completion.len()
            && completion.iter().all(|queue| self.queues.completion.contains(queue));
        if !same_queues {
            return Err("the running module saves other queues than it has");
        }
        if records.namespaces.len() != self.namespaces.iter().flatten().count() {
            return Err("the running module saves other namespaces than it has");
        }
        let mut outstanding = records.outstanding();
        let same_commands = records.commands.len() == self.outstanding_count
            && outstanding
                .all(|(slot, command)| self.outstanding.get(slot).copied().flatten() == Some(command));
        if !same_commands {
            return Err("the running module saves other commands than are in flight");
        }
        if records.request() != self.request || (records.fixed.resetting != 0) != self.resetting {
            return Err("the running module saves another request than it has to answer");
        }
        Ok(())
    }

    pub(super) fn load_checked(
        &mut self,
        state: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), MoveError> {
        if !self.is_alive() {
            return Err(FAILED);
        }
        let mut checked = self.checked();
        checked.load(state, has_storage)?;
        let mut bytes = vec![0; CheckedGroup::STATE_BYTES];
        let len = checked.save(&mut bytes)?;
        bytes.truncate(len);
        let records = Records::read(&bytes).ok_or(UNREADABLE)?;
        if records.fixed.reply.kind != 0 {
            return Err(MoveError::Undrained("an answer"));
        }
        let Some(instance) = &mut self.instance else { return Err(FAILED) };
        let slots = instance.layout.command_slots as usize;
        instance.load_state(Part::Group, &bytes)?;
        checked.load(instance.save_state(Part::Group)?, |_, _| true)?;
        let mut again = vec![0; CheckedGroup::STATE_BYTES];
        let len = checked.save(&mut again)?;
        if again.get(..len) != Some(&bytes[..]) {
            return Err(MoveError::Engine("the new module doesn't save what it has loaded"));
        }
        let too_small = |what| move || MoveError::State(StateError::TooSmall(what));
        self.namespaces.fill(None);
        for (index, shape) in records.shapes() {
            *self.namespaces.get_mut(index).ok_or_else(too_small("namespaces"))? = Some(shape);
        }
        self.outstanding.fill(None);
        for (index, command) in records.outstanding() {
            let place = slot(&mut self.outstanding, index).filter(|_| index < slots);
            *place.ok_or_else(too_small("commands"))? = Some(command);
        }
        self.outstanding_count = records.commands.len();
        self.queues = records.queues();
        self.request = records.request();
        let fixed = records.fixed;
        self.resetting = fixed.resetting != 0;
        self.doorbell_buffer = (fixed.has_doorbell_buffer != 0).then(|| DoorbellBuffer {
            shadow: fixed.doorbell_buffer.shadow.get(),
            event_idx: fixed.doorbell_buffer.event_idx.get(),
        });
        self.coalescing = fixed.time_100us != 0;
        self.wants_interrupt = records.completion.iter().any(|record| record.unannounced.get() > 0);
        self.deadline_ns = None;
        self.dropped_events = fixed.dropped_events.get();
        self.statistics_base = GroupStatistics::default();
        self.statistics = checked.statistics();
        self.shapes += 1;
        self.fetched = Fetched::default();
        self.ended.clear();
        self.messages.clear();
        self.interrupts.clear();
        self.cancels.clear();
        self.watch();
        // The doorbells of before are the module's to look at.
        self.more = true;
        Ok(())
    }
}
