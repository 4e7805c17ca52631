//! Another engine behind a device that runs.
//!
//! The groups and the controller share nothing but messages, which stay in order; so each moves by itself, between
//! two of its turns, and none waits for another. The groups go first. Where any part can't move, those that have
//! move back, and the device goes on as before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use doorbell_core::engine::{ControllerEngine, MoveError};
use doorbell_core::namespace::Namespace;

use super::control::Control;
use super::model::Model;
use crate::ctl::protocol::Answer;
use crate::engine::{EngineSource, HostedController, HostedGroup, HostingError, NativeController};
use crate::poller::{PollerMail, Upgraded};

/// Fresh engines of a device.
#[derive(Debug)]
pub struct Engines {
    controller: HostedController,
    groups: Vec<HostedGroup>,
    description: String,
}

impl Engines {
    /// A controller and `groups` queue groups.
    ///
    /// # Errors
    /// See [`HostingError`].
    pub fn new(source: &EngineSource, groups: usize) -> Result<Self, HostingError> {
        let made: Result<Vec<_>, _> = (0..groups).map(|_| source.group()).collect();
        Ok(Self { controller: source.controller()?, groups: made?, description: source.description() })
    }
}

/// An upgrade under way.
#[derive(Debug)]
pub(super) struct Upgrade {
    controller: HostedController,
    description: String,
    reply: Sender<Result<Answer, String>>,
    groups_left: usize,
    pause: Duration,
    /// The old engines of the groups that have moved.
    moved: Vec<(u16, Box<HostedGroup>)>,
    failed: Option<String>,
    going_back: bool,
}

impl Control {
    /// Begins an upgrade.
    pub(super) fn begin_upgrade(&mut self, to: Engines, reply: Sender<Result<Answer, String>>) {
        let busy = self.upgrade.is_some() || self.changes.is_pausing();
        if busy || to.groups.len() != self.model.group_count() {
            let _ = reply.send(Err("the device is being changed already: try again".into()));
            return;
        }
        let groups_left = to.groups.len();
        for (group, engine) in (0..).zip(to.groups) {
            self.model.upgrade_group(group, Box::new(engine));
        }
        self.upgrade = Some(Upgrade {
            controller: to.controller,
            description: to.description,
            reply,
            groups_left,
            pause: Duration::ZERO,
            moved: Vec::new(),
            failed: None,
            going_back: false,
        });
    }

    /// A group has moved, or hasn't.
    pub(super) fn group_upgraded(&mut self, group: u16, upgraded: Upgraded) {
        let Some(upgrade) = &mut self.upgrade else { return };
        upgrade.groups_left = upgrade.groups_left.saturating_sub(1);
        match upgraded.result {
            Ok(_) if upgrade.going_back => {}
            Ok(pause) => {
                upgrade.pause = upgrade.pause.max(pause);
                upgrade.moved.push((group, upgraded.retired));
            }
            Err(error) => {
                let text = if upgrade.going_back {
                    tracing::error!(group, %error, "a queue group can't go back to its old engine");
                    format!("; queue group {group} can't go back: {error}")
                } else {
                    format!("queue group {group}: {error}")
                };
                match &mut upgrade.failed {
                    Some(failed) if upgrade.going_back => failed.push_str(&text),
                    Some(_) => {}
                    none => *none = Some(text),
                }
            }
        }
    }

    /// After the model's turn, when the controller holds nothing back: the controller's own move, or the end.
    /// Whether there is another controller now, which hasn't had a turn yet.
    pub(super) fn advance_upgrade(&mut self) -> bool {
        let Some(mut upgrade) = self.upgrade.take_if(|upgrade| upgrade.groups_left == 0) else {
            return false;
        };
        if upgrade.failed.is_none() {
            match self.model.upgrade(upgrade.controller) {
                Ok((pause, retired)) => {
                    let pause_ns = upgrade.pause.max(pause).as_nanos() as u64;
                    self.model.engine = upgrade.description.clone();
                    tracing::info!(engine = upgrade.description, pause_ns, "upgraded");
                    let _ =
                        upgrade.reply.send(Ok(Answer::Upgraded { engine: upgrade.description, pause_ns }));
                    drop(retired);
                    return true;
                }
                Err((error, controller)) => {
                    upgrade.failed = Some(format!("controller: {error}"));
                    upgrade.controller = controller;
                }
            }
        }
        if !upgrade.going_back && !upgrade.moved.is_empty() {
            upgrade.going_back = true;
            upgrade.groups_left = upgrade.moved.len();
            for (group, engine) in upgrade.moved.drain(..) {
                self.model.upgrade_group(group, engine);
            }
            self.upgrade = Some(upgrade);
            return false;
        }
        let why = upgrade.failed.unwrap_or_default();
        tracing::warn!(why, "not upgraded");
        let _ = upgrade.reply.send(Err(format!("{why}; the device goes on as before")));
        false
    }
}

impl Model {
    fn upgrade_group(&self, group: u16, engine: Box<HostedGroup>) {
        if let Some(address) = self.groups.get(usize::from(group)) {
            let device = Arc::as_ptr(&self.shared).addr();
            address.mailbox.send(PollerMail::Upgrade { device, group, engine });
        }
    }

    /// Goes on with another controller; how long that took, and the old one. Or why not, and the new one.
    fn upgrade(
        &mut self,
        mut engine: HostedController,
    ) -> Result<(Duration, HostedController), (MoveError, HostedController)> {
        let begun = Instant::now();
        let mut state = vec![0; NativeController::STATE_BYTES];
        let storages = self.shared.storages();
        let has_storage = |nsid: u32, _: &Namespace| {
            storages.get((nsid as usize).wrapping_sub(1)).is_some_and(Option::is_some)
        };
        let moved = self
            .controller
            .save(&mut state)
            .and_then(|len| engine.load(state.get(..len).unwrap_or_default(), has_storage));
        match moved {
            Ok(()) => {
                std::mem::swap(&mut self.controller, &mut engine);
                Ok((begun.elapsed(), engine))
            }
            Err(error) => Err((error, engine)),
        }
    }
}
