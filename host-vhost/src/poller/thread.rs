//! The poller's thread: its mailbox, its turns, its rest.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_core::message::GroupRequest;

use super::idle::{Idle, now_ns};
use super::runner::{GroupRunner, split_token};
use super::turns::{self, Turns};
use super::work::Scratch;
use crate::engine::HostedGroup;
use crate::mailbox::Mailbox;
use crate::storage::{IoContext, IoContextConfig, OpenError, StorageError};

/// What the control thread of a device tells one of its groups.
#[derive(Clone, Copy, Debug)]
pub enum ToGroup {
    /// A request of the core's controller.
    Request(GroupRequest),
    /// Stop fetching and say when nothing is in flight any more.
    Pause {
        /// Comes back in [`FromGroup::Paused`](super::FromGroup::Paused).
        ticket: u64,
    },
    /// Go on.
    Resume,
    /// The storages have changed: say when those that are gone aren't in use any more.
    Refresh {
        /// Comes back in [`FromGroup::Refreshed`](super::FromGroup::Refreshed).
        ticket: u64,
    },
    /// Guest memory or the environment has changed: look.
    Look,
    /// Ask the storages to give up what is in flight.
    CancelAll,
    /// Report the sums that the SMART log is made from.
    Statistics,
    /// Report the counters.
    Report,
    /// Work out the group's part of the INTx level.
    CheckLevel,
    /// Give the group up, once nothing is in flight.
    Detach,
}

/// What a poller is told.
#[derive(Debug)]
pub enum PollerMail {
    /// Take a group on.
    Attach(Box<GroupRunner>),
    /// A message to a group.
    Group {
        /// Address of the device's shared part, which names it.
        device: usize,
        /// The group's index in its device.
        group: u16,
        /// What it is told.
        message: ToGroup,
    },
    /// Go on with another engine behind a group.
    Upgrade {
        /// Address of the device's shared part, which names it.
        device: usize,
        /// The group's index in its device.
        group: u16,
        /// The engine, which hasn't done anything yet.
        engine: Box<HostedGroup>,
    },
    /// End the thread once no group is left.
    Stop,
}

/// How a poller behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollerConfig {
    /// The processor that it runs on.
    pub cpu: Option<usize>,
}

/// Counters of a poller, for tests and `doorbell stat`.
#[derive(Debug, Default)]
pub struct PollerCounters {
    /// Times it slept or napped.
    pub sleeps: AtomicU64,
    /// Calls of `io_uring_enter`.
    pub enters: AtomicU64,
}

/// A running poller thread.
#[derive(Debug)]
pub struct Poller {
    mailbox: Arc<Mailbox<PollerMail>>,
    counters: Arc<PollerCounters>,
    epoll: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system gives no eventfd, no ring or no thread, or where the processor doesn't exist.
    pub fn start(name: String, config: PollerConfig) -> Result<Self, OpenError> {
        let mailbox = Mailbox::new();
        let mailbox =
            Arc::new(mailbox.map_err(|source| OpenError::System { what: "make an eventfd", source })?);
        let counters = Arc::new(PollerCounters::default());
        let (thread, epoll) = turns::start(
            name,
            {
                let (mailbox, counters) = (Arc::clone(&mailbox), Arc::clone(&counters));
                move || PollerThread::new(config, mailbox, counters)
            },
            |thread: &PollerThread| Arc::clone(&thread.epoll),
        )?;
        Ok(Self { mailbox, counters, epoll, thread: Some(thread) })
    }

    /// Where its messages go.
    #[must_use]
    pub fn mailbox(&self) -> &Arc<Mailbox<PollerMail>> {
        &self.mailbox
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<PollerCounters> {
        &self.counters
    }

    /// The epoll that it sleeps on, for eventfds that shall wake it. They are to be watched for edges
    /// (`EPOLLET`), since the poller doesn't read them.
    #[must_use]
    pub fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.mailbox.send(PollerMail::Stop);
        turns::join(&mut self.thread);
    }
}

/// A group in its place on a poller. The index of the place is the lane in storage tokens.
#[derive(Debug)]
struct Lane {
    runner: Box<GroupRunner>,
    detaching: bool,
}

#[derive(Debug)]
struct PollerThread {
    mailbox: Arc<Mailbox<PollerMail>>,
    counters: Arc<PollerCounters>,
    context: IoContext,
    epoll: Arc<OwnedFd>,
    lanes: Vec<Option<Lane>>,
    reaped: Vec<(u64, Result<(), StorageError>)>,
    scratch: Scratch,
    idle: Idle,
    stopping: bool,
}

