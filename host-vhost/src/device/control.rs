//! The control thread of a device: clients that come and go, and whatever isn't the I/O path.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_core::engine::ControllerEngine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::changes::Changes;
use super::model::Model;
use super::namespaces::NamespaceTable;
use super::report::ReportCollector;
use super::state::StateFile;
use super::upgrade::Upgrade;
use super::{ControlMail, flush_all};
use crate::ctl::protocol::Answer;
use crate::memory::Sharing;
use crate::memory::sigbus::poisoned_mappings;
use crate::poller::{FromGroup, ToGroup};
use crate::rate_limit::warn_sometimes;
use crate::vfio_user::connection::Lost;
use crate::vfio_user::listener::{ACCEPT_AGAIN, Handed, Listener};
use crate::vfio_user::server::{Released, Session, Step};

/// How long commands may keep a reset or an unmap waiting before their storages are asked to give them up.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the SMART counters are written.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// Messages of other threads that one turn handles, so that they can't keep it from the client.
const MAILS_PER_TURN: u32 = 1024;

/// Where the device stands with its clients.
#[derive(Debug)]
enum Phase {
    /// Waiting for one.
    Waiting,
    /// Serving one.
    Serving(Box<Session>),
    /// One has gone and what it lent is being given up.
    Ending(Released),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) model: Model,
    listener: Option<Listener>,
    phase: Phase,
    connections: u64,
    pub(super) namespaces: NamespaceTable,
    pub(super) changes: Changes,
    pub(super) reports: ReportCollector,
    pub(super) upgrade: Option<Upgrade>,
    state: StateFile,
    saved: Instant,
    in_use: bool,
    quiescing_since: Option<Instant>,
    /// [`poisoned_mappings`] when it was looked at last.
    poisoned_mappings: u64,
    /// After a client that could not be accepted: when to look for one again.
    accept_after: Option<Instant>,
    stopping: bool,
}

impl Control {
    pub(super) fn new(
        model: Model,
        source: Handed,
        namespaces: NamespaceTable,
        reports: ReportCollector,
        mut state: StateFile,
    ) -> std::io::Result<Self> {
        let mut model = model;
        if let Some(counters) = state.load() {
            model.controller.restore_smart_counters(counters);
        }
        let memory = Arc::clone(&model.shared.memory);
        let (listener, phase, connections) = match source {
            Handed::Listening(listener) => (Some(listener), Phase::Waiting, 0),
            Handed::Connected(stream) => (None, Phase::Serving(Box::new(Session::new(stream, memory)?)), 1),
        };
        Ok(Self {
            model,
            listener,
            phase,
            connections,
            namespaces,
            changes: Changes::default(),
            reports,
            upgrade: None,
            state,
            saved: Instant::now(),
            in_use: false,
            quiescing_since: None,
            poisoned_mappings: poisoned_mappings(),
            accept_after: None,
            stopping: false,
        })
    }

    /// Serves until it is told to stop, or until the one client that was handed over has gone.
    pub(super) fn run(&mut self) {
        loop {
            self.turn();
            let over = matches!(self.phase, Phase::Waiting) && (self.stopping || self.listener.is_none());
            if over && !self.model.is_quiescing() {
                break;
            }
            self.wait();
        }
        let storages: Vec<_> = self.model.shared.storages().iter().flatten().cloned().collect();
        if let Err(error) = flush_all(&storages) {
            tracing::error!(%error, "the last flush failed");
        }
        self.save_state();
    }

    /// Handles everything that has come in.
    fn turn(&mut self) {
        for _ in 0..MAILS_PER_TURN {
            let Some(mail) = self.model.shared.control.receive() else { break };
            self.handle_mail(mail);
        }
        self.serve_client();
        for change in self.model.pump() {
            self.namespace_changed(change);
        }
        if self.advance_upgrade() {
            for change in self.model.pump() {
                self.namespace_changed(change);
            }
        }
        self.finish_tickets();
        self.check_sharing();
        self.check_poisoned();
        self.note_use();
        self.watch_patience();
        self.watch_pause();
        if self.saved.elapsed() > SAVE_INTERVAL {
            self.saved = Instant::now();
            self.save_state();
            // For the next time.
            self.model.tell_groups(ToGroup::Statistics);
        }
    }

