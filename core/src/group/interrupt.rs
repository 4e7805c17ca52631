//! Interrupts: one for a batch of entries, held back by coalescing, or the level of a pin.
//!
//! Read first: NVM Express Base Specification 2.0, section 5.27.1.6 (coalescing); PCIe Transport Specification
//! 1.0, section 3.5.

use super::{QueueGroup, get_mut, remove};
use crate::doorbell::Registers;
use crate::memory::DmaMemory;
use crate::message::Coalescing;
use crate::place::Place;

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    /// The vector of a completion queue whose new entries the driver should be told of, or `None`.
    ///
    /// `now_ns` is the host's monotonic clock in nanoseconds, for interrupt coalescing; with coalescing off
    /// (the default) it has no effect. The host calls this after a batch of completions: however many entries
    /// a queue got, it is one interrupt.
    #[inline]
    #[must_use = "the interrupt has to be raised"]
    pub fn poll_interrupt(&mut self, now_ns: u64) -> Option<u16> {
        if self.unannounced.is_empty() {
            return None;
        }
        let coalescing = self.coalescing;
        let mut position = 0;
        while let Some(&index) = self.unannounced.get(position) {
            let Some(completion) = get_mut(&mut self.completion, index) else {
                remove(&mut self.unannounced, position);
                continue;
            };
            if !completion.is_waiting {
                completion.is_waiting = true;
                completion.since_ns = now_ns;
            }
            let waited_ns = now_ns.saturating_sub(completion.since_ns);
            if completion.coalesce && !coalescing.is_due(completion.unannounced, waited_ns) {
                position = position.wrapping_add(1);
                continue;
            }
            completion.unannounced = 0;
            completion.is_waiting = false;
            completion.interrupts = completion.interrupts.wrapping_add(1);
            let vector = completion.vector;
            remove(&mut self.unannounced, position);
            if vector.is_some() {
                return vector;
            }
        }
        None
    }

    /// Whether [`QueueGroup::poll_interrupt`] has anything to decide; spares hosts a look at the clock.
    #[inline]
    #[must_use]
    pub fn wants_interrupt(&self) -> bool {
        !self.unannounced.is_empty()
    }

    /// When [`QueueGroup::poll_interrupt`] should be called again for interrupts that coalescing holds back,
    /// on the same clock, or `None` where none is held back.
    #[must_use]
    pub fn interrupt_deadline_ns(&self) -> Option<u64> {
        let time_ns = self.coalescing.time_ns();
        let held =
            self.unannounced.iter().filter_map(|&index| self.completion.get(usize::from(index))?.as_ref());
        held.filter(|completion| completion.is_waiting)
            .map(|completion| completion.since_ns.saturating_add(time_ns))
            .min()
    }

    /// Whether a pin-based interrupt (INTx) is to be asserted on account of this group: a completion queue
    /// with interrupts enabled has entries that the driver hasn't taken (PCIe Transport Specification 1.0,
    /// section 3.5.1). Masking (INTMS) is the controller's.
    ///
    /// Looks at the head doorbells, and arms those of queues that assert the pin: the driver then writes the
    /// register when it takes the entries, and not the shadow alone. Nobody could tell otherwise that the level
    /// has fallen, and there are VMMs that lower the pin only when a register is accessed.
    pub fn is_level_asserted(&mut self, memory: &impl DmaMemory, registers: &Registers) -> bool {
        let mut asserted = false;
        for index in 0..QUEUES {
            let Some(completion) = self.completion.get_mut(index).and_then(Place::as_mut) else { continue };
            if completion.vector.is_none() || completion.queue.unread() == 0 {
                continue;
            }
            let mut polled = completion.queue.poll_head(memory, registers);
            if completion.queue.unread() > 0 && completion.queue.arm(memory, registers) == Ok(true) {
                polled = polled.and(completion.queue.poll_head(memory, registers));
            }
            asserted |= completion.queue.unread() > 0;
            let qid = completion.queue.qid;
            if let Err(error) = polled {
                self.doorbell_failed(qid, true, error);
            }
        }
        asserted
    }
}

impl Coalescing {
    fn time_ns(self) -> u64 {
        u64::from(self.time_100us).wrapping_mul(100_000)
    }

    fn is_due(self, entries: u32, waited_ns: u64) -> bool {
        entries > u32::from(self.threshold_z) || waited_ns >= self.time_ns()
    }
}