impl PollerThread {
    fn new(
        config: PollerConfig,
        mailbox: Arc<Mailbox<PollerMail>>,
        counters: Arc<PollerCounters>,
    ) -> Result<Self, OpenError> {
        turns::pin(config.cpu)?;
        // Naps of microseconds need a fine timer; failing that they are longer, not wrong.
        let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
        let context = IoContext::new(IoContextConfig::default())?;
        let epoll = turns::new_epoll(mailbox.waker(), &context)?;
        Ok(Self {
            mailbox,
            counters,
            context,
            epoll: Arc::new(epoll),
            lanes: Vec::new(),
            reaped: Vec::with_capacity(1024),
            scratch: Scratch::new(),
            idle: Idle::default(),
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
            let (lane, tag) = split_token(token);
            if let Some(Some(entry)) = self.lanes.get_mut(usize::from(lane)) {
                entry.runner.reaped(tag, result, lane, &mut self.context, &mut self.scratch);
            }
        }
        self.context.submit_batch();
        true
    }

    fn handle(&mut self, mail: PollerMail) {
        match mail {
            PollerMail::Attach(runner) => {
                let lane = Some(Lane { runner, detaching: false });
                match self.lanes.iter_mut().find(|place| place.is_none()) {
                    Some(place) => *place = lane,
                    None => self.lanes.push(lane),
                }
            }
            PollerMail::Group { device, group, message } => {
                for (lane, place) in (0..).zip(&mut self.lanes) {
                    let Some(entry) = place else { continue };
                    if Arc::as_ptr(entry.runner.device()).addr() == device && entry.runner.index() == group {
                        entry.detaching |= matches!(message, ToGroup::Detach);
                        entry.runner.handle(message, lane, &mut self.context);
                    }
                }
            }
            PollerMail::Upgrade { device, group, engine } => {
                let mut engine = Some(engine);
                for (lane, place) in (0..).zip(&mut self.lanes) {
                    let Some(Lane { runner, .. }) = place else { continue };
                    if Arc::as_ptr(runner.device()).addr() == device
                        && runner.index() == group
                        && let Some(engine) = engine.take()
                    {
                        runner.upgrade(engine, lane, &mut self.context, &mut self.scratch);
                    }
                }
            }
            PollerMail::Stop => self.stopping = true,
        }
    }
}

impl Turns for PollerThread {
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
            if let Some(Lane { runner, .. }) = place {
                runner.watch_admin_queue();
                worked |= runner.fetch(lane, &mut self.context, &mut self.scratch) > 0;
            }
        }
        if self.context.in_flight() > 0 {
            self.context.submit_batch();
            worked |= self.reap();
        }
        for (lane, place) in (0..).zip(&mut self.lanes) {
            if let Some(entry) = place {
                worked |= entry.runner.finish_turn(lane, &mut self.context);
                if entry.detaching && entry.runner.in_flight() == 0 {
                    entry.runner.detached();
                    *place = None;
                }
            }
        }
        worked
    }

    /// Naps or sleeps, after one last look in which every group that isn't watched arms its doorbells.
    fn rest(&mut self, nap: Duration) {
        self.mailbox.waker().prepare_sleep();
        let storage_works = self.context.in_flight() > 0;
        let mut may_rest = !self.mailbox.has_mail() && (!storage_works || self.context.prepare_sleep());
        let mut until: Option<Duration> = None;
        for Lane { runner, .. } in self.lanes.iter_mut().flatten() {
            if !may_rest {
                break;
            }
            // A napping poller looks by itself, and keeps EventIdx where no register write is asked for.
            let watched = runner.must_be_watched();
            may_rest = watched || runner.arm();
            let deadline = runner.deadline_ns().map(|deadline_ns| deadline_ns.saturating_sub(now_ns()));
            let limits = [watched.then_some(nap), deadline.map(Duration::from_nanos)];
            until = limits.into_iter().flatten().chain(until).min();
        }
        if may_rest {
            turns::wait(&self.epoll, until);
        }
        if storage_works {
            self.context.finish_sleep();
        }
        self.mailbox.waker().finish_sleep();
        self.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        self.counters.enters.store(self.context.enters(), Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.stopping && self.lanes.iter().all(Option::is_none)
    }

    #[inline]
    fn idle(&mut self) -> &mut Idle {
        &mut self.idle
    }
}
