//! A queue group at work: from the core's commands to storage operations and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use doorbell_core::command::{IoCommand, Operation, Range, Transfer};
use doorbell_core::data::Segment;
use doorbell_core::group::{Armed, Completed, GroupConfig, QueueStatistics};
use doorbell_core::memory::{Access, DmaMemory};
use doorbell_core::message::{GroupRequest, GroupStatistics};
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use super::FromGroup;
use super::flight::{Bounce, Flight, Progress, range_of, status_of};
use super::latency::Latency;
use super::thread::ToGroup;
use crate::device::{ControlMail, DeviceShared, Group, MAX_COMMANDS, Storages};
use crate::interrupt::InterruptView;
use crate::memory::{MemoryView, ResolveError};
use crate::storage::{
    IoContext, Operation as StorageOperation, StorageCommand, StorageError, StorageQueue, Submission,
};

/// Commands that a group may take in one turn of its poller.
const BATCH: usize = 32;

/// One batch in so many has its latency measured.
const LATENCY_SAMPLE: u32 = 16;

/// What a runner is made with.
#[derive(Clone, Copy, Debug)]
pub struct RunnerConfig {
    /// The group's index in its device.
    pub group: u16,
    /// Maximum Data Transfer Size, in bytes.
    pub mdts_bytes: u32,
    /// Guests don't wait until a register write has arrived.
    pub posted_registers: bool,
}

/// Counters of a group, by queue.
#[derive(Clone, Debug)]
pub struct GroupReport {
    /// The group's index in its device.
    pub group: u16,
    /// Sums for the SMART log.
    pub statistics: GroupStatistics,
    /// One for each submission queue.
    pub queues: Vec<QueueReport>,
}

/// Counters of one submission queue.
#[derive(Clone, Debug)]
pub struct QueueReport {
    /// What the core counts.
    pub statistics: QueueStatistics,
    /// Latencies of a sample of its commands, from fetch to completion.
    pub latency: Latency,
}

/// A place for one command's pieces of guest memory, kept by the thread.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pieces: Vec<libc::iovec>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { pieces: Vec::with_capacity(2048) }
    }
}

/// A queue group with everything that it needs on its poller.
#[derive(Debug)]
pub struct GroupRunner {
    config: RunnerConfig,
    shared: Arc<DeviceShared>,
    group: Box<Group>,
    storage_generation: u64,
    storages: Storages,
    view: MemoryView,
    interrupts: InterruptView,
    queues: Vec<Option<StorageQueue>>,
    /// By the slot of the tag.
    flights: Box<[Option<Flight>]>,
    /// Commands that their storage had no room for.
    backlog: Vec<Tag>,
    /// Commands of this turn that have ended.
    done: Vec<(Tag, Status)>,
    /// Latencies by submission queue identifier.
    latencies: Vec<Latency>,
    turns: u32,
    pausing: bool,
    /// The admin queue's doorbells as this group saw them last; only the first group looks.
    admin_doorbells: [u32; 2],
}

impl GroupRunner {
    /// A runner of a new group of the device `shared`.
    #[must_use]
    pub fn new(config: RunnerConfig, shared: Arc<DeviceShared>) -> Self {
        Self {
            config,
            group: Box::new(Group::new(GroupConfig {
                mdts_bytes: config.mdts_bytes,
                posted_registers: config.posted_registers,
            })),
            // The first turn takes the storages and opens their queues.
            storage_generation: 0,
            storages: Storages::default(),
            view: MemoryView::new(Arc::clone(&shared.memory)),
            interrupts: InterruptView::new(Arc::clone(&shared.interrupts)),
            shared,
            queues: Vec::new(),
            flights: (0..MAX_COMMANDS).map(|_| None).collect(),
            backlog: Vec::with_capacity(MAX_COMMANDS),
            done: Vec::with_capacity(MAX_COMMANDS),
            latencies: Vec::new(),
            turns: 0,
            pausing: false,
            admin_doorbells: [0; 2],
        }
    }

    /// The device whose group this is.
    #[must_use]
    pub fn device(&self) -> &Arc<DeviceShared> {
        &self.shared
    }

