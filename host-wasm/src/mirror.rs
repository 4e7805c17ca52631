//! Doorbells on their way into the module and back.
//!
//! The module's array is a copy of the registers and shadow doorbells that concern the instance. Before a call the
//! host stores what has changed; after it, what the module changed goes back by compare-and-exchange, so that a
//! driver that has written meanwhile wins, and the next call sees its value.
//!
//! Where shadow doorbells are staged they are loaded *before* the registers, with an acquire fence between: a
//! register is seen no older than the shadow, which the core relies on (see `doorbell_core::doorbell`).

use std::sync::atomic::{Ordering, fence};

use doorbell_core::doorbell::Registers;
use doorbell_core::memory::DmaMemory;

/// How changes of the module go to the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    /// Only where the driver hasn't written meanwhile.
    Exchange,
    /// As the module says: a queue is created, a controller reset, a doorbell written by way of the module.
    Store,
    /// Zeroes as the module says, anything else only where the driver hasn't written meanwhile.
    StoreZeroes,
}

/// Which doorbells were found changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Tails of submission queues.
    pub(crate) tails: bool,
    /// Heads of completion queues.
    pub(crate) heads: bool,
}

impl Moved {
    /// Any.
    #[inline]
    pub(crate) fn any(self) -> bool {
        self.tails || self.heads
    }

    /// These and those.
    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        Self { tails: self.tails || other.tails, heads: self.heads || other.heads }
    }

    #[inline]
    fn note(&mut self, index: u32) {
        // `tail_index` is even, `head_index` odd.
        if index & 1 == 0 { self.tails = true } else { self.heads = true }
    }
}

/// The copy's bookkeeping: what the module's arrays hold, and which entries concern it.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    registers: Copies,
    shadows: Copies,
    /// Indices that concern the instance.
    watched: Vec<u32>,
}

/// What one of the module's arrays holds.
#[derive(Debug, Default)]
struct Copies {
    values: Vec<u32>,
    /// Indices of those that the array doesn't hold yet.
    pending: Vec<u32>,
}

impl Copies {
    fn new(count: usize) -> Self {
        Self { values: vec![0; count], pending: Vec::new() }
    }

    /// Takes what a doorbell is now.
    #[inline]
    fn see(&mut self, index: u32, value: u32, moved: &mut Moved) {
        if let Some(seen) = self.values.get_mut(index as usize)
            && *seen != value
        {
            *seen = value;
            moved.note(index);
            // A driver may move one as often as it likes before it gives a reason for a turn.
            if !self.pending.contains(&index) {
                self.pending.push(index);
            }
        }
    }

    /// Brings the module's array up to date.
    #[inline]
    fn store(&mut self, area: &mut [u8]) {
        for index in self.pending.drain(..) {
            if let Some(&value) = self.values.get(index as usize) {
                set(area, index, value);
            }
        }
    }
}

impl Mirror {
    /// A copy of `count` doorbells, all 0, none of them watched.
    pub(crate) fn new(count: usize) -> Self {
        Self { registers: Copies::new(count), shadows: Copies::new(count), watched: Vec::new() }
    }

    /// Watches these from now on and no others.
    pub(crate) fn watch(&mut self, indices: impl IntoIterator<Item = u32>) {
        self.watched.clear();
        let count = self.registers.values.len();
        self.watched.extend(indices.into_iter().filter(|&index| (index as usize) < count));
    }

    /// Looks at the shadow doorbells, and says which have moved; `None` where they can't be loaded. What has moved is
    /// for [`Mirror::store_shadows`].
    #[inline]
    pub(crate) fn see_shadows(&mut self, memory: &dyn DmaMemory, base: u64) -> Option<Moved> {
        let mut moved = Moved::default();
        for &index in &self.watched {
            let address = base.checked_add(u64::from(index) * 4)?;
            self.shadows.see(index, memory.load_u32(address).ok()?, &mut moved);
        }
        // Between the shadows and the registers. Pairs with the driver's barrier between a register write and its
        // next store into the shadow.
        fence(Ordering::Acquire);
        Some(moved)
    }

