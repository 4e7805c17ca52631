//! Changes of namespaces at run time, from a request at the control socket to its answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use doorbell_core::controller::NamespaceChange;
use doorbell_core::engine::ControllerEngine;

use super::control::Control;
use super::namespaces::Opened;
use crate::ctl::protocol::{Answer, Command};
use crate::poller::ToGroup;
use crate::storage::Storage;

/// How long the guest is held up for a resize.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Changes {
    waiting: VecDeque<Waiting>,
    closing: Vec<Closing>,
    tickets: u64,
}

impl Changes {
    /// Whether groups are asked to stand still.
    pub(super) fn is_pausing(&self) -> bool {
        self.waiting.iter().any(|one| matches!(one.change, Change::Paused { .. }))
    }
}

/// A change of namespaces that somebody at the control socket waits for.
#[derive(Debug)]
struct Waiting {
    change: Change,
    reply: Sender<Result<Answer, String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Every group knows of it.
    Known(NamespaceChange),
    /// The groups are asked to stand still, so that the storage can change its size.
    Paused { resize: Resize, ticket: u64, groups_left: usize, since: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resize {
    nsid: u32,
    size_bytes: u64,
}

/// A storage whose namespace is gone, until the pollers have let go of it.
#[derive(Debug)]
struct Closing {
    nsid: u32,
    ticket: u64,
    groups_left: usize,
    /// Its end may wait for threads, which no poller should.
    _storage: Option<Arc<dyn Storage>>,
    reply: Option<Sender<Result<Answer, String>>>,
}

impl Control {
    pub(super) fn handle_command(&mut self, command: Command, reply: Sender<Result<Answer, String>>) {
        match command {
            Command::Stat => {
                self.reports.ask(reply, self.model.group_count());
                self.model.tell_groups(ToGroup::Report);
            }
            Command::NamespaceRemove { nsid } => {
                let started = self.model.controller.remove_namespace(nsid);
                let started = started.map_err(|error| {
                    format!("namespace {nsid}: {error}; `doorbell stat` shows which there are")
                });
                self.wait_for(started, Change::Known(NamespaceChange::Removed { nsid }), reply);
            }
            Command::NamespaceResize { nsid, size_bytes } => {
                let busy = self.changes.waiting.iter().any(|one| matches!(one.change, Change::Paused { .. }));
                let started = if self.upgrade.is_some() {
                    Err("the controller is being upgraded: try again".into())
                } else if busy {
                    Err("another namespace is being resized: try again".into())
                } else {
                    self.namespaces.check_resize(nsid, size_bytes)
                };
                self.changes.tickets += 1;
                let (ticket, groups_left) = (self.changes.tickets, self.model.group_count());
                if started.is_ok() {
                    self.model.tell_groups(ToGroup::Pause { ticket });
                }
                let resize = Resize { nsid, size_bytes };
                let change = Change::Paused { resize, ticket, groups_left, since: Instant::now() };
                self.wait_for(started, change, reply);
            }
            Command::Upgrade { .. } => {
                let _ = reply.send(Err("an upgrade comes with its engines made".into()));
            }
            Command::NamespaceAdd { .. } => {
                let _ = reply.send(Err("a namespace to add comes with its storage opened".into()));
            }
        }
    }

    pub(super) fn add_namespace(&mut self, opened: Opened, reply: Sender<Result<Answer, String>>) {
        match self.namespaces.add(&mut self.model.controller, &self.model.shared, opened) {
            Ok(nsid) => self.wait_for(Ok(()), Change::Known(NamespaceChange::Added { nsid }), reply),
            Err(text) => {
                let _ = reply.send(Err(text));
            }
        }
    }

    fn wait_for(
        &mut self,
        started: Result<(), String>,
        change: Change,
        reply: Sender<Result<Answer, String>>,
    ) {
        match started {
            Ok(()) => self.changes.waiting.push_back(Waiting { change, reply }),
            Err(text) => {
                let _ = reply.send(Err(text));
            }
        }
    }

    /// Every group knows of a change.
    pub(super) fn namespace_changed(&mut self, change: NamespaceChange) {
        let waiting = self.changes.waiting.iter().position(|one| one.change == Change::Known(change));
        let waiting = waiting.and_then(|place| self.changes.waiting.remove(place));
        match change {
            NamespaceChange::Removed { nsid } => {
                let storage = self.namespaces.removed(nsid);
                self.model.shared.set_storage(nsid, None);
                self.changes.tickets += 1;
                let (ticket, groups_left) = (self.changes.tickets, self.model.group_count());
                self.model.tell_groups(ToGroup::Refresh { ticket });
                let reply = waiting.map(|waiting| waiting.reply);
                self.changes.closing.push(Closing { nsid, ticket, groups_left, _storage: storage, reply });
            }
            NamespaceChange::Added { nsid } | NamespaceChange::Resized { nsid } => {
                if let Some(waiting) = waiting {
                    let _ = waiting.reply.send(Ok(Answer::Namespace { nsid }));
                }
            }
        }
    }

    /// One more group has let go of a storage; after the last one it is closed, and so free for others.
    pub(super) fn group_refreshed(&mut self, refreshed: u64) {
        let Some(place) = self.changes.closing.iter().position(|one| one.ticket == refreshed) else { return };
        self.changes.closing[place].groups_left -= 1;
        if self.changes.closing[place].groups_left > 0 {
            return;
        }
        let Closing { nsid, reply, .. } = self.changes.closing.swap_remove(place);
        if let Some(reply) = reply {
            let _ = reply.send(Ok(Answer::Namespace { nsid }));
        }
    }

    /// One more group stands still; after the last one the storage is resized, and the groups go on.
    pub(super) fn group_paused(&mut self, paused: u64) {
        let all_paused = |one: &mut Waiting| match &mut one.change {
            Change::Paused { resize, ticket, groups_left, .. } if *ticket == paused => {
                *groups_left = groups_left.saturating_sub(1);
                (*groups_left == 0).then_some(*resize)
            }
            _ => None,
        };
        let mut waiting = self.changes.waiting.iter_mut().enumerate();
        let found = waiting.find_map(|(place, one)| all_paused(one).map(|resize| (place, resize)));
        let Some((place, Resize { nsid, size_bytes })) = found else { return };
        let resized = self.namespaces.resize(&mut self.model.controller, nsid, size_bytes);
        self.model.tell_groups(ToGroup::Resume);
        let Some(mut waiting) = self.changes.waiting.remove(place) else { return };
        match resized {
            Ok(()) => {
                waiting.change = Change::Known(NamespaceChange::Resized { nsid });
                self.changes.waiting.push_back(waiting);
            }
            Err(text) => {
                let _ = waiting.reply.send(Err(text));
            }
        }
    }

    /// A resize whose commands in flight don't end is given up, so that the guest isn't held up for ever.
    pub(super) fn watch_pause(&mut self) {
        let late = |one: &Waiting| matches!(one.change, Change::Paused { since, .. } if since.elapsed() > LONGEST_PAUSE);
        if let Some(place) = self.changes.waiting.iter().position(late)
            && let Some(waiting) = self.changes.waiting.remove(place)
        {
            self.model.tell_groups(ToGroup::Resume);
            let text =
                format!("commands in flight didn't end in {LONGEST_PAUSE:?}: nothing was changed, try again");
            let _ = waiting.reply.send(Err(text));
        }
    }
}
