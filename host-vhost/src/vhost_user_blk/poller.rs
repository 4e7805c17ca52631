//! The thread that virtqueues run on: it owns them while they run.
//!
//! A change to a queue (memory, addresses, features, a stop) begins by taking it back, which is answered when
//! nothing of it is in flight any more. So no queue is ever shared, and GET_VRING_BASE's answer is true.
//!
//! Turns and rest are those of the NVMe pollers ([`crate::poller`]): spin, give way, then sleep until a kick, a
//! completion or mail comes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::epoll;

use super::chain::{Chain, MAX_PIECES};
use super::controlled::ControlledQueue;
use super::counters::QueueCounters;
use super::medium::Medium;
use super::queue::{Io, Virtqueue, split_token};
use crate::engine::HostedGroup;
use crate::mailbox::Mailbox;
use crate::memory::sigbus::poisoned_mappings;
use crate::poller::idle::{Idle, LONGEST_NAP};
use crate::poller::turns::{self, Turns};
use crate::storage::{IoContext, IoContextConfig, OpenError, Storage, StorageError};

/// What a poller is told.
#[derive(Debug)]
pub(super) enum Mail {
    /// Run this queue.
    Start(Box<Virtqueue>),
    /// Give the queue of that index back when nothing is in flight.
    Take { index: u16, reply: Sender<Box<Virtqueue>> },
    /// The queue has another eventfd for calls.
    Call { index: u16, call: Option<std::fs::File> },
    /// Say what was done so far.
    Report(Sender<PollerReport>),
    /// End the thread.
    Stop,
}

/// What a poller and its queues have done since the server started.
#[derive(Debug, Default)]
pub(super) struct PollerReport {
    /// By the index of the queue.
    pub(super) queues: BTreeMap<u16, QueueCounters>,
    /// Queues that run.
    pub(super) running: Vec<u16>,
    /// Times it napped or slept.
    pub(super) sleeps: u64,
    /// Calls of `io_uring_enter`.
    pub(super) enters: u64,
}

/// A running thread.
#[derive(Debug)]
pub(super) struct BlkPoller {
    mailbox: Arc<Mailbox<Mail>>,
    thread: Option<JoinHandle<()>>,
}

impl BlkPoller {
    pub(super) fn start(
        name: String,
        cpu: Option<usize>,
        storage: Arc<dyn Storage>,
        group: Option<HostedGroup>,
    ) -> Result<Self, OpenError> {
        let mailbox = Mailbox::new();
        let mailbox =
            Arc::new(mailbox.map_err(|source| OpenError::System { what: "make an eventfd", source })?);
        let (thread, ()) = turns::start(
            name,
            {
                let mailbox = Arc::clone(&mailbox);
                move || Thread::new(cpu, mailbox, storage, group)
            },
            |_: &Thread| (),
        )?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Runs a queue.
    pub(super) fn run(&self, queue: Box<Virtqueue>) {
        self.mailbox.send(Mail::Start(queue));
    }

    /// Asks for a queue that runs here; it comes when nothing of it is in flight.
    pub(super) fn take(&self, index: u16) -> Receiver<Box<Virtqueue>> {
        let (reply, receiver) = std::sync::mpsc::channel();
        self.mailbox.send(Mail::Take { index, reply });
        receiver
    }

    /// Asks what was done so far.
    pub(super) fn report(&self) -> Receiver<PollerReport> {
        let (reply, receiver) = std::sync::mpsc::channel();
        self.mailbox.send(Mail::Report(reply));
        receiver
    }

    /// Times another thread had to wake it.
    pub(super) fn wakes(&self) -> u64 {
        self.mailbox.waker().wakes()
    }

    /// Gives a queue that runs here another eventfd for calls.
    pub(super) fn set_call(&self, index: u16, call: Option<std::fs::File>) {
        self.mailbox.send(Mail::Call { index, call });
    }
}

impl Drop for BlkPoller {
    fn drop(&mut self) {
        self.mailbox.send(Mail::Stop);
        turns::join(&mut self.thread);
    }
}

/// A queue in its place. The index of the place is the lane in storage tokens.
#[derive(Debug)]
struct Lane {
    queue: Box<Virtqueue>,
    taking: Option<Sender<Box<Virtqueue>>>,
}

#[derive(Debug)]
struct Thread {
    mailbox: Arc<Mailbox<Mail>>,
    /// Dropped before the lanes: it waits for what is in flight.
    context: IoContext,
    storage: Medium,
    chain: Chain,
    epoll: OwnedFd,
    lanes: Vec<Option<Lane>>,
    /// Of queues that were given back, by index.
    ended: BTreeMap<u16, QueueCounters>,
    sleeps: u64,
    reaped: Vec<(u64, Result<(), StorageError>)>,
    /// Requests of the virtqueues that have ended.
    finished: Vec<(u64, Result<(), StorageError>)>,
    idle: Idle,
    poisoned: u64,
    stopping: bool,
}

impl Thread {
    fn new(
        cpu: Option<usize>,
        mailbox: Arc<Mailbox<Mail>>,
        storage: Arc<dyn Storage>,
        group: Option<HostedGroup>,
    ) -> Result<Self, OpenError> {
        turns::pin(cpu)?;
        let mut context = IoContext::new(IoContextConfig {
            max_segments: MAX_PIECES as u32,
            ..IoContextConfig::default()
        })?;
        let queue = storage.open_queue(&mut context)?;
        let storage = match group {
            None => Medium::Direct(queue),
            Some(group) => Medium::Controlled(Box::new(ControlledQueue::new(group, queue, storage))),
        };
        let epoll = turns::new_epoll(mailbox.waker(), &context)?;
        Ok(Self {
            mailbox,
            context,
            storage,
            chain: Chain::new(),
            epoll,
            lanes: Vec::new(),
            ended: BTreeMap::new(),
            sleeps: 0,
            reaped: Vec::with_capacity(1024),
            finished: Vec::with_capacity(1024),
            idle: Idle::default(),
            poisoned: poisoned_mappings(),
            stopping: false,
        })
    }

