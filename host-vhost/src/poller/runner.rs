//! A queue group at work: from the core's commands to storage operations and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use doorbell_core::engine::GroupEngine;
use doorbell_core::group::{Armed, Completed, QueueStatistics};
use doorbell_core::message::{GroupEvent, GroupMessage, GroupReply, GroupRequest, GroupStatistics};
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use super::FromGroup;
use super::flight::{Ended, Flight};
use super::idle::now_ns;
use super::latency::Latency;
use super::thread::ToGroup;
use super::work::{Scratch, Step, Work};
use crate::device::{ControlMail, DeviceShared, MAX_COMMANDS, Storages};
use crate::engine::HostedGroup;
use crate::interrupt::InterruptView;
use crate::memory::MemoryView;
use crate::storage::{IoContext, StorageError, StorageQueue};

/// Commands that a group may take in one turn of its poller.
const BATCH: usize = 32;

/// Bytes that a batch moves before it posts the completions it has.
const POST_BYTES: u64 = 16 << 10;

/// Bytes that a command moves from which on its completion isn't kept for a call with others.
const LARGE_BYTES: u64 = 64 << 10;

/// One batch in so many has its latency measured.
const LATENCY_SAMPLE: u32 = 16;

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

/// A queue group with everything that it needs on its poller.
#[derive(Debug)]
pub struct GroupRunner {
    /// The group's index in its device.
    index: u16,
    pub(super) shared: Arc<DeviceShared>,
    pub(super) group: HostedGroup,
    storage_generation: u64,
    pub(super) storages: Storages,
    pub(super) view: MemoryView,
    interrupts: InterruptView,
    pub(super) queues: Vec<Option<StorageQueue>>,
    /// By the slot of the tag.
    pub(super) flights: Box<[Option<Flight>]>,
    /// Commands that their storage had no room for.
    pub(super) backlog: Vec<Tag>,
    /// Commands of this turn that have ended.
    pub(super) done: Vec<Ended>,
    /// Latencies by submission queue identifier.
    latencies: Vec<Latency>,
    turns: u32,
    /// A pause that waits for commands in flight.
    pub(super) pausing: Option<u64>,
    /// The group asserts the pin.
    asserted: bool,
    /// The admin queue's doorbells as this group saw them last; only the first group looks.
    admin_doorbells: [u32; 2],
}

