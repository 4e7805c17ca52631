//! A queue group in a sandbox: one call of the module a turn, and everything that it says checked before it is
//! done.
//!
//! The host's loop calls [`GroupEngine::poll_command`]; where there is something to do (a tail has moved, or a head that
//! somebody waits for, a command has ended, a request has come) that is one call of the module, which ends what has been
//! completed, fetches what is new and says all there is to say. Otherwise it is a look at the doorbells. Of a large batch
//! a part is posted by a call of its own, so that the driver needn't wait for the rest.

mod check;
mod turn;
mod upgrade;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use doorbell_abi::{CompletionRecord, MessageRecord, NEVER, NO_INTERRUPTS, QueueRecord, StatisticsRecord};
use doorbell_core::command::IoCommand;
use doorbell_core::doorbell::{Registers, head_index, tail_index};
use doorbell_core::engine::{GroupEngine, MoveError};
use doorbell_core::group::{Armed, Completed, QueueStatistics};
use doorbell_core::memory::{Access, DmaError, DmaMemory};
use doorbell_core::message::{
    Coalescing, DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest, GroupStatistics,
};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use self::turn::After;
use crate::error::Fault;
use crate::instance::Instance;
use crate::mirror::WriteBack;
use crate::sandbox::Shared;

/// A queue group in an instance of its own. See the module.
#[derive(Debug)]
pub struct SandboxedGroup {
    shared: Arc<Shared>,
    /// `None` until it is needed and while the tenant has failed.
    instance: Option<Instance>,
    /// The controller has been told that the tenant has failed.
    told: bool,
    paused: bool,
    /// Queues that requests have created, for what the module may say of them.
    queues: Queues,
    /// By namespace identifier minus 1.
    namespaces: Vec<Option<Namespace>>,
    /// Raised when a namespace changes.
    shapes: u64,
    doorbell_buffer: Option<DoorbellBuffer>,
    /// Guest address of the shadow doorbells that the module has copies of, or [`NEVER`].
    staged_shadows: u64,
    coalescing: bool,
    /// The request that hasn't been answered.
    request: Option<GroupRequest>,
    /// Commands that the host has and hasn't ended, by slot.
    outstanding: Vec<Option<Outstanding>>,
    outstanding_count: usize,
    /// Commands that the module gave out and the host hasn't taken.
    fetched: Fetched,
    /// Completions that the module hasn't been told of.
    ended: Vec<CompletionRecord>,
    /// How many of them are posted in the midst of a batch; see [`early_posts`].
    post_at: usize,
    messages: VecDeque<GroupMessage>,
    interrupts: VecDeque<u16>,
    cancels: VecDeque<Tag>,
    /// The module has more to do than it could in one call.
    more: bool,
    /// No command waits for an entry of its completion queue, as of the last turn that fetched.
    has_room: bool,
    wants_interrupt: bool,
    /// Whether the pin is asserted, where that is known.
    level: Option<bool>,
    resetting: bool,
    deadline_ns: Option<u64>,
    dropped_events: u64,
    /// Statistics of instances that are gone, and of this one as it said last.
    statistics_base: GroupStatistics,
    statistics: GroupStatistics,
}

/// Completions that are worth a call of their own.
const MIN_POST: usize = 2;

/// How many completions are posted in the midst of a batch of `commands`, where `posted` were before it: so many that
/// the driver has as much to do then as the device. Once it has, each batch is posted with the next one's fetch.
fn early_posts(commands: usize, posted: usize) -> usize {
    let ahead = commands.saturating_sub(posted) / 2;
    if ahead < MIN_POST { usize::MAX } else { ahead }
}

/// A command that the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outstanding {
    generation: u32,
    /// 0 for a flush of all.
    nsid: u32,
}

/// Places in the module's list of commands, which it leaves alone until it is asked for others. If it doesn't, that
/// changes nothing: each is checked when it is taken, by itself.
#[derive(Debug, Default)]
struct Fetched {
    places: Range<usize>,
    /// The shapes of namespaces that the module knew.
    shapes: u64,
}

