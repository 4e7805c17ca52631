//! Another engine behind a running group, between two turns of its poller.

use std::time::{Duration, Instant};

use doorbell_core::engine::{GroupEngine, MoveError};
use doorbell_core::namespace::Namespace;

use super::FromGroup;
use super::flight::Flight;
use super::runner::{GroupRunner, token};
use super::work::{Scratch, Step, Work};
use crate::engine::{HostedGroup, NativeGroup};
use crate::storage::IoContext;

/// How often the old engine is asked for what it still holds.
const ROUNDS: usize = 8;

/// What came of an upgrade of a group.
#[derive(Debug)]
pub struct Upgraded {
    /// How long the group stood still, or why it goes on with the engine that it had.
    pub result: Result<Duration, MoveError>,
    /// The engine that is of no use any more, for somebody who has the time to drop it.
    pub retired: Box<HostedGroup>,
}

impl GroupRunner {
    /// Goes on with `engine`, or as before where that can't be. Flights stay, and so do their tags.
    #[cold]
    pub(super) fn upgrade(
        &mut self,
        mut engine: Box<HostedGroup>,
        lane: u16,
        context: &mut IoContext,
        scratch: &mut Scratch,
    ) {
        let begun = Instant::now();
        let moved = self.move_to(&mut engine, lane, context, scratch);
        if moved.is_ok() {
            std::mem::swap(&mut self.group, &mut engine);
        }
        let result = moved.map(|()| begun.elapsed());
        self.tell(FromGroup::Upgraded(Upgraded { result, retired: engine }));
    }

    fn move_to(
        &mut self,
        engine: &mut HostedGroup,
        lane: u16,
        context: &mut IoContext,
        scratch: &mut Scratch,
    ) -> Result<(), MoveError> {
        if self.pausing.is_some() {
            return Err(MoveError::Undrained("a namespace that is being resized"));
        }
        let mut state = vec![0; NativeGroup::STATE_BYTES];
        let mut rounds = 0;
        let len = loop {
            self.take_fetched(lane, context, scratch);
            self.finish_turn(lane, context);
            let shared = std::sync::Arc::clone(&self.shared);
            self.group.flush(&self.view, shared.doorbells.registers());
            self.finish_turn(lane, context);
            match self.group.save(&mut state) {
                Err(MoveError::Undrained(_)) if rounds < ROUNDS => rounds += 1,
                saved => break saved?,
            }
        };
        // The bytes are the core's own; how large a namespace may be is checked by its storage, command by command.
        let has_storage = |nsid: u32, _: &Namespace| {
            self.storages.get((nsid as usize).wrapping_sub(1)).is_some_and(Option::is_some)
        };
        engine.load(state.get(..len).unwrap_or_default(), has_storage)
    }

    /// Starts what the old engine has fetched and not given out.
    fn take_fetched(&mut self, lane: u16, context: &mut IoContext, scratch: &mut Scratch) {
        while let Some(command) = self.group.poll_fetched() {
            let tag = command.tag;
            let mut work = Work { queues: &mut self.queues, view: &self.view, context, scratch };
            let mut flight = Flight::new(command, 0);
            match work.advance(&mut flight, token(lane, tag)) {
                Step::Done(status) => self.done.push(flight.ended(status)),
                step => {
                    if step == Step::Busy {
                        self.backlog.push(tag);
                    }
                    self.flights[usize::from(tag.slot)] = Some(flight);
                }
            }
        }
    }
}