    /// The group's index in its device.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.config.group
    }

    /// Commands fetched and not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.group.in_flight()
    }

    /// Takes a batch of commands and starts them. Returns how many.
    #[inline]
    pub(super) fn fetch(&mut self, lane: u16, context: &mut IoContext, scratch: &mut Scratch) -> usize {
        if self.shared.storage_generation() != self.storage_generation {
            self.refresh(context);
        }
        self.view.update();
        if self.view.has_retired() && !self.release_retired() {
            return 0;
        }
        if !self.backlog.is_empty() {
            self.retry_backlog(lane, context, scratch);
        }
        let shared = Arc::clone(&self.shared);
        let registers = shared.doorbells.registers();
        let mut count = 0;
        let mut started_ns = 0;
        while count < BATCH {
            let Some(command) = self.group.poll_command(&self.view, registers) else { break };
            if count == 0 {
                self.turns = self.turns.wrapping_add(1);
                if self.turns.is_multiple_of(LATENCY_SAMPLE) {
                    started_ns = super::idle::now_ns();
                }
            }
            count += 1;
            self.start(command, started_ns, lane, context, scratch);
        }
        self.finish_done();
        count
    }

    /// Posts the completions of everything that has ended.
    #[inline]
    fn finish_done(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let mut now_ns = 0;
        for (tag, status) in self.done.drain(..) {
            if let Some(flight) = self.flights[usize::from(tag.slot)].take()
                && flight.started_ns != 0
            {
                if now_ns == 0 {
                    now_ns = super::idle::now_ns();
                }
                let sqid = usize::from(flight.command.sqid);
                if self.latencies.len() <= sqid {
                    self.latencies.resize(sqid + 1, Latency::new());
                }
                self.latencies[sqid].record(now_ns.saturating_sub(flight.started_ns), 1);
            }
            match self.group.complete(&self.view, tag, status) {
                Completed::Posted | Completed::Dropped | Completed::Stale => {}
            }
        }
    }

    /// After the completions of a turn: interrupts, messages, cancellations. Returns whether there was
    /// anything.
    #[inline]
    pub(super) fn finish_turn(&mut self, lane: u16, context: &mut IoContext) -> bool {
        self.finish_done();
        let mut worked = false;
        if self.group.wants_interrupt() {
            let now_ns = super::idle::now_ns();
            while let Some(vector) = self.group.poll_interrupt(now_ns) {
                self.interrupts.raise(vector);
                worked = true;
            }
        }
        if self.shared.is_pin_based() {
            self.update_level();
        }
        while let Some(tag) = self.group.poll_cancel() {
            self.cancel(tag, lane, context);
        }
        while let Some(message) = self.group.poll_message() {
            self.tell(FromGroup::Message(message));
            worked = true;
        }
        if self.pausing && self.group.in_flight() == 0 {
            self.pausing = false;
            self.tell(FromGroup::Paused);
            worked = true;
        }
        worked
    }

    /// Works out whether this group wants INTx asserted.
    #[cold]
    fn update_level(&mut self) {
        let shared = Arc::clone(&self.shared);
        let asserted =
            shared.is_pin_based() && self.group.is_level_asserted(&self.view, shared.doorbells.registers());
        shared.set_level(usize::from(self.config.group), asserted);
    }

    fn tell(&self, message: FromGroup) {
        self.shared.control.send(ControlMail::Group { group: self.config.group, message });
    }

    /// A message of the control thread.
    pub(super) fn handle(&mut self, message: ToGroup, lane: u16, context: &mut IoContext) {
        if self.shared.storage_generation() != self.storage_generation {
            self.refresh(context);
        }
        match message {
            ToGroup::Request(request) => self.handle_request(request, lane, context),
            ToGroup::Pause => {
                self.group.pause();
                self.pausing = true;
            }
            ToGroup::Resume => {
                self.pausing = false;
                self.group.resume();
            }
            ToGroup::Look => {}
            ToGroup::CancelAll => self.cancel_all(lane, context),
            ToGroup::Report => self.tell(FromGroup::Report(Box::new(self.report()))),
            ToGroup::CheckLevel => {
                self.update_level();
                self.tell(FromGroup::LevelChecked);
            }
            ToGroup::Detach => {}
        }
    }

    fn handle_request(&mut self, request: GroupRequest, lane: u16, context: &mut IoContext) {
        let shared = Arc::clone(&self.shared);
        if let GroupRequest::CreateSubmissionQueue { qid, .. } = request
            && let Some(latency) = self.latencies.get_mut(usize::from(qid))
        {
            *latency = Latency::new();
        }
        self.group.handle_request(&self.view, shared.doorbells.registers(), request);
        if self.group.is_resetting() {
            self.cancel_all(lane, context);
        }
    }

    fn report(&self) -> GroupReport {
        let queues = self.group.queue_statistics().map(|statistics| QueueReport {
            latency: self.latencies.get(usize::from(statistics.sqid)).cloned().unwrap_or_default(),
            statistics,
        });
        GroupReport {
            group: self.config.group,
            statistics: self.group.statistics(),
            queues: queues.collect(),
        }
    }

    /// Asks the storages to give up everything in flight; what they had no room for ends at once.
    fn cancel_all(&mut self, lane: u16, context: &mut IoContext) {
        for slot in 0..self.flights.len() {
            if let Some(flight) = &self.flights[slot] {
                let tag = flight.command.tag;
                self.cancel(tag, lane, context);
            }
        }
        self.finish_done();
    }

    fn cancel(&mut self, tag: Tag, lane: u16, context: &mut IoContext) {
        if let Some(position) = self.backlog.iter().position(|&other| other == tag) {
            self.backlog.swap_remove(position);
            self.done.push((tag, Status::ABORT_REQUESTED));
        } else {
            context.cancel(token(lane, tag));
        }
    }

    /// Takes the present storages: opens queues of those that are new, drops those of others.
    #[cold]
    fn refresh(&mut self, context: &mut IoContext) {
        self.storage_generation = self.shared.storage_generation();
        let next = self.shared.storages();
        self.queues.resize_with(next.len(), || None);
        for (index, storage) in next.iter().enumerate() {
            let known = self.storages.get(index).and_then(Option::as_ref);
            let same = matches!((known, storage), (Some(known), Some(new)) if Arc::ptr_eq(known, new));
            if same && self.queues[index].is_some() {
                continue;
            }
            self.queues[index] = storage.as_ref().and_then(|storage| match storage.open_queue(context) {
                Ok(queue) => Some(queue),
                Err(error) => {
                    tracing::error!(nsid = index + 1, %error, "namespace can't be used on this poller");
                    None
                }
            });
        }
        self.storages = next;
    }

    /// Lets go of mappings that went away, which somebody waits for: nothing is fetched until the commands in
    /// flight, which may use them, have ended. Doorbells rung meanwhile are found afterwards.
    #[cold]
    fn release_retired(&mut self) -> bool {
        if self.group.in_flight() > 0 {
            return false;
        }
        self.view.release_retired();
        true
    }

    #[cold]
    fn retry_backlog(&mut self, lane: u16, context: &mut IoContext, scratch: &mut Scratch) {
        let waiting = self.backlog.len();
        for _ in 0..waiting {
            let tag = self.backlog.remove(0);
            self.advance(tag, lane, context, scratch);
        }
    }

    #[inline]
    fn start(
        &mut self,
        command: IoCommand,
        started_ns: u64,
        lane: u16,
        context: &mut IoContext,
        scratch: &mut Scratch,
    ) {
        let progress = match command.operation {
            Operation::FlushAll => Progress::FlushAll { next: 0 },
            Operation::Deallocate(ranges) => Progress::Deallocate(ranges),
            _ => Progress::Single,
        };
        let tag = command.tag;
        self.flights[usize::from(tag.slot)] = Some(Flight { command, progress, started_ns, bounce: None });
        self.advance(tag, lane, context, scratch);
    }

    /// Starts the next storage operation of a command, or ends it.
    #[inline]
    fn advance(&mut self, tag: Tag, lane: u16, context: &mut IoContext, scratch: &mut Scratch) {
        loop {
            let Some(flight) = &mut self.flights[usize::from(tag.slot)] else { return };
            let index = (flight.command.nsid as usize).wrapping_sub(1);
            let submission = match &mut flight.progress {
                Progress::Single => {
                    let Some(Some(queue)) = self.queues.get_mut(index) else {
                        self.done.push((tag, Status::NAMESPACE_NOT_READY));
                        return;
                    };
                    submit_single(flight, queue, &self.view, token(lane, tag), context, scratch)
                }
                Progress::FlushAll { next } => match self.queues.get_mut(*next) {
                    None => {
                        self.done.push((tag, Status::SUCCESS));
                        return;
                    }
                    Some(None) => {
                        *next += 1;
                        continue;
                    }
                    Some(Some(queue)) => {
                        let command =
                            StorageCommand::without_data(token(lane, tag), StorageOperation::Flush, 0, 0);
                        let submission = queue.submit(context, &command);
                        if submission != Submission::Busy {
                            *next += 1;
                        }
                        Ok(submission)
                    }
                },
                Progress::Deallocate(ranges) => {
                    let before = *ranges;
                    match (ranges.next_range(&self.view), self.queues.get_mut(index)) {
                        (None, _) => {
                            self.done.push((tag, Status::SUCCESS));
                            return;
                        }
                        (Some(Err(status)), _) => Err(status),
                        (Some(Ok(range)), Some(Some(queue))) => {
                            let Range { offset_bytes, len_bytes } = range;
                            let operation = StorageOperation::Deallocate;
                            let command = StorageCommand::without_data(
                                token(lane, tag),
                                operation,
                                offset_bytes,
                                len_bytes,
                            );
                            let submission = queue.submit(context, &command);
                            if submission == Submission::Busy {
                                *ranges = before;
                            }
                            Ok(submission)
                        }
                        (Some(Ok(_)), _) => Err(Status::NAMESPACE_NOT_READY),
                    }
                }
            };
            match submission {
                Ok(Submission::Queued) => return,
                Ok(Submission::Busy) => {
                    self.backlog.push(tag);
                    return;
                }
                Ok(Submission::Complete(result)) => {
                    if !self.storage_ended(tag, result) {
                        return;
                    }
                }
                Err(status) => {
                    self.done.push((tag, status));
                    return;
                }
            }
        }
    }

    /// A storage operation that was queued has ended.
    pub(super) fn reaped(
        &mut self,
        tag: Tag,
        result: Result<(), StorageError>,
        lane: u16,
        context: &mut IoContext,
        scratch: &mut Scratch,
    ) {
        let known = self.flights.get(usize::from(tag.slot)).and_then(Option::as_ref);
        if known.is_some_and(|flight| flight.command.tag == tag) && self.storage_ended(tag, result) {
            self.advance(tag, lane, context, scratch);
        }
    }

    /// Takes a storage's result; says whether the command goes on.
    #[inline]
    fn storage_ended(&mut self, tag: Tag, result: Result<(), StorageError>) -> bool {
        let Some(flight) = &mut self.flights[usize::from(tag.slot)] else { return false };
        let status = match result {
            Err(error) => {
                if matches!(error, StorageError::Io(_) | StorageError::NoSpace) {
                    tracing::warn!(nsid = flight.command.nsid, %error, "storage error");
                }
                status_of(error, &flight.command.operation)
            }
            Ok(()) if !matches!(flight.progress, Progress::Single) && !self.group.is_resetting() => {
                return true;
            }
            Ok(()) => match flight.bounce.take() {
                Some(bounce) if matches!(flight.command.operation, Operation::Read(_)) => {
                    bounce.deliver(&self.view)
                }
                _ => Status::SUCCESS,
            },
        };
        self.done.push((tag, status));
        false
    }

    /// Whether the guest may ring a doorbell without a sound, so that its poller may nap, but not sleep.
    pub(super) fn must_be_watched(&self) -> bool {
        self.shared.must_be_watched()
    }

    /// In the place of the control thread, which sleeps: has the guest rung a doorbell of the admin queue?
    #[inline]
    pub(super) fn watch_admin_queue(&mut self) {
        if self.config.group != 0 || !self.shared.must_be_watched() {
            return;
        }
        let [tail, head, ..] = self.shared.doorbells.registers() else { return };
        let now = [tail.load(Ordering::Relaxed), head.load(Ordering::Relaxed)];
        if now != self.admin_doorbells {
            self.admin_doorbells = now;
            self.shared.control.send(ControlMail::AdminDoorbell);
        }
    }

    /// Before the poller sleeps: whether the group lets it.
    pub(super) fn arm(&mut self) -> bool {
        if self.shared.storage_generation() != self.storage_generation
            || !self.backlog.is_empty()
            || self.view.update()
        {
            return false;
        }
        self.interrupts.update();
        let shared = Arc::clone(&self.shared);
        self.group.arm(&self.view, shared.doorbells.registers(), shared.is_pin_based()) == Armed::Sleep
    }

    /// When an interrupt that coalescing holds back is due.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.group.interrupt_deadline_ns()
    }

    /// Drops what belongs to a device that is going away: nothing may be in flight.
    pub(super) fn detached(&self) {
        self.tell(FromGroup::Detached);
    }
}