/// Queues by identifier.
#[derive(Debug, Default)]
struct Queues {
    submission: Vec<u16>,
    /// Identifier, vector, guest address, bytes.
    completion: Vec<(u16, Option<u16>, u64, u64)>,
}

impl Queues {
    /// The completion queue in whose memory `address` lies, or 0.
    #[cold]
    fn completion_at(&self, address: u64) -> u16 {
        let at = |&&(_, _, base, len): &&(u16, Option<u16>, u64, u64)| {
            address.checked_sub(base).is_some_and(|offset| offset < len)
        };
        self.completion.iter().find(at).map_or(0, |&(qid, ..)| qid)
    }
}

impl SandboxedGroup {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, Fault> {
        let mut group = Self {
            shared,
            instance: None,
            told: false,
            paused: false,
            queues: Queues::default(),
            namespaces: Vec::new(),
            shapes: 0,
            doorbell_buffer: None,
            staged_shadows: NEVER,
            coalescing: false,
            request: None,
            outstanding: Vec::new(),
            outstanding_count: 0,
            fetched: Fetched::default(),
            ended: Vec::new(),
            post_at: usize::MAX,
            messages: VecDeque::new(),
            interrupts: VecDeque::new(),
            cancels: VecDeque::new(),
            more: false,
            has_room: false,
            wants_interrupt: false,
            level: None,
            resetting: false,
            deadline_ns: None,
            dropped_events: 0,
            statistics_base: GroupStatistics::default(),
            statistics: GroupStatistics::default(),
        };
        group.start()?;
        Ok(group)
    }

    /// A fresh instance. The controller, which is fresh too, will tell it of namespaces and queues.
    fn start(&mut self) -> Result<(), Fault> {
        let mut instance = self.shared.instance()?;
        let config = &self.shared.config;
        instance.call(
            |calls| &calls.group_init,
            (config.controller.mdts_bytes, u32::from(config.posted_registers)),
        )?;
        if self.paused {
            instance.call(|calls| &calls.group_pause, 1)?;
        }
        self.namespaces.clear();
        self.namespaces.resize(instance.layout.namespaces as usize, None);
        self.instance = Some(instance);
        self.staged_shadows = NEVER;
        self.told = false;
        Ok(())
    }

    /// The module has broken a rule, or the tenant has failed elsewhere.
    #[cold]
    fn fail(&mut self, fault: Fault) {
        self.shared.fail(fault);
        self.give_up();
    }

    /// Drops the instance and everything that it said and the host hasn't done.
    #[cold]
    fn give_up(&mut self) {
        self.instance = None;
        self.statistics_base = add(self.statistics_base, std::mem::take(&mut self.statistics));
        self.fetched = Fetched::default();
        self.ended.clear();
        self.interrupts.clear();
        self.cancels.clear();
        self.messages.retain(|message| matches!(message, GroupMessage::Reply(_)));
        self.more = false;
        self.has_room = false;
        self.wants_interrupt = false;
        self.deadline_ns = None;
        self.doorbell_buffer = None;
        self.queues = Queues::default();
        self.coalescing = false;
        if !self.told {
            self.told = true;
            self.messages.push_back(GroupMessage::Event(GroupEvent::Fatal { qid: 0 }));
        }
        match self.request.take() {
            Some(GroupRequest::Reset) => self.reset_without_instance(),
            Some(_) => {
                self.messages.push_back(GroupMessage::Reply(GroupReply::Failed(Status::INTERNAL_ERROR)));
            }
            None => {}
        }
    }

    /// A reset of a group that has no instance: all that is left to do is to wait for the host's commands.
    fn reset_without_instance(&mut self) {
        self.messages.clear();
        self.resetting = true;
        self.finish_reset_without_instance();
    }

