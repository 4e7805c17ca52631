//! Queue groups: the I/O path.
//!
//! A [`QueueGroup`] owns I/O completion queues and every submission queue that names one of them. Its owner,
//! one thread, drives it in a loop:
//!
//! 1. [`QueueGroup::poll_command`] until it returns `None`, and carries the commands out;
//! 2. [`QueueGroup::complete`] for each that has ended, in any order;
//! 3. [`QueueGroup::poll_interrupt`] until `None`, once for the whole batch;
//! 4. [`QueueGroup::poll_message`], which goes to the controller;
//! 5. where nothing happened for a while, [`QueueGroup::arm`], and sleeps if that says so.
//!
//! Requests of the controller come in through [`QueueGroup::handle_request`]. The group moves no user data and
//! knows nothing of storage or time; what it is told of time is only compared with what it was told before.
//!
//! A command is fetched only when a slot of the command table is free *and* an entry of its completion queue
//! is reserved; so completing can't fail, and the table may be much smaller than the queues.

mod interrupt;
mod parse;
mod request;
mod sleep;
mod slots;
mod state;
mod statistics;

use heapless::{Deque, Vec};

use crate::command::IoCommand;
use crate::doorbell::{DoorbellError, Registers};
use crate::memory::DmaMemory;
use crate::message::{
    Coalescing, CommandError, DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupStatistics,
};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::queue::{Completion, CompletionQueue, Fetched, SubmissionQueue};
use crate::spec::status::Status;
use crate::tag::Tag;
use slots::{Kind, Slot, Slots};
pub use statistics::QueueStatistics;

/// Commands of one submission queue that are taken in a row before the next queue has its turn.
const ARBITRATION_BURST: u16 = 32;

/// Commands that one call of [`QueueGroup::poll_command`] may refuse before it returns, so that a queue full of
/// nonsense costs bounded time.
const REFUSALS_PER_POLL: u16 = 32;

/// Events kept for the controller; more than these between two polls are dropped and counted.
const EVENTS: usize = 8;

/// What a group is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupConfig {
    /// Maximum Data Transfer Size, in bytes.
    pub mdts_bytes: u32,
    /// The driver doesn't wait until a register write has been stored into [`Registers`] (posted messages), so
    /// that it may be found after later stores into a shadow doorbell. See [`crate::doorbell`].
    pub posted_registers: bool,
}

impl GroupConfig {
    /// 1 MiB, register writes in order.
    pub const DEFAULT: Self = Self { mdts_bytes: 1 << 20, posted_registers: false };
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Completed {
    /// The driver's completion queue has it.
    Posted,
    /// The command was known, but its queue is gone (a reset is under way): nothing was written.
    Dropped,
    /// No command has this tag any more: nothing was touched.
    Stale,
}

/// What [`QueueGroup::arm`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Armed {
    /// A doorbell register will be written at the driver's next move: the owner may sleep.
    Sleep,
    /// There is work: poll again.
    Busy,
}

/// Completion queues and the submission queues on them. `QUEUES` is the number of each, `COMMANDS` the number
/// of commands in flight over all of them, `NAMESPACES` the highest namespace identifier.
#[derive(Debug)]
pub struct QueueGroup<const QUEUES: usize = 16, const COMMANDS: usize = 256, const NAMESPACES: usize = 16> {
    config: GroupConfig,
    page_shift: u8,
    /// The volatile write cache is off.
    write_through: bool,
    submission: [Place<Submission>; QUEUES],
    completion: [Place<GroupCompletion>; QUEUES],
    /// Indices into `submission` of the queues that exist, in the order of their turns.
    active: Vec<u16, QUEUES>,
    /// Index into `active` of the queue whose turn it is.
    turn: u16,
    /// Commands that it has taken in this turn.
    burst: u16,
    /// Indices into `completion` of the queues with entries that no interrupt has told of.
    unannounced: Vec<u16, QUEUES>,
    slots: Slots<COMMANDS>,
    namespaces: [NamespaceEntry; NAMESPACES],
    /// Commands in flight that concern every namespace.
    flushes_of_all: u32,
    doorbell_buffer: Option<DoorbellBuffer>,
    coalescing: Coalescing,
    /// A reset waits for the commands in flight.
    resetting: bool,
    /// The host asked for a standstill: nothing is fetched, whatever the controller does meanwhile.
    paused: bool,
    pending: Place<Pending>,
    reply: Place<GroupReply>,
    /// The queue of a fatal event that the controller hasn't been told of; never dropped.
    fatal: Option<u16>,
    events: Deque<GroupEvent, EVENTS>,
    dropped_events: u64,
    statistics: GroupStatistics,
}