/// The token of a command: the runner's lane in its poller above the tag's 48 bits.
fn token(lane: u16, tag: Tag) -> u64 {
    u64::from(lane) << 48 | tag.to_u64()
}

/// The inverse of [`token`].
pub(super) fn split_token(token: u64) -> (u16, Tag) {
    ((token >> 48) as u16, Tag::from_u64(token & 0xffff_ffff_ffff))
}

/// Submits a command that is one storage operation.
#[inline]
fn submit_single(
    flight: &mut Flight,
    queue: &mut StorageQueue,
    view: &MemoryView,
    token: u64,
    context: &mut IoContext,
    scratch: &mut Scratch,
) -> Result<Submission, Status> {
    let (operation, transfer, access) = match flight.command.operation {
        Operation::Read(transfer) => (StorageOperation::Read, transfer, Access::Write),
        Operation::Write { transfer, fua } => (StorageOperation::Write { fua }, transfer, Access::Read),
        Operation::Compare(transfer) => (StorageOperation::Compare, transfer, Access::Read),
        operation => {
            let Range { offset_bytes, len_bytes } = range_of(&operation);
            let operation = match operation {
                Operation::WriteZeroes { deallocate, fua, .. } => {
                    StorageOperation::WriteZeroes { deallocate, fua }
                }
                Operation::Verify(_) => StorageOperation::Verify,
                _ => StorageOperation::Flush,
            };
            let command = StorageCommand::without_data(token, operation, offset_bytes, len_bytes);
            return Ok(queue.submit(context, &command));
        }
    };
    if flight.bounce.is_none() {
        match resolve(transfer, view, access, &mut scratch.pieces) {
            Ok(()) => {}
            Err(NotResolved::Refused(status)) => return Err(status),
            Err(NotResolved::MessageOnly) => flight.bounce = Some(Bounce::new(transfer, view, access)?),
        }
    }
    if let Some(bounce) = &mut flight.bounce {
        scratch.pieces.clear();
        let base = bounce.buffer.as_mut_ptr().cast();
        scratch.pieces.push(libc::iovec { iov_base: base, iov_len: bounce.buffer.len() });
    }
    #[expect(unsafe_code, reason = "the one place where guest memory is lent to a storage")]
    // SAFETY: every piece lies in a mapping of `view`'s map, which this runner keeps until it has paused (nothing
    // in flight), or in the flight's own bounce buffer, which lives until the command has ended.
    let command = unsafe {
        StorageCommand::new(
            token,
            operation,
            transfer.offset_bytes,
            u64::from(transfer.len_bytes),
            &scratch.pieces,
        )
    };
    Ok(queue.submit(context, &command))
}