    fn finish_reset_without_instance(&mut self) {
        if self.instance.is_none() && self.resetting && self.outstanding_count == 0 {
            self.resetting = false;
            self.messages.push_back(GroupMessage::Reply(GroupReply::ResetDone));
        }
    }

    /// Whether the instance may be called. Notices that the tenant has failed elsewhere.
    #[inline]
    fn is_alive(&mut self) -> bool {
        if self.instance.is_some() && self.shared.is_failed() {
            self.give_up();
        }
        self.instance.is_some()
    }

    /// Doorbells of the queues that there are.
    fn watch(&mut self) {
        let tails = self.queues.submission.iter().map(|&qid| tail_index(qid));
        let heads = self.queues.completion.iter().map(|&(qid, ..)| head_index(qid));
        let indices: Vec<u32> = tails.chain(heads).collect();
        if let Some(instance) = &mut self.instance {
            instance.mirror().watch(indices);
        }
    }

    /// What a request means for what the host knows; before the module is told.
    fn note_request(&mut self, request: &GroupRequest) {
        match *request {
            GroupRequest::CreateCompletionQueue { qid, base, size, vector, .. } => {
                self.queues.completion.retain(|&(other, ..)| other != qid);
                self.queues.completion.push((qid, vector, base, u64::from(size) * 16));
                self.watch();
            }
            GroupRequest::CreateSubmissionQueue { qid, .. } => {
                self.queues.submission.retain(|&other| other != qid);
                self.queues.submission.push(qid);
                self.watch();
            }
            GroupRequest::Reset => {
                // What the host hasn't taken ends here.
                self.refuse_fetched(Status::ABORT_REQUESTED);
                self.interrupts.clear();
                self.cancels.clear();
                self.messages.clear();
                self.coalescing = false;
                self.wants_interrupt = false;
                self.deadline_ns = None;
                self.doorbell_buffer = None;
                self.queues = Queues::default();
                self.watch();
            }
            GroupRequest::ClearDoorbellBuffer => self.doorbell_buffer = None,
            GroupRequest::SetNamespace { nsid, namespace } => self.set_namespace(nsid, Some(namespace)),
            GroupRequest::RemoveNamespace { nsid } => self.set_namespace(nsid, None),
            GroupRequest::SetCoalescing(Coalescing { time_100us, .. }) => self.coalescing = time_100us != 0,
            _ => {}
        }
    }

    fn set_namespace(&mut self, nsid: u32, namespace: Option<Namespace>) {
        self.shapes += 1;
        let index = (nsid as usize).wrapping_sub(1);
        if let Some(place) = self.namespaces.get_mut(index) {
            *place = namespace;
        }
    }

    /// What an answer means for what the host knows; after it has been checked.
    fn note_reply(&mut self, request: &GroupRequest, reply: &GroupReply) {
        let done = *reply == GroupReply::Done;
        match *request {
            GroupRequest::SetDoorbellBuffer(buffer) => {
                // Where it failed it is the old one or none; the module then loads its shadows by itself.
                self.doorbell_buffer = done.then_some(buffer);
            }
            GroupRequest::CreateCompletionQueue { qid, .. } if !done => {
                self.queues.completion.retain(|&(other, ..)| other != qid);
                self.watch();
            }
            GroupRequest::CreateSubmissionQueue { qid, .. } if !done => {
                self.queues.submission.retain(|&other| other != qid);
                self.watch();
            }
            GroupRequest::DeleteCompletionQueue { qid } if done => {
                self.queues.completion.retain(|&(other, ..)| other != qid);
                self.watch();
            }
            GroupRequest::DeleteSubmissionQueue { qid } if done => {
                self.queues.submission.retain(|&other| other != qid);
                self.watch();
            }
            GroupRequest::SetNamespace { nsid, .. } if !done => self.set_namespace(nsid, None),
            _ => {}
        }
    }

