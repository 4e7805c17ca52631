//! Live upgrade: states out of a module and into one.
//!
//! Nothing that a module saves leaves the host as it came. It is loaded into the core's own tables, which checks
//! all of it, and compared with what the host knows by itself; what goes on is what *they* save. A module that
//! is loaded has to save the same again before anything is entrusted to it.

use doorbell_core::controller::Controller;
use doorbell_core::engine::MoveError;
use doorbell_core::group::QueueGroup;

use crate::error::Fault;
use crate::export::Calls;
use crate::instance::Instance;

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

impl Instance {
    /// What the module saves of itself, unchecked.
    pub(crate) fn save_state(&mut self, part: Part) -> Result<&[u8], MoveError> {
        let (at, room) = self.state_buffer()?;
        let save = |calls: &'static Calls| match part {
            Part::Controller => &calls.controller_save,
            Part::Group => &calls.group_save,
        };
        let len = self.call(save, ()).map_err(|fault| broken(&fault))? as usize;
        if len == 0 || len > room {
            return Err(MoveError::Engine("the running module doesn't save its state"));
        }
        Ok(self.memory().get(at..at + len).unwrap_or_default())
    }

    /// Has the module go on with a state.
    pub(crate) fn load_state(&mut self, part: Part, state: &[u8]) -> Result<(), MoveError> {
        let (at, room) = self.state_buffer()?;
        let load = |calls: &'static Calls| match part {
            Part::Controller => &calls.controller_load,
            Part::Group => &calls.group_load,
        };
        let place = self.memory_mut().get_mut(at..at + state.len()).filter(|_| state.len() <= room);
        place.ok_or(MoveError::Engine("the new module has no room for the state"))?.copy_from_slice(state);
        match self.call(load, state.len() as u32).map_err(|fault| broken(&fault))? {
            0 => Ok(()),
            _ => Err(MoveError::Engine("the new module refuses the state")),
        }
    }

    /// Address and bytes of the buffer, inside linear memory. A module has the exports of a live upgrade all together,
    /// or leaves them out.
    fn state_buffer(&mut self) -> Result<(usize, usize), MoveError> {
        let all = self.has(|calls| &calls.state_buffer)
            && self.has(|calls| &calls.controller_save)
            && self.has(|calls| &calls.controller_load)
            && self.has(|calls| &calls.group_save)
            && self.has(|calls| &calls.group_load);
        if !all {
            return Err(MoveError::Engine(
                "the module can't be upgraded while it runs: it lacks the exports for that (doorbell-upgrade.wasm has them)",
            ));
        }
        let buffer = self.call(|calls| &calls.state_buffer, ()).map_err(|fault| broken(&fault))?;
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