    fn reap(&mut self) -> bool {
        let reaped = &mut self.reaped;
        self.context.reap(&mut |token, result| reaped.push((token, result)));
        if reaped.is_empty() {
            return false;
        }
        for (token, result) in reaped.drain(..) {
            self.finished.extend(self.storage.reaped(&mut self.context, token, result));
        }
        self.finish();
        self.context.submit_batch();
        true
    }

    /// Tells the virtqueues of what has ended. Returns whether there was anything.
    #[inline]
    fn finish(&mut self) -> bool {
        let worked = !self.finished.is_empty();
        for (token, result) in self.finished.drain(..) {
            let (lane, head) = split_token(token);
            if let Some(Some(entry)) = self.lanes.get_mut(usize::from(lane)) {
                let (context, storage, chain) = (&mut self.context, &mut self.storage, &mut self.chain);
                entry.queue.reaped(head, result, &mut Io { context, storage, chain, lane });
            }
        }
        worked
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Start(queue) => {
                if self.lanes.iter().all(Option::is_none) {
                    self.storage.restart();
                }
                if let Some(kick) = queue.kick()
                    && let Err(errno) = turns::watch(&self.epoll, kick)
                {
                    tracing::warn!(queue = queue.index(), %errno, "the kick descriptor can't be waited for");
                }
                let lane = Some(Lane { queue, taking: None });
                match self.lanes.iter_mut().find(|place| place.is_none()) {
                    Some(place) => *place = lane,
                    None => self.lanes.push(lane),
                }
            }
            Mail::Take { index, reply } => {
                if let Some(lane) = self.lane(index) {
                    lane.taking = Some(reply);
                }
            }
            Mail::Call { index, call } => {
                if let Some(lane) = self.lane(index) {
                    lane.queue.set_call(call);
                }
            }
            Mail::Report(reply) => {
                let _ = reply.send(self.report());
            }
            Mail::Stop => self.stopping = true,
        }
    }

    fn report(&mut self) -> PollerReport {
        let mut queues = self.ended.clone();
        let mut running = Vec::new();
        for Lane { queue, .. } in self.lanes.iter_mut().flatten() {
            running.push(queue.index());
            queues.entry(queue.index()).or_default().add(queue.counters());
        }
        PollerReport { queues, running, sleeps: self.sleeps, enters: self.context.enters() }
    }

    fn lane(&mut self, index: u16) -> Option<&mut Lane> {
        self.lanes.iter_mut().flatten().find(|lane| lane.queue.index() == index)
    }
}

impl Turns for Thread {
    #[inline]
    fn turn(&mut self) -> bool {
        let mut worked = false;
        if self.mailbox.has_mail() {
            while let Some(mail) = self.mailbox.receive() {
                self.handle(mail);
            }
            worked = true;
        }
        for (lane, place) in (0..).zip(&mut self.lanes) {
            if let Some(Lane { queue, taking }) = place {
                let (context, storage, chain) = (&mut self.context, &mut self.storage, &mut self.chain);
                let mut io = Io { context, storage, chain, lane };
                worked |= queue.fetch(&mut io, taking.is_none()) > 0;
            }
        }
        if self.storage.has_waiting() {
            self.storage.retry(&mut self.context, &mut self.finished);
            worked |= self.finish();
        }
        if self.context.in_flight() > 0 {
            self.context.submit_batch();
            worked |= self.reap();
        }
        for place in &mut self.lanes {
            let Some(Lane { queue, taking }) = place else { continue };
            queue.publish();
            if taking.is_some()
                && queue.in_flight() == 0
                && let Some(Lane { mut queue, taking: Some(reply) }) = place.take()
            {
                self.ended.entry(queue.index()).or_default().add(queue.counters());
                if let Some(kick) = queue.kick() {
                    // It stays open at the other side, so closing it isn't enough.
                    let _ = epoll::delete(&self.epoll, kick);
                }
                // Whoever asked and doesn't wait any more has ended.
                let _ = reply.send(queue);
                worked = true;
            }
        }
        if self.poisoned != poisoned_mappings() {
            self.poisoned = poisoned_mappings();
            self.lanes.iter_mut().flatten().for_each(|lane| lane.queue.check_memory());
        }
        worked
    }

    /// Naps or sleeps, after one last look in which every queue asks for kicks.
    fn rest(&mut self, nap: Duration) {
        self.mailbox.waker().prepare_sleep();
        let storage_works = self.context.in_flight() > 0;
        let mut may_rest = !self.mailbox.has_mail() && (!storage_works || self.context.prepare_sleep());
        let mut until = self.storage.has_waiting().then(|| nap.min(LONGEST_NAP));
        for Lane { queue, taking } in self.lanes.iter_mut().flatten() {
            if !may_rest {
                break;
            }
            if queue.kick().is_none() || queue.has_pending() {
                until = Some(nap.min(LONGEST_NAP));
            }
            // A queue that is being taken back takes no new requests, so kicks don't matter to it.
            may_rest = taking.is_some() || queue.arm();
        }
        if may_rest {
            self.sleeps += 1;
            turns::wait(&self.epoll, until);
        }
        if storage_works {
            self.context.finish_sleep();
        }
        self.mailbox.waker().finish_sleep();
    }

    fn is_over(&self) -> bool {
        self.stopping
    }

    #[inline]
    fn idle(&mut self) -> &mut Idle {
        &mut self.idle
    }
}