    /// Runs `call` of the module with everything around it; an error fails the tenant.
    fn slow_call<R>(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        how: WriteBack,
        call: impl FnOnce(&mut Instance) -> Result<R, Fault>,
    ) -> Option<R> {
        let instance = self.instance.as_mut()?;
        // What is staged here isn't new to the next look at the doorbells, which so has to lead to a turn.
        self.more |= instance.stage_registers(registers);
        let result = call(instance);
        let result =
            result.and_then(|result| self.take_turn(memory, registers, how, After::Other).map(|()| result));
        match result {
            Ok(result) => Some(result),
            Err(fault) => {
                self.fail(fault);
                None
            }
        }
    }
}

impl GroupEngine for SandboxedGroup {
    fn handle_request(&mut self, memory: &impl DmaMemory, registers: &Registers, request: GroupRequest) {
        if self.instance.is_none() && request != GroupRequest::Reset && !self.shared.is_failed() {
            // The first request of a new life.
            if let Err(fault) = self.start() {
                self.fail(fault);
            }
        }
        if !self.is_alive() {
            if request == GroupRequest::Reset {
                self.reset_without_instance();
            } else {
                if let GroupRequest::RemoveNamespace { nsid } = request {
                    self.set_namespace(nsid, None);
                }
                self.messages.push_back(GroupMessage::Reply(GroupReply::Failed(Status::INTERNAL_ERROR)));
            }
            return;
        }
        // What has ended counts as ended before the request.
        self.flush(memory, registers);
        self.note_request(&request);
        self.request = Some(request);
        let record = MessageRecord::encode_request(0, &request);
        let taken = self.slow_call(memory, registers, WriteBack::Store, |instance| {
            instance.set_scratch(zerocopy::IntoBytes::as_bytes(&record));
            instance.call_with(memory, registers, |calls| &calls.group_request, ())
        });
        if taken.is_some_and(|code| code != 0) {
            self.fail(Fault::Interface("a request wasn't understood"));
        }
        self.flush(memory, registers);
        // Queues may have been attached to shadow doorbells that have moved since.
        self.more = true;
    }

    #[inline]
    fn poll_command(&mut self, memory: &impl DmaMemory, registers: &Registers) -> Option<IoCommand> {
        loop {
            if self.paused {
                if !self.ended.is_empty() {
                    self.turn(memory, registers, Some(0), NO_INTERRUPTS);
                }
                return None;
            }
            if let Some(command) = self.poll_fetched() {
                return Some(command);
            }
            if !self.is_alive() || !self.wants_turn(memory, registers) {
                return None;
            }
            // Where no tail has moved and nothing waits, there is nothing to fetch.
            let fetches = self.more || !self.has_room;
            let list = self.instance.as_ref().map_or(0, |instance| instance.layout.commands.count);
            let most = if fetches { list as u32 } else { 0 };
            let now_ns = if self.coalescing { NO_INTERRUPTS } else { 0 };
            self.turn(memory, registers, Some(most), now_ns);
            if self.fetched.places.is_empty() {
                return None;
            }
        }
    }

    #[inline]
    fn poll_fetched(&mut self) -> Option<IoCommand> {
        if self.fetched.places.is_empty() {
            return None;
        }
        self.deliver().unwrap_or_else(|fault| {
            self.fail(fault);
            None
        })
    }

    #[inline]
    fn complete(&mut self, memory: &impl DmaMemory, tag: Tag, status: Status) -> Completed {
        let Some(place) = self.outstanding.get_mut(usize::from(tag.slot)) else { return Completed::Stale };
        if place.is_none_or(|command| command.generation != tag.generation) {
            return Completed::Stale;
        }
        *place = None;
        self.outstanding_count -= 1;
        if self.instance.is_none() {
            self.finish_reset_without_instance();
            return Completed::Dropped;
        }
        self.ended.push(completion(tag.to_u64(), status));
        let dropped = self.resetting;
        let room = self.instance.as_ref().map_or(0, |instance| instance.layout.completions.count);
        // The driver may go on with these while the rest of a large batch is carried out.
        let is_half = self.ended.len() >= self.post_at && !self.fetched.places.is_empty();
        if dropped || is_half || self.ended.len() >= room {
            self.turn(memory, &[], Some(0), NO_INTERRUPTS);
        }
        if dropped { Completed::Dropped } else { Completed::Posted }
    }