/// A request whose reply has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    DeleteSubmissionQueue {
        index: u16,
    },
    RemoveNamespace {
        index: usize,
    },
    Abort {
        tag: Tag,
        /// The host has been told.
        told: bool,
    },
}

/// A submission queue in its group.
#[derive(Clone, Copy, Debug)]
struct Submission {
    queue: SubmissionQueue,
    /// Index of its completion queue.
    completion: u16,
    /// Commands fetched and not completed.
    in_flight: u32,
    /// Fetch nothing more: it is being deleted, or its memory is gone.
    stopped: bool,
    statistics: QueueStatistics,
}

/// A completion queue in its group.
#[derive(Clone, Copy, Debug)]
struct GroupCompletion {
    queue: CompletionQueue,
    vector: Option<u16>,
    coalesce: bool,
    /// `since_ns` is set.
    is_waiting: bool,
    /// Entries that no interrupt has told of.
    unannounced: u32,
    /// When the first of them was seen by `poll_interrupt`.
    since_ns: u64,
    interrupts: u64,
}

/// A namespace and the commands in flight that name it, which may outlive it.
#[derive(Clone, Copy, Debug)]
struct NamespaceEntry {
    size_blocks: u64,
    /// 0 where there is no namespace.
    block_shift: u8,
    read_only: bool,
    in_flight: u32,
}

impl NamespaceEntry {
    const EMPTY: Self = Self { size_blocks: 0, block_shift: 0, read_only: false, in_flight: 0 };

    #[inline]
    const fn get(&self) -> Option<Namespace> {
        let Self { size_blocks, block_shift, read_only, .. } = *self;
        if block_shift == 0 { None } else { Some(Namespace { size_blocks, block_shift, read_only }) }
    }

    const fn set(&mut self, namespace: Namespace) {
        Namespace {
            size_blocks: self.size_blocks,
            block_shift: self.block_shift,
            read_only: self.read_only,
        } = namespace;
    }

    const fn remove(&mut self) {
        self.block_shift = 0;
    }
}