    fn serve_client(&mut self) {
        match &mut self.phase {
            Phase::Waiting => self.accept(),
            Phase::Serving(session) => {
                if self.stopping {
                    self.client_lost(Lost::Closed);
                    return;
                }
                self.model.handle_intx_unmask();
                match session.step(&mut self.model) {
                    // What is left comes in the next turn, after this one's pump: it keeps the socket readable.
                    Ok(Step::Idle | Step::More) => {}
                    Err(lost) => self.client_lost(lost),
                }
            }
            Phase::Ending(released) => {
                if released.is_complete() && !self.model.is_quiescing() {
                    self.phase = Phase::Waiting;
                    self.in_use = false;
                    self.save_state();
                    self.accept();
                }
            }
        }
    }

    fn accept(&mut self) {
        let Some(listener) = self.listener.as_ref().filter(|_| !self.stopping) else { return };
        if self.accept_after.is_some_and(|after| Instant::now() < after) {
            return;
        }
        self.accept_after = None;
        match listener.try_accept() {
            Ok(Some(stream)) => self.attach(stream),
            Ok(None) => {}
            Err(error) => self.could_not_accept(&error),
        }
    }

    /// Out of file descriptors, most likely: the socket stays readable, so it isn't polled for a while.
    fn could_not_accept(&mut self, error: &std::io::Error) {
        warn_sometimes(|| tracing::warn!(%error, "a client could not be accepted"));
        self.accept_after = Some(Instant::now() + ACCEPT_AGAIN);
    }

    fn attach(&mut self, stream: UnixStream) {
        match Session::new(stream, Arc::clone(&self.model.shared.memory)) {
            Ok(session) => {
                self.connections += 1;
                tracing::info!(connection = self.connections, "client attached");
                self.phase = Phase::Serving(Box::new(session));
            }
            Err(error) => self.could_not_accept(&error),
        }
    }

    fn client_lost(&mut self, lost: Lost) {
        if let Phase::Serving(session) = std::mem::replace(&mut self.phase, Phase::Waiting) {
            tracing::info!(reason = %lost, "client detached");
            self.phase = Phase::Ending(session.end());
            self.model.client_lost();
        }
    }

    /// Once the guest has written its first command: do we see the same memory as the guest? A client that is
    /// busy doesn't answer, and is asked again at the next command.
    fn check_sharing(&mut self) {
        let Phase::Serving(session) = &self.phase else { return };
        if self.model.sharing_looks == 0 || session.has_pending() || session.has_queued() {
            return;
        }
        let Some(address) = self.model.admin_queue_with_commands() else { return };
        self.model.sharing_looks -= 1;
        match session.check_shared(address, 64) {
            Ok(Sharing::Unknown) => {}
            Ok(Sharing::Shared) => self.model.sharing_looks = 0,
            Err(not_shared) => {
                tracing::error!("{not_shared}");
                self.client_lost(Lost::Closed);
            }
        }
    }

    /// A client that truncates memory which it lent has lost its device.
    fn check_poisoned(&mut self) {
        let poisoned = poisoned_mappings();
        if poisoned == self.poisoned_mappings {
            return;
        }
        self.poisoned_mappings = poisoned;
        if matches!(self.phase, Phase::Serving(_)) && self.model.shared.memory.current().is_poisoned() {
            tracing::error!("the client truncated a file whose memory it lent");
            self.client_lost(Lost::Closed);
        }
    }

    fn finish_tickets(&mut self) {
        let tickets = self.model.finished_tickets();
        if let Phase::Serving(session) = &mut self.phase {
            let finished = tickets.into_iter().try_for_each(|ticket| session.finish(ticket));
            if let Err(lost) = finished {
                self.client_lost(lost);
            }
        }
    }