    fn flush(&mut self, memory: &impl DmaMemory, registers: &Registers) {
        let now_ns = if self.coalescing { NO_INTERRUPTS } else { 0 };
        // Each turn takes as many as the module's list holds.
        while !self.ended.is_empty() && self.is_alive() {
            self.turn(memory, registers, Some(0), now_ns);
        }
    }

    #[inline]
    fn poll_interrupt(&mut self, now_ns: u64) -> Option<u16> {
        if self.interrupts.is_empty() && self.wants_interrupt() && self.is_alive() {
            let due = !self.coalescing || self.deadline_ns.is_none_or(|deadline_ns| now_ns >= deadline_ns);
            // Where it has nothing to wait for, there are new entries that it hasn't decided about.
            if due {
                self.decide_interrupts(now_ns);
            }
        }
        self.interrupts.pop_front()
    }

    #[inline]
    fn wants_interrupt(&self) -> bool {
        // What is still to be posted shares the interrupt of what has been: the turn that posts it decides, but for
        // interrupts that are coalesced.
        self.wants_interrupt && (self.coalescing || self.ended.is_empty()) || !self.interrupts.is_empty()
    }

    fn interrupt_deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    fn is_level_asserted(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool {
        if !self.is_alive() {
            return false;
        }
        self.flush(memory, registers);
        if self.queues.completion.iter().all(|(_, vector, ..)| vector.is_none()) {
            return false;
        }
        // It changes only where entries are posted or a head moves.
        self.look_at_doorbells(memory, registers);
        if let Some(asserted) = self.level {
            return asserted;
        }
        let asserted = self.slow_call(memory, registers, WriteBack::Exchange, |instance| {
            instance.call_with(memory, registers, |calls| &calls.group_level, ())
        });
        self.level = asserted.map(|asserted| asserted != 0);
        self.level.unwrap_or(false)
    }

    #[inline]
    fn poll_message(&mut self) -> Option<GroupMessage> {
        self.messages.pop_front()
    }

    #[inline]
    fn poll_cancel(&mut self) -> Option<Tag> {
        self.cancels.pop_front()
    }

    fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers, level_interrupts: bool) -> Armed {
        if !self.is_alive() {
            return if self.messages.is_empty() { Armed::Sleep } else { Armed::Busy };
        }
        // What is posted only now may have an interrupt that the host hasn't looked for.
        let posts = !self.ended.is_empty();
        self.flush(memory, registers);
        if posts || !self.messages.is_empty() || !self.fetched.places.is_empty() && !self.paused {
            return Armed::Busy;
        }
        let armed = self.slow_call(memory, registers, WriteBack::Exchange, |instance| {
            instance.call_with(memory, registers, |calls| &calls.group_arm, u32::from(level_interrupts))
        });
        // The module saw a copy. A register that was written since then wakes nobody, so it is looked at again,
        // after everything that arming has stored.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let moved = self.instance.as_mut().is_some_and(|instance| instance.mirror().has_moved(registers));
        if armed == Some(1) && !moved && self.messages.is_empty() {
            return Armed::Sleep;
        }
        self.more |= !self.paused;
        Armed::Busy
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.outstanding_count
    }

    fn pause(&mut self) {
        self.set_paused(true);
    }

    fn resume(&mut self) {
        self.set_paused(false);
        self.more = true;
    }

    fn is_resetting(&self) -> bool {
        self.resetting
    }