/// What a turn of a submission queue gave.
enum Turn {
    /// There is a command to carry out.
    Command,
    /// A command was refused and has completed.
    Refused,
    Nothing,
}

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    /// A group without queues or namespaces.
    #[must_use]
    pub const fn new(config: GroupConfig) -> Self {
        let mut group = Self::blank();
        group.configure(config);
        group
    }

    /// A group that is zero bytes throughout, so that a static of it takes no room in flash. It refuses every
    /// transfer until [`QueueGroup::configure`] has told it how large one may be.
    #[must_use]
    pub const fn blank() -> Self {
        Self {
            config: GroupConfig { mdts_bytes: 0, posted_registers: false },
            page_shift: 0,
            write_through: false,
            submission: [Place::Empty; QUEUES],
            completion: [Place::Empty; QUEUES],
            active: Vec::new(),
            turn: 0,
            burst: 0,
            unannounced: Vec::new(),
            slots: Slots::new(),
            namespaces: [NamespaceEntry::EMPTY; NAMESPACES],
            flushes_of_all: 0,
            doorbell_buffer: None,
            coalescing: Coalescing { threshold_z: 0, time_100us: 0 },
            resetting: false,
            paused: false,
            pending: Place::Empty,
            reply: Place::Empty,
            fatal: None,
            events: Deque::new(),
            dropped_events: 0,
            statistics: GroupStatistics {
                bytes_read: 0,
                bytes_written: 0,
                read_commands: 0,
                write_commands: 0,
                media_errors: 0,
                error_log_entries: 0,
            },
        }
    }

    /// Configures a group that has no queues yet.
    pub const fn configure(&mut self, config: GroupConfig) {
        self.config = config;
    }

    /// The next command to carry out, or `None` where there is none now.
    ///
    /// Commands that must be refused are completed here and not shown. One call looks at each queue at most
    /// once without success and refuses a bounded number of commands.
    #[inline]
    #[must_use = "a command that is dropped never completes"]
    pub fn poll_command(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<IoCommand> {
        if self.resetting || self.paused {
            return None;
        }
        // Filled in place: it is the largest thing on this path.
        let mut command = None;
        let mut refusals = REFUSALS_PER_POLL;
        // A queue that is passed over keeps its turn and what is left of its burst: where several wait for the
        // same scarce thing, the first in turn would otherwise get it every time.
        let mut position = self.turn;
        let mut passed_over = 0;
        while passed_over < self.active.len() && !self.slots.is_full() {
            let Some(&index) = self.active.get(usize::from(position)) else {
                if position == 0 {
                    break;
                }
                position = 0;
                continue;
            };
            match self.take_turn(index, memory, registers, &mut command) {
                Turn::Nothing => {
                    position = position.wrapping_add(1);
                    passed_over = passed_over.wrapping_add(1);
                    continue;
                }
                Turn::Command => {
                    self.spend_burst(position);
                    break;
                }
                Turn::Refused => {
                    self.spend_burst(position);
                    let Some(left) = refusals.checked_sub(1) else { break };
                    refusals = left;
                    position = self.turn;
                    passed_over = 0;
                }
            }
        }
        command
    }

    /// The queue at `position` of the active ones has had a command.
    #[inline]
    fn spend_burst(&mut self, position: u16) {
        if position != self.turn {
            self.turn = position;
            self.burst = 0;
        }
        self.burst = self.burst.wrapping_add(1);
        if self.burst >= ARBITRATION_BURST {
            self.turn = position.wrapping_add(1);
            self.burst = 0;
        }
    }

    /// One command of the submission queue at `index`, if it has one and there is room for it.
    #[inline]
    fn take_turn(
        &mut self,
        index: u16,
        memory: &impl DmaMemory,
        registers: &Registers,
        command: &mut Option<IoCommand>,
    ) -> Turn {
        let Some(submission) = get_mut(&mut self.submission, index) else {
            return Turn::Nothing;
        };
        if submission.stopped {
            return Turn::Nothing;
        }
        if submission.queue.waiting() == 0 {
            submission.statistics.doorbell_reads = submission.statistics.doorbell_reads.wrapping_add(1);
            if let Err(error) = submission.queue.poll_tail(memory, registers) {
                let qid = submission.queue.qid;
                self.doorbell_failed(qid, false, error);
                return Turn::Nothing;
            }
            if submission.queue.waiting() == 0 {
                return Turn::Nothing;
            }
            self.look_at_head(index, memory, registers);
        }
        let Some(submission) = get_mut(&mut self.submission, index) else {
            return Turn::Nothing;
        };
        let Some(completion) = get_mut(&mut self.completion, submission.completion) else {
            return Turn::Nothing;
        };
        if !completion.queue.reserve() {
            let polled = completion.queue.poll_head(memory, registers);
            let qid = completion.queue.qid;
            if !completion.queue.reserve() {
                submission.statistics.cq_full = submission.statistics.cq_full.wrapping_add(1);
                if let Err(error) = polled {
                    self.doorbell_failed(qid, true, error);
                }
                return Turn::Nothing;
            }
        }
        let mut fetched = Fetched::new();
        if submission.queue.fetch(memory, &mut fetched).is_err() {
            completion.queue.release();
            submission.stopped = true;
            let qid = submission.queue.qid;
            self.fatal = Some(qid);
            return Turn::Nothing;
        }
        let entry = &fetched.0;
        submission.in_flight = submission.in_flight.wrapping_add(1);
        let sqid = submission.queue.qid;
        let cid = entry.cid.get();
        let mut slot = Slot {
            submission: index,
            cid,
            nsid: entry.nsid.get(),
            lba: parse::slba(entry),
            kind: Kind::Refused,
            bytes: 0,
        };
        let checked = self.check(entry);
        if let Ok(checked) = &checked {
            slot.kind = checked.kind;
            slot.bytes = checked.bytes();
            if checked.kind == Kind::FlushAll {
                slot.nsid = 0;
                self.flushes_of_all = self.flushes_of_all.wrapping_add(1);
            } else {
                self.namespace_started(slot.nsid);
            }
        }
        let nsid = slot.nsid;
        let Some(tag) = self.slots.occupy(slot) else { return Turn::Nothing };
        match checked {
            Ok(checked) => {
                *command = Some(IoCommand { tag, sqid, nsid, operation: self.operation(entry, checked) });
                Turn::Command
            }
            Err(status) => {
                let _posted = self.complete(memory, tag, status);
                Turn::Refused
            }
        }
    }

    /// With a new batch of commands: looks at the head of a completion queue of which half hasn't been seen to
    /// be taken, so that EventIdx moves on before the driver reaches it and none of its moves needs a register.
    #[inline]
    fn look_at_head(&mut self, index: u16, memory: &impl DmaMemory, registers: &Registers) {
        let Some(submission) = get_mut(&mut self.submission, index) else { return };
        let Some(completion) = get_mut(&mut self.completion, submission.completion) else {
            return;
        };
        if completion.queue.is_half_unread()
            && let Err(error) = completion.queue.poll_head(memory, registers)
        {
            let qid = completion.queue.qid;
            self.doorbell_failed(qid, true, error);
        }
    }

    #[inline]
    fn namespace_started(&mut self, nsid: u32) {
        if let Some(entry) = namespace_index(nsid).and_then(|index| self.namespaces.get_mut(index)) {
            entry.in_flight = entry.in_flight.wrapping_add(1);
        }
    }

    /// Ends a command: its completion goes to the driver.
    ///
    /// The host has stopped touching the command's guest memory before it calls this. A command whose
    /// [`QueueGroup::poll_cancel`] the host has obeyed ends with [`Status::ABORT_REQUESTED`].
    #[inline]
    pub fn complete(&mut self, memory: &impl DmaMemory, tag: Tag, status: Status) -> Completed {
        let Some(slot) = self.slots.vacate(tag) else { return Completed::Stale };
        match slot.kind {
            Kind::Refused => {}
            Kind::FlushAll => self.flushes_of_all = self.flushes_of_all.saturating_sub(1),
            Kind::Read | Kind::Write | Kind::Other => {
                if let Some(entry) =
                    namespace_index(slot.nsid).and_then(|index| self.namespaces.get_mut(index))
                {
                    entry.in_flight = entry.in_flight.saturating_sub(1);
                }
            }
        }
        if self.resetting {
            self.finish_reset();
            return Completed::Dropped;
        }
        let Some(submission) = get_mut(&mut self.submission, slot.submission) else {
            return Completed::Dropped;
        };
        submission.in_flight = submission.in_flight.saturating_sub(1);
        submission.statistics.completed(&slot, status);
        self.statistics.completed(&slot, status);
        let completion_index = submission.completion;
        let sqid = submission.queue.qid;
        let sqhd = submission.queue.sqhd();
        if statistics::is_logged(status) {
            let error = CommandError { sqid, cid: slot.cid, status, lba: slot.lba, nsid: slot.nsid };
            self.push_event(GroupEvent::CommandError(error));
        }
        self.post(completion_index, memory, Completion { sqid, sqhd, cid: slot.cid, status, result: 0 });
        if !self.pending.is_empty() {
            self.settle_pending(tag, status);
        }
        Completed::Posted
    }

    #[inline]
    fn post(&mut self, index: u16, memory: &impl DmaMemory, completion: Completion) {
        let Some(target) = get_mut(&mut self.completion, index) else { return };
        if target.queue.post(memory, completion).is_err() {
            target.queue.release();
            let qid = target.queue.qid;
            self.fatal = Some(qid);
            return;
        }
        if target.vector.is_some() {
            if target.unannounced == 0 {
                // Can't be full: each queue is in it at most once.
                let _ = self.unannounced.push(index);
            }
            target.unannounced = target.unannounced.wrapping_add(1);
        }
    }

    fn has_message(&self) -> bool {
        !self.reply.is_empty() || self.fatal.is_some() || !self.events.is_empty()
    }

    /// A command that the host should try to cancel: it then completes it with [`Status::ABORT_REQUESTED`],
    /// or lets it end as it may. Each is named once.
    #[must_use]
    pub fn poll_cancel(&mut self) -> Option<Tag> {
        match self.pending.as_mut() {
            Some(Pending::Abort { tag, told }) if !*told => {
                *told = true;
                Some(*tag)
            }
            _ => None,
        }
    }

    /// What the controller is to be told, or `None`.
    #[inline]
    #[must_use = "the controller waits for replies"]
    pub fn poll_message(&mut self) -> Option<GroupMessage> {
        if let Some(reply) = self.reply.take() {
            return Some(GroupMessage::Reply(reply));
        }
        if let Some(qid) = self.fatal.take() {
            return Some(GroupMessage::Event(GroupEvent::Fatal { qid }));
        }
        self.events.pop_front().map(GroupMessage::Event)
    }

    /// Commands fetched and not completed.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.occupied()
    }

    /// Whether commands may wait to be fetched. Where [`QueueGroup::poll_command`] has just found nothing they wait
    /// for an entry of their completion queue, whose head the driver has to move, or for a slot; while no slot is
    /// free no tail is looked at, so there may be some that nobody has seen.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let mut active = self.active.iter().filter_map(|&index| get(&self.submission, index));
        self.slots.is_full() || active.any(|submission| !submission.stopped && submission.queue.waiting() > 0)
    }

    /// Stops fetching, so that [`QueueGroup::in_flight`] falls to 0; doorbells rung meanwhile are found after
    /// [`QueueGroup::resume`]. For hosts that change guest memory or storage under a running controller.
    ///
    /// A reset of the controller doesn't end it.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Undoes [`QueueGroup::pause`].
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Gives up every command in flight without completing it, and so ends a reset that waits for them.
    ///
    /// Only for a host that knows that nothing of theirs can touch guest memory any more; their tags are stale
    /// afterwards. Does nothing unless a reset waits: the driver would miss the completions.
    pub fn abandon_commands(&mut self) {
        if !self.resetting {
            return;
        }
        self.slots.clear();
        self.flushes_of_all = 0;
        for entry in &mut self.namespaces {
            entry.in_flight = 0;
        }
        self.finish_reset();
    }

    /// Whether a reset waits for commands in flight: a host that can cancel them should.
    #[must_use]
    pub fn is_resetting(&self) -> bool {
        self.resetting
    }

    /// Events that were dropped because the host didn't take them with [`QueueGroup::poll_message`]. Replies and
    /// [`GroupEvent::Fatal`] are never among them.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        self.dropped_events
    }

    /// The sums of all queues since the group came into being.
    #[must_use]
    pub fn statistics(&self) -> GroupStatistics {
        self.statistics
    }

    /// Counts what an earlier group in this one's place has done, too.
    pub fn add_statistics(&mut self, earlier: GroupStatistics) {
        let own = &mut self.statistics;
        for (own, earlier) in [
            (&mut own.bytes_read, earlier.bytes_read),
            (&mut own.bytes_written, earlier.bytes_written),
            (&mut own.read_commands, earlier.read_commands),
            (&mut own.write_commands, earlier.write_commands),
            (&mut own.media_errors, earlier.media_errors),
            (&mut own.error_log_entries, earlier.error_log_entries),
        ] {
            *own = own.wrapping_add(earlier);
        }
    }

    /// Counters by submission queue, for each that exists.
    pub fn queue_statistics(&self) -> impl Iterator<Item = QueueStatistics> + '_ {
        self.submission.iter().flatten().map(|submission| {
            let mut statistics = submission.statistics;
            if let Some(completion) = get(&self.completion, submission.completion) {
                statistics.interrupts = completion.interrupts;
            }
            statistics
        })
    }

    fn doorbell_failed(&mut self, qid: u16, completion: bool, error: DoorbellError) {
        match error {
            DoorbellError::Invalid(value) => {
                self.push_event(GroupEvent::InvalidDoorbell { qid, completion, value });
            }
            DoorbellError::Dma => {
                // The buffers' memory is gone: back to registers, and the controller hears of it.
                self.detach_doorbells();
                self.fatal = Some(qid);
            }
        }
    }

    fn push_event(&mut self, event: GroupEvent) {
        if self.events.push_back(event).is_err() {
            self.dropped_events = self.dropped_events.wrapping_add(1);
        }
    }
}

/// The index of a namespace in the table.
#[inline]
fn namespace_index(nsid: u32) -> Option<usize> {
    usize::try_from(nsid.checked_sub(1)?).ok()
}

#[inline]
fn get<T>(table: &[Place<T>], index: u16) -> Option<&T> {
    table.get(usize::from(index))?.as_ref()
}

#[inline]
fn get_mut<T>(table: &mut [Place<T>], index: u16) -> Option<&mut T> {
    table.get_mut(usize::from(index))?.as_mut()
}

/// Removes the element at `position` by moving the last one there, without a path that panics.
fn remove<const N: usize>(vec: &mut Vec<u16, N>, position: usize) {
    if let Some(last) = vec.pop()
        && let Some(place) = vec.get_mut(position)
    {
        *place = last;
    }
}