/// Why a command's guest memory has no pieces in this process.
enum NotResolved {
    /// The command ends with that status.
    Refused(Status),
    /// It has to be copied by messages.
    MessageOnly,
}

impl From<ResolveError> for NotResolved {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Dma(error) => Self::Refused(error.into()),
            ResolveError::MessageOnly => Self::MessageOnly,
        }
    }
}

/// Walks a command's data pointer and finds its pieces in this process.
#[inline]
fn resolve(
    mut transfer: Transfer,
    view: &MemoryView,
    access: Access,
    pieces: &mut Vec<libc::iovec>,
) -> Result<(), NotResolved> {
    pieces.clear();
    while let Some(segment) = transfer.segments.next_segment(view) {
        let Segment { address, len_bytes, bit_bucket } = segment.map_err(NotResolved::Refused)?;
        if bit_bucket {
            let iov_base = std::ptr::null_mut();
            pieces.push(libc::iovec { iov_base, iov_len: len_bytes as usize });
        } else {
            view.resolve(address, len_bytes as usize, access, &mut |base, len| {
                pieces.push(libc::iovec { iov_base: base.cast(), iov_len: len });
            })?;
        }
    }
    Ok(())
}

impl Bounce {
    /// A buffer for `transfer`; for a write with the guest's data in it.
    #[cold]
    fn new(mut transfer: Transfer, view: &MemoryView, access: Access) -> Result<Self, Status> {
        let mut segments = Vec::new();
        while let Some(segment) = transfer.segments.next_segment(view) {
            segments.push(segment?);
        }
        let mut buffer = vec![0; transfer.len_bytes as usize].into_boxed_slice();
        if access == Access::Read {
            let mut rest = &mut buffer[..];
            for segment in &segments {
                let (piece, later) = rest.split_at_mut(segment.len_bytes as usize);
                view.read(segment.address, piece)?;
                rest = later;
            }
        }
        Ok(Self { buffer, segments })
    }

    /// Writes what was read to guest memory.
    fn deliver(&self, view: &MemoryView) -> Status {
        let mut rest = &self.buffer[..];
        for segment in &self.segments {
            let (piece, later) = rest.split_at(segment.len_bytes as usize);
            if !segment.bit_bucket && view.write(segment.address, piece).is_err() {
                return Status::DATA_TRANSFER_ERROR;
            }
            rest = later;
        }
        Status::SUCCESS
    }
}
