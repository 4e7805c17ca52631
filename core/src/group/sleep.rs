//! Going to sleep: what has to be armed so that the driver's next move makes a sound.

use super::{Armed, QueueGroup, get_mut};
use crate::doorbell::{DoorbellError, Registers};
use crate::memory::{DmaError, DmaMemory};
use crate::place::Place;

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    /// Prepares for sleep: asks the driver, through EventIdx, to write a register at its next move.
    ///
    /// Empty submission queues arm their tail. One with commands that wait for an entry of its completion
    /// queue arms that queue's head. With `level_interrupts` (INTx) completion queues with unread entries do
    /// too, since the level falls when the head moves.
    pub fn arm(&mut self, memory: &impl DmaMemory, registers: &Registers, level_interrupts: bool) -> Armed {
        if self.has_message() {
            return Armed::Busy;
        }
        if self.resetting || self.paused {
            return Armed::Sleep;
        }
        let mut armed = Armed::Sleep;
        let mut lost = None;
        for position in 0..QUEUES {
            let Some(submission) = self.submission.get_mut(position).and_then(Place::as_mut) else {
                continue;
            };
            if submission.stopped {
                continue;
            }
            let Some(completion) = get_mut(&mut self.completion, submission.completion) else {
                continue;
            };
            let waits = submission.queue.waiting() > 0;
            let moved = if !waits {
                submission.queue.arm(memory, registers)
            } else if completion.queue.is_full() {
                completion.queue.arm(memory, registers)
            } else {
                // Either it can be fetched now, or it waits for a slot and a completion will wake the owner.
                Ok(!self.slots.is_full())
            };
            match moved {
                Ok(false) => {
                    submission.statistics.rearms_won = submission.statistics.rearms_won.wrapping_add(1)
                }
                Ok(true) => {
                    submission.statistics.rearms_lost = submission.statistics.rearms_lost.wrapping_add(1);
                    armed = Armed::Busy;
                }
                Err(DmaError) => lost = Some(submission.queue.qid),
            }
        }
        if let Some(qid) = lost {
            self.doorbell_failed(qid, false, DoorbellError::Dma);
        }
        if level_interrupts {
            for completion in self.completion.iter_mut().flatten() {
                let unread = completion.vector.is_some() && completion.queue.unread() > 0;
                if unread && completion.queue.arm(memory, registers) == Ok(true) {
                    armed = Armed::Busy;
                }
            }
        }
        if self.has_message() { Armed::Busy } else { armed }
    }
}