    /// After a call with staged shadow doorbells: the module may have stored into its copy what it stored into a
    /// shadow, and the next staging has to compare with that.
    #[inline]
    pub(crate) fn shadows_used(&mut self, area: &[u8]) {
        for &index in &self.watched {
            if let Some(seen) = self.shadows.values.get_mut(index as usize) {
                *seen = get(area, index);
            }
        }
    }

    /// Looks at the registers, and says which have moved. What has moved is for
    /// [`Mirror::store_registers`].
    #[inline]
    pub(crate) fn see_registers(&mut self, registers: &Registers) -> Moved {
        let mut moved = Moved::default();
        for &index in &self.watched {
            if let Some(register) = registers.get(index as usize) {
                self.registers.see(index, register.load(Ordering::Relaxed), &mut moved);
            }
        }
        // Pairs with the driver's barrier between its queue entries and the doorbell.
        fence(Ordering::Acquire);
        moved
    }

    /// Copies registers that have been seen to move into the module's array.
    #[inline]
    pub(crate) fn store_registers(&mut self, area: &mut [u8]) {
        self.registers.store(area);
    }

    /// Copies shadow doorbells that have been seen to move into the module's array.
    #[inline]
    pub(crate) fn store_shadows(&mut self, area: &mut [u8]) {
        self.shadows.store(area);
    }

    /// Whether a watched register has been written since it was staged.
    pub(crate) fn has_moved(&self, registers: &Registers) -> bool {
        self.watched.iter().any(|&index| {
            let now = registers.get(index as usize).map(|register| register.load(Ordering::Relaxed));
            now.is_some() && now != self.registers.values.get(index as usize).copied()
        })
    }

    /// Whether one of the first `count` registers, watched or not, isn't what was staged.
    pub(crate) fn has_moved_any(&self, registers: &Registers, count: usize) -> bool {
        let staged = self.registers.values.iter().take(count);
        registers.iter().zip(staged).any(|(register, staged)| register.load(Ordering::Relaxed) != *staged)
    }

    /// Takes what the module has changed in `area` back to the registers.
    #[inline]
    pub(crate) fn write_back(&mut self, registers: &Registers, area: &[u8], how: WriteBack) {
        for &index in &self.watched {
            let value = get(area, index);
            let Some(seen) = self.registers.values.get_mut(index as usize) else { continue };
            if *seen == value {
                continue;
            }
            let Some(register) = registers.get(index as usize) else { continue };
            let store = match how {
                WriteBack::Exchange => false,
                WriteBack::Store => true,
                WriteBack::StoreZeroes => value == 0,
            };
            if store {
                register.store(value, Ordering::Release);
            } else {
                // Where it fails the driver has written; the next call copies its value over the module's.
                let _ = register.compare_exchange(*seen, value, Ordering::Relaxed, Ordering::Relaxed);
            }
            *seen = value;
        }
    }
}

#[inline]
fn set(area: &mut [u8], index: u32, value: u32) {
    let at = index as usize * 4;
    if let Some(place) = area.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

#[inline]
fn get(area: &[u8], index: u32) -> u32 {
    let at = index as usize * 4;
    area.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_doorbell_that_moves_on_and_on_waits_once() {
        let registers: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let mut mirror = Mirror::new(4);
        mirror.watch([2, 3]);
        for value in 1..=1000 {
            registers[3].store(value, Ordering::Relaxed);
            assert_eq!(mirror.see_registers(&registers), Moved { tails: false, heads: true });
        }
        assert_eq!(mirror.registers.pending.len(), 1);
        let mut area = [0; 16];
        mirror.store_registers(&mut area);
        assert_eq!(get(&area, 3), 1000);
        assert_eq!(mirror.see_registers(&registers), Moved::default());
    }
}