impl GroupRunner {
    /// A runner of the new group `group`, the device's at `index`.
    #[must_use]
    pub fn new(index: u16, group: HostedGroup, shared: Arc<DeviceShared>) -> Self {
        Self {
            index,
            group,
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
            pausing: None,
            asserted: false,
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
        self.index
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
        let Self { shared, group, view, queues, flights, backlog, done, .. } = self;
        let registers = shared.doorbells.registers();
        let Some(mut command) = group.poll_command(view, registers) else { return 0 };
        self.turns = self.turns.wrapping_add(1);
        let started_ns = if self.turns.is_multiple_of(LATENCY_SAMPLE) { now_ns() } else { 0 };
        let mut work = Work { queues, view, context, scratch };
        let mut count = 0;
        let mut moved_bytes = 0;
        loop {
            count += 1;
            // One command ahead, so that its data is on the way while this one's is copied.
            let next = if count < BATCH { group.poll_command(view, registers) } else { None };
            if let Some(next) = &next {
                work.prefetch(next);
            }
            let tag = command.tag;
            let is_large = command.operation.len_bytes() >= LARGE_BYTES;
            match work.start(&command, token(lane, tag)) {
                Some(Step::Done(status)) => {
                    done.push(Ended { tag, status, sqid: command.sqid, started_ns });
                    moved_bytes += command.operation.len_bytes();
                }
                unfinished => {
                    let mut flight = Flight::new(command, started_ns);
                    let step = unfinished.unwrap_or_else(|| work.advance(&mut flight, token(lane, tag)));
                    match step {
                        Step::Done(status) => done.push(flight.ended(status)),
                        Step::Queued => flights[usize::from(tag.slot)] = Some(flight),
                        Step::Busy => {
                            flights[usize::from(tag.slot)] = Some(flight);
                            backlog.push(tag);
                        }
                    }
                }
            }
            if moved_bytes >= POST_BYTES {
                // The driver may use these while the rest of the batch is copied.
                moved_bytes = 0;
                finish_done(group, view, done, &mut self.latencies);
                if is_large {
                    group.flush(view, registers);
                }
            }
            match next {
                Some(next) => command = next,
                None => break,
            }
        }
        finish_done(group, view, done, &mut self.latencies);
        count
    }

    /// After the completions of a turn: interrupts, messages, cancellations. Returns whether there was
    /// anything.
    #[inline]
    pub(super) fn finish_turn(&mut self, lane: u16, context: &mut IoContext) -> bool {
        finish_done(&mut self.group, &self.view, &mut self.done, &mut self.latencies);
        let mut worked = false;
        // The level rises where an entry is posted. Once it has, it falls when the driver has moved a head.
        let posted = self.group.wants_interrupt();
        if posted {
            let now_ns = now_ns();
            while let Some(vector) = self.group.poll_interrupt(now_ns) {
                self.interrupts.raise(vector);
                worked = true;
            }
        }
        if (posted || self.asserted) && self.shared.is_pin_based() {
            self.update_level();
        }
        while let Some(tag) = self.group.poll_cancel() {
            self.cancel(tag, lane, context);
        }
        while let Some(message) = self.group.poll_message() {
            if matches!(message, GroupMessage::Event(event) if !matches!(event, GroupEvent::Fatal { .. }))
                && self.shared.control.is_crowded()
            {
                // A guest makes errors faster than the control thread notes them: some are left out.
                continue;
            }
            if message == GroupMessage::Reply(GroupReply::ResetDone) {
                // Whoever waits for the reset finds the counters of everything before it.
                let statistics = self.group.statistics();
                self.tell(FromGroup::Statistics(statistics));
            }
            self.tell(FromGroup::Message(message));
            worked = true;
        }
        if let Some(ticket) = self.pausing.take_if(|_| self.group.in_flight() == 0) {
            self.tell(FromGroup::Paused { ticket });
            worked = true;
        }
        worked
    }

    /// Works out whether this group wants INTx asserted.
    #[cold]
    fn update_level(&mut self) {
        let Self { shared, group, view, index, asserted, .. } = self;
        *asserted = shared.is_pin_based() && group.is_level_asserted(view, shared.doorbells.registers());
        shared.set_level(usize::from(*index), *asserted);
    }

    pub(super) fn tell(&self, message: FromGroup) {
        self.shared.control.send(ControlMail::Group { group: self.index, message });
    }

    /// A message of the control thread.
    pub(super) fn handle(&mut self, message: ToGroup, lane: u16, context: &mut IoContext) {
        if self.shared.storage_generation() != self.storage_generation {
            self.refresh(context);
        }
        match message {
            ToGroup::Request(request) => self.handle_request(request, lane, context),
            ToGroup::Pause { ticket } => {
                self.group.pause();
                self.pausing = Some(ticket);
            }
            ToGroup::Resume => {
                self.pausing = None;
                self.group.resume();
            }
            // Done above.
            ToGroup::Refresh { ticket } => self.tell(FromGroup::Refreshed { ticket }),
            ToGroup::Look => {
                // The controller may have been reset and enabled since the last look; its registers began at 0.
                self.admin_doorbells = [0; 2];
                self.update_level();
            }
            ToGroup::CancelAll => self.cancel_all(lane, context),
            ToGroup::Statistics => {
                let statistics = self.group.statistics();
                self.tell(FromGroup::Statistics(statistics));
            }
            ToGroup::Report => {
                let report = Box::new(self.report());
                self.tell(FromGroup::Report(report));
            }
            ToGroup::CheckLevel => {
                self.update_level();
                self.tell(FromGroup::LevelChecked);
            }
            // The control thread has reset the group before, unless it came to a bad end.
            ToGroup::Detach => self.handle_request(GroupRequest::Reset, lane, context),
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

    fn report(&mut self) -> GroupReport {
        let mut queues = Vec::new();
        let Self { group, latencies, .. } = self;
        group.visit_queue_statistics(|statistics| {
            let latency = latencies.get(usize::from(statistics.sqid)).cloned().unwrap_or_default();
            queues.push(QueueReport { statistics, latency });
        });
        GroupReport { group: self.index, statistics: group.statistics(), queues }
    }

    /// Asks the storages to give up everything in flight; what they had no room for ends at once.
    fn cancel_all(&mut self, lane: u16, context: &mut IoContext) {
        for slot in 0..self.flights.len() {
            if let Some(flight) = &self.flights[slot] {
                let tag = flight.command.tag;
                self.cancel(tag, lane, context);
            }
        }
        finish_done(&mut self.group, &self.view, &mut self.done, &mut self.latencies);
    }

    fn cancel(&mut self, tag: Tag, lane: u16, context: &mut IoContext) {
        if let Some(position) = self.backlog.iter().position(|&other| other == tag) {
            self.backlog.swap_remove(position);
            if let Some(flight) = self.flights[usize::from(tag.slot)].take() {
                self.done.push(flight.ended(Status::ABORT_REQUESTED));
            }
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
        // The ring closes files whose queues are gone when it is next used, which may be never.
        context.submit_batch();
    }

    /// Lets go of mappings that went away, which somebody waits for: nothing is fetched until the commands in
    /// flight, which may use them, have ended. Doorbells rung meanwhile are found afterwards.
    #[cold]
    fn release_retired(&mut self) -> bool {
        self.group.flush(&self.view, self.shared.doorbells.registers());
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

    /// Takes the next step of a flight.
    fn advance(&mut self, tag: Tag, lane: u16, context: &mut IoContext, scratch: &mut Scratch) {
        let place = &mut self.flights[usize::from(tag.slot)];
        let Some(flight) = place else { return };
        let mut work = Work { queues: &mut self.queues, view: &self.view, context, scratch };
        match work.advance(flight, token(lane, tag)) {
            Step::Done(status) => {
                self.done.push(flight.ended(status));
                *place = None;
            }
            Step::Queued => {}
            Step::Busy => self.backlog.push(tag),
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
        let Some(place) = self.flights.get_mut(usize::from(tag.slot)) else { return };
        let Some(flight) = place.as_mut().filter(|flight| flight.command.tag == tag) else { return };
        let work = Work { queues: &mut self.queues, view: &self.view, context, scratch };
        let status = work.operation_ended(flight, result);
        // A reset doesn't wait for operations that haven't been started.
        let status = status.or(self.group.is_resetting().then_some(Status::ABORT_REQUESTED));
        match status {
            Some(status) => {
                self.done.push(flight.ended(status));
                *place = None;
            }
            None => self.advance(tag, lane, context, scratch),
        }
    }

    /// Whether the guest may ring a doorbell without a sound, so that its poller may nap, but not sleep.
    pub(super) fn must_be_watched(&self) -> bool {
        self.shared.must_be_watched()
    }

    /// In the place of the control thread, which sleeps: has the guest rung a doorbell of the admin queue?
    #[inline]
    pub(super) fn watch_admin_queue(&mut self) {
        if self.index != 0 || !self.shared.must_be_watched() {
            return;
        }
        let [tail, head, ..] = self.shared.doorbells.registers() else { return };
        let now = [tail.load(Ordering::Relaxed), head.load(Ordering::Relaxed)];
        // A crowded mailbox is tried again in the next turn.
        if now != self.admin_doorbells && !self.shared.control.is_crowded() {
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
pub(super) fn token(lane: u16, tag: Tag) -> u64 {
    u64::from(lane) << 48 | tag.to_u64()
}

/// The inverse of [`token`].
pub(super) fn split_token(token: u64) -> (u16, Tag) {
    ((token >> 48) as u16, Tag::from_u64(token & 0xffff_ffff_ffff))
}

/// Posts the completions of everything that has ended.
#[inline]
fn finish_done(
    group: &mut HostedGroup,
    view: &MemoryView,
    done: &mut Vec<Ended>,
    latencies: &mut Vec<Latency>,
) {
    let mut ended_ns = 0;
    for Ended { tag, status, sqid, started_ns } in done.drain(..) {
        if started_ns != 0 {
            if ended_ns == 0 {
                ended_ns = now_ns();
            }
            let sqid = usize::from(sqid);
            if latencies.len() <= sqid {
                latencies.resize(sqid + 1, Latency::new());
            }
            latencies[sqid].record(ended_ns.saturating_sub(started_ns), 1);
        }
        match group.complete(view, tag, status) {
            Completed::Posted | Completed::Dropped | Completed::Stale => {}
        }
    }
}