    fn abandon_commands(&mut self) {
        if !self.resetting {
            return;
        }
        self.outstanding.fill(None);
        self.outstanding_count = 0;
        self.finish_reset_without_instance();
        if self.is_alive() {
            self.ended.clear();
            let _ = self.slow_call(&NoMemory, &[], WriteBack::Exchange, |instance| {
                instance.call(|calls| &calls.group_abandon, ())
            });
        }
    }

    fn dropped_events(&self) -> u64 {
        self.dropped_events
    }

    fn statistics(&mut self) -> GroupStatistics {
        if let Some(record) = self.report(|instance| {
            instance.has(|calls| &calls.group_statistics).then(|| {
                instance
                    .call(|calls| &calls.group_statistics, ())
                    .map(|()| instance.scratch::<StatisticsRecord>())
            })
        }) {
            self.statistics = record.decode();
        }
        add(self.statistics_base, self.statistics)
    }

    fn visit_queue_statistics(&mut self, mut visit: impl FnMut(QueueStatistics)) {
        // As many as there can be, whatever the module says.
        for place in 0..self.queues.submission.len() as u32 {
            let record = self.report(|instance| {
                instance.has(|calls| &calls.group_queue).then(|| {
                    instance
                        .call(|calls| &calls.group_queue, place)
                        .map(|end| if end == 0 { instance.scratch::<QueueRecord>() } else { None })
                })
            });
            match record {
                Some(record) => visit(record.decode()),
                None => return,
            }
        }
    }

    fn save(&mut self, buffer: &mut [u8]) -> Result<usize, MoveError> {
        self.save_checked(buffer)
    }

    fn load(&mut self, state: &[u8], has_storage: impl Fn(u32, &Namespace) -> bool) -> Result<(), MoveError> {
        self.load_checked(state, has_storage)
    }
}

impl SandboxedGroup {
    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
        if self.is_alive() {
            let _ = self.slow_call(&NoMemory, &[], WriteBack::Exchange, |instance| {
                instance.call(|calls| &calls.group_pause, u32::from(paused))
            });
        }
    }

    fn report<R>(
        &mut self,
        ask: impl FnOnce(&mut Instance) -> Option<Result<Option<R>, Fault>>,
    ) -> Option<R> {
        if !self.is_alive() {
            return None;
        }
        match ask(self.instance.as_mut()?)? {
            Ok(record) => record,
            Err(fault) => {
                self.fail(fault);
                None
            }
        }
    }

    fn decide_interrupts(&mut self, now_ns: u64) {
        self.turn(&NoMemory, &[], None, now_ns.min(NEVER - 1));
    }
}

fn completion(tag: u64, status: Status) -> CompletionRecord {
    CompletionRecord { tag: tag.into(), status: status.0.into(), reserved: [0; 6] }
}

fn add(a: GroupStatistics, b: GroupStatistics) -> GroupStatistics {
    GroupStatistics {
        bytes_read: a.bytes_read.wrapping_add(b.bytes_read),
        bytes_written: a.bytes_written.wrapping_add(b.bytes_written),
        read_commands: a.read_commands.wrapping_add(b.read_commands),
        write_commands: a.write_commands.wrapping_add(b.write_commands),
        media_errors: a.media_errors.wrapping_add(b.media_errors),
        error_log_entries: a.error_log_entries.wrapping_add(b.error_log_entries),
    }
}

/// No guest memory at all, for calls that need none.
#[derive(Debug)]
pub(crate) struct NoMemory;

impl DmaMemory for NoMemory {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DmaError> {
        Err(DmaError)
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DmaError> {
        Err(DmaError)
    }
    fn load_u32(&self, _: u64) -> Result<u32, DmaError> {
        Err(DmaError)
    }
    fn store_u32(&self, _: u64, _: u32) -> Result<(), DmaError> {
        Err(DmaError)
    }
    fn compare_exchange_u32(&self, _: u64, _: u32, _: u32) -> Result<u32, DmaError> {
        Err(DmaError)
    }
    fn check(&self, _: u64, _: u64, _: Access) -> Result<(), DmaError> {
        Err(DmaError)
    }
}