    /// Commands that keep somebody waiting too long are cancelled.
    fn watch_patience(&mut self) {
        let waits = match &self.phase {
            Phase::Serving(session) => session.has_pending() || self.model.is_quiescing(),
            Phase::Ending(_) => true,
            Phase::Waiting => self.model.is_quiescing(),
        };
        if !waits {
            self.quiescing_since = None;
            return;
        }
        let since = *self.quiescing_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            self.quiescing_since = Some(Instant::now());
            self.model.tell_groups(ToGroup::CancelAll);
        }
    }

    fn handle_mail(&mut self, mail: ControlMail) {
        match mail {
            ControlMail::Group { group, message } => {
                self.model.handle_group(group, &message);
                match message {
                    FromGroup::Paused { ticket } => self.group_paused(ticket),
                    FromGroup::Refreshed { ticket } => self.group_refreshed(ticket),
                    FromGroup::Report(report) => {
                        for reply in self.reports.add(*report) {
                            let answer = self.statistics();
                            let _ = reply.send(Ok(answer));
                        }
                    }
                    FromGroup::Upgraded(upgraded) => self.group_upgraded(group, upgraded),
                    _ => {}
                }
            }
            ControlMail::AdminDoorbell => {}
            ControlMail::Command { command, reply } => self.handle_command(command, reply),
            ControlMail::Add { opened, reply } => self.add_namespace(*opened, reply),
            ControlMail::Upgrade { to, reply } => self.begin_upgrade(*to, reply),
            ControlMail::Flushed(durable) => self.model.handle_flushed(durable),
            ControlMail::Stop => self.stopping = true,
        }
    }

    fn statistics(&mut self) -> Answer {
        let connected = matches!(self.phase, Phase::Serving(_));
        let mut statistics = self.reports.statistics(&self.model);
        statistics.connected = connected;
        statistics.connections = self.connections;
        statistics.namespaces = self.namespaces.statistics();
        Answer::Stat(Box::new(statistics))
    }

    fn save_state(&mut self) {
        self.state.save(self.model.controller.smart_counters(), self.in_use);
    }

    /// Notes once for each client that its guest uses the controller, and takes that back when it has shut it
    /// down or is gone, so that a process that is killed in between leaves word of an unsafe shutdown.
    fn note_use(&mut self) {
        let in_use = match self.phase {
            Phase::Serving(_) => self.model.is_in_use().unwrap_or(self.in_use),
            Phase::Ending(_) => self.in_use,
            Phase::Waiting => false,
        };
        if in_use != self.in_use {
            self.in_use = in_use;
            self.save_state();
        }
    }

    /// Sleeps until something comes in.
    fn wait(&mut self) {
        let shared = Arc::clone(&self.model.shared);
        let waker = shared.control.waker();
        waker.prepare_sleep();
        let unmask = shared.interrupts.intx_unmask_fd();
        let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
        let mut queued = false;
        match &self.phase {
            Phase::Waiting => {
                let listens = !self.stopping && self.accept_after.is_none();
                if let Some(listener) = self.listener.as_ref().filter(|_| listens) {
                    fds.push(PollFd::new(listener, PollFlags::IN));
                }
            }
            Phase::Serving(session) => {
                // A client that leaves replies unread is waited for.
                queued = session.has_queued() && session.interest() == PollFlags::IN;
                fds.push(PollFd::from_borrowed_fd(session.as_fd(), session.interest()));
                // Its count outlives the last unmap's answer, so it means something only while one waits.
                if session.has_pending() {
                    fds.push(PollFd::from_borrowed_fd(session.release_fd(), PollFlags::IN));
                }
                if let Some(unmask) = &unmask {
                    fds.push(PollFd::new(unmask, PollFlags::IN));
                }
            }
            Phase::Ending(released) => fds.push(PollFd::new(released, PollFlags::IN)),
        }
        if !shared.control.has_mail() && !queued {
            // The longest sleep is a tick of the clock that ages SMART counters and patience.
            let timeout = Timespec::try_from(self.longest_sleep()).ok();
            let _ = poll(&mut fds, timeout.as_ref());
        }
        drop(fds);
        waker.finish_sleep();
        waker.drain();
    }

    fn longest_sleep(&self) -> Duration {
        let short =
            self.quiescing_since.is_some() || self.accept_after.is_some() || self.changes.is_pausing();
        if short { ACCEPT_AGAIN } else { Duration::from_secs(10) }
    }
}
