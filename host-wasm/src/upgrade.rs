//! Live upgrade: states out of a module and into one.
//!
//! Nothing that a module saves leaves the host as it came. It is loaded into the core's own tables, which checks
//! all of it, and compared with what the host knows by itself; what goes on is what *they* save. A module that
//! is loaded has to save the same again before anything is entrusted to it.

use doorbell_core::controller::Controller;
use doorbell_core::engine::MoveError;
use doorbell_core::group::QueueGroup;
use wasmtime::{Store, TypedFunc};

use crate::error::Fault;
use crate::instance::{Data, Instance, find};

/// Tables that any state is checked in: those of the native host.
pub(crate) type CheckedController = Controller<16, 64, 32>;
/// See [`CheckedController`].
pub(crate) type CheckedGroup = QueueGroup<64, 1024, 32>;

/// Whose state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Controller,
    Group,
}

/// The exports of a live upgrade, which a module may leave out, all together.
#[derive(Clone)]
pub(crate) struct StateCalls {
    buffer: TypedFunc<(), u64>,
    controller: (TypedFunc<(), u32>, TypedFunc<u32, u32>),
    group: (TypedFunc<(), u32>, TypedFunc<u32, u32>),
}

impl StateCalls {
    pub(crate) fn find(instance: &wasmtime::Instance, store: &mut Store<Data>) -> Option<Self> {
        Some(Self {
            buffer: find(instance, store, "state_buffer").ok()?,
            controller: (
                find(instance, store, "controller_save").ok()?,
                find(instance, store, "controller_load").ok()?,
            ),
            group: (find(instance, store, "group_save").ok()?, find(instance, store, "group_load").ok()?),
        })
    }

    fn of(&self, part: Part) -> &(TypedFunc<(), u32>, TypedFunc<u32, u32>) {
        match part {
            Part::Controller => &self.controller,
            Part::Group => &self.group,
        }
    }
}

impl Instance {
    /// What the module saves of itself, unchecked.
    pub(crate) fn save_state(&mut self, part: Part) -> Result<&[u8], MoveError> {
        let calls = self.state_calls()?;
        let (at, room) = self.state_buffer(&calls)?;
        let len = self.call(|_| &calls.of(part).0, ()).map_err(|fault| broken(&fault))? as usize;
        if len == 0 || len > room {
            return Err(MoveError::Engine("the running module doesn't save its state"));
        }
        Ok(self.memory().get(at..at + len).unwrap_or_default())
    }

    /// Has the module go on with a state.
    pub(crate) fn load_state(&mut self, part: Part, state: &[u8]) -> Result<(), MoveError> {
        let calls = self.state_calls()?;
        let (at, room) = self.state_buffer(&calls)?;
        let place = self.memory_mut().get_mut(at..at + state.len()).filter(|_| state.len() <= room);
        place.ok_or(MoveError::Engine("the new module has no room for the state"))?.copy_from_slice(state);
        match self.call(|_| &calls.of(part).1, state.len() as u32).map_err(|fault| broken(&fault))? {
            0 => Ok(()),
            _ => Err(MoveError::Engine("the new module refuses the state")),
        }
    }

    fn state_calls(&self) -> Result<StateCalls, MoveError> {
        self.calls
            .states
            .clone()
            .ok_or(MoveError::Engine("the module can't be upgraded while it runs: it lacks the exports for that (doorbell-upgrade.wasm has them)"))
    }

    /// Address and bytes of the buffer, inside linear memory.
    fn state_buffer(&mut self, calls: &StateCalls) -> Result<(usize, usize), MoveError> {
        let buffer = self.call(|_| &calls.buffer, ()).map_err(|fault| broken(&fault))?;
        let (at, room) = ((buffer >> 32) as usize, buffer as u32 as usize);
        let inside = at.checked_add(room).is_some_and(|end| end <= self.memory().len());
        if inside {
            Ok((at, room))
        } else {
            Err(MoveError::Engine("the module's state buffer isn't in its memory"))
        }
    }
}

fn broken(fault: &Fault) -> MoveError {
    tracing::warn!(%fault, "a module broke down over its state");
    MoveError::Engine("the module broke down over its state (the log says how)")
}

/// What a failed tenant answers.
pub(crate) const FAILED: MoveError = MoveError::Engine(
    "its module has failed, so there is no state: wait for the guest's next controller reset",
);
