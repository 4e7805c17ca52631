//! Doorbells: the registers, the shadow doorbells of Doorbell Buffer Config, and going to sleep.
//!
//! A [`Doorbell`] answers one question, "what has the driver written since I looked last?", from two places:
//! the register (which the guest writes through a mapped page, or the host stores on the guest's behalf) and,
//! once Doorbell Buffer Config has succeeded, an entry of the Shadow Doorbell buffer in guest memory. Read
//! first: NVM Express Base Specification 2.0, section 5.8 and appendix B.5; PCIe Transport Specification 1.0,
//! section 3.1.2.
//!
//! # Two sources, one truth
//!
//! A driver that follows the specification stores into the shadow first and writes the register only where
//! EventIdx asks for it; the admin queue, firmware and drivers that use the shadow only now and then write the
//! register alone. So both are looked at, the shadow first:
//!
//! * Only the shadow moved: it is the truth.
//! * The register moved too, and isn't ahead of the shadow: it was only the hint to look.
//! * The register is ahead: the value is taken and *stored into the shadow* by compare-and-exchange, so that
//!   the next change of either shows as a change. A driver that stores into the shadow at that moment wins.
//!
//! While a shadow is in use, a register that has been looked at is marked, once until it is written again: so
//! a driver that writes the same value a lap later is noticed, and where the driver follows the specification
//! the cache line of the registers isn't written at all.
//!
//! A register write that belongs to a shadow value which was consumed long ago must not count: going back to
//! it would run commands a second time. Where register writes arrive in the driver's order (a mapped page, a
//! host that answers each write) the order of the two loads sees to that: what was written before the shadow
//! value that was seen is visible to the load of the register that comes after it. Where they are posted, a
//! message that overtakes nothing but arrives late ([`Doorbell::with_posted_registers`]), the positions tell:
//! writes arrive in order, so a late one lies between the last register value and the last shadow value, and
//! a new one doesn't. After a whole lap by the shadow alone they can't be told apart, and from then on register
//! writes are only hints.
//!
//! # Why no wake-up is lost
//!
//! Going to sleep is Dekker's protocol. The device stores EventIdx, executes a sequentially consistent fence
//! and loads the shadow ([`Doorbell::arm`]); the driver stores the shadow, executes a full barrier (Linux: the
//! `mb()` in its dbbuf update; SPDK: its memory barrier before it looks at EventIdx) and loads EventIdx. With
//! both fences at least one side sees the other's store: either the device finds the shadow moved and stays
//! awake, or the driver finds EventIdx at its old position and writes the register. `core/tests/loom.rs` runs
//! this module against both drivers' rules and shows that either fence's absence is found.
//!
//! While polling, EventIdx is kept one entry *behind* the position, `(position + size - 1) mod size`: with
//! Linux's rule that asks for no register write at all, with SPDK's for one per completely filled ring.

mod state;

use crate::memory::{DmaError, DmaMemory};
use crate::message::DoorbellBuffer;
use crate::queue::{behind, distance};
use crate::sync::{AtomicU32, Ordering, fence};

/// The doorbell registers at 1000h of the device's register space with stride 0 (CAP.DSTRD 0): the tail of
/// submission queue `q` at index 2q, the head of completion queue `q` at 2q + 1.
///
/// Whoever receives a doorbell write stores it here: the guest itself through a mapping, or the host.
pub type Registers = [AtomicU32];

/// The index of a submission queue's tail doorbell.
#[must_use]
pub const fn tail_index(qid: u16) -> u32 {
    (qid as u32).wrapping_mul(2)
}

/// The index of a completion queue's head doorbell.
#[must_use]
pub const fn head_index(qid: u16) -> u32 {
    (qid as u32).wrapping_mul(2).wrapping_add(1)
}

/// What a register holds whose value has been taken, so that a driver which writes the same value again, a lap
/// later, is noticed. No queue has such a position.
const TAKEN: u32 = 0xdb0f_f5ed;

/// Attempts to store a register value into the shadow while the driver moves the shadow. More moves than these
/// in that many instructions aren't the work of a driver that writes the register alone.
const EXCHANGES: u32 = 3;

/// Stores 0 into the register at `index`, as a queue's creation and a controller's reset do.
pub fn clear_register(registers: &Registers, index: u32) {
    if let Some(register) = registers.get(index as usize) {
        register.store(0, Ordering::Relaxed);
    }
}

/// Marks a register as looked at; whether it still held `value`.
fn mark_taken(registers: &Registers, index: u32, value: u32) -> bool {
    registers.get(index as usize).is_some_and(|register| {
        register.compare_exchange(value, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    })
}

/// Takes a register's value, unless it has been taken since the driver wrote it.
fn take_register(registers: &Registers, index: u32) -> Option<u32> {
    let value = registers.get(index as usize)?.swap(TAKEN, Ordering::Relaxed);
    (value != TAKEN).then_some(value)
}

fn load_register(registers: &Registers, index: u32) -> u32 {
    registers.get(index as usize).map_or(0, |register| register.load(Ordering::Relaxed))
}

/// One doorbell, from the device's side.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell {
    index: u32,
    /// The register's value when it was looked at last; [`TAKEN`] once the shadow is in use.
    register: u32,
    /// Register writes may arrive after later stores into the shadow.
    posted_registers: bool,
    /// How many entries the register is known to lag behind the position; the queue's size or more: unknown.
    lag: u32,
    shadow: Option<Shadow>,
}

/// A doorbell's entries in the two buffers.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    /// Guest address of the Shadow Doorbell entry.
    address: u64,
    /// Guest address of the EventIdx entry.
    event_idx: u64,
    /// What the shadow held when it was looked at or stored into last.
    seen: u32,
    /// What EventIdx holds.
    published: u32,
}

/// Why a doorbell could not be looked at or armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DoorbellError {
    /// The value is not below the queue's size; it was dropped and won't be reported again.
    Invalid(u32),
    /// The buffer's memory is gone.
    Dma,
}

impl From<DmaError> for DoorbellError {
    fn from(_: DmaError) -> Self {
        Self::Dma
    }
}

impl Doorbell {
    /// The doorbell at `index`, whose register holds 0.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self { index, register: 0, posted_registers: false, lag: 0, shadow: None }
    }

    /// The same doorbell for a host whose driver doesn't wait until a register write has been stored into
    /// [`Registers`], so that a write may be found after stores into the shadow that the driver did later.
    #[must_use]
    pub const fn with_posted_registers(self, posted_registers: bool) -> Self {
        Self { posted_registers, ..self }
    }

    /// Whether the shadow is in use.
    #[must_use]
    pub const fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// Seeds both entries of `buffer` with `position` and uses the shadow from now on. A shadow that is in use
    /// already is left as it is: the driver may be storing into it.
    ///
    /// # Errors
    /// Where either entry can't be written; the doorbell is then unchanged.
    pub fn attach(
        &mut self,
        memory: &impl DmaMemory,
        buffer: DoorbellBuffer,
        position: u32,
    ) -> Result<(), DmaError> {
        let offset = u64::from(self.index).wrapping_mul(4);
        let address = buffer.shadow.checked_add(offset).ok_or(DmaError)?;
        let event_idx = buffer.event_idx.checked_add(offset).ok_or(DmaError)?;
        memory.store_u32(event_idx, position)?;
        let seen = match self.shadow {
            Some(old) if old.address == address => old.seen,
            _ => {
                memory.store_u32(address, position)?;
                position
            }
        };
        self.shadow = Some(Shadow { address, event_idx, seen, published: position });
        Ok(())
    }

    /// Goes back to the register alone.
    pub fn detach(&mut self) {
        self.shadow = None;
    }

    /// Looks for a new value. `position` is the last value taken, `size` the queue's entries.
    ///
    /// `Ok(None)` where nothing has moved. A value that is returned is below `size`, and everything that the
    /// driver wrote before it is visible (acquire).
    ///
    /// # Errors
    /// [`DoorbellError::Invalid`] for a value that no queue of this size has, [`DoorbellError::Dma`] where the
    /// shadow can't be loaded.
    #[inline]
    pub fn poll(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        position: u32,
        size: u32,
    ) -> Result<Option<u32>, DoorbellError> {
        let value = match self.shadow {
            None => {
                let register = load_register(registers, self.index);
                if register == self.register {
                    return Ok(None);
                }
                self.register = register;
                self.lag = 0;
                register
            }
            Some(ref mut shadow) => {
                let loaded = memory.load_u32(shadow.address)?;
                let moved = loaded != shadow.seen;
                if moved {
                    // Pairs with the driver's barrier between a register write and its next store into the
                    // shadow: the register is seen no older than the shadow.
                    fence(Ordering::Acquire);
                }
                let rung = load_register(registers, self.index) != self.register;
                if !rung && self.register != TAKEN && mark_taken(registers, self.index, self.register) {
                    self.register = TAKEN;
                }
                match (moved, rung) {
                    (false, false) => return Ok(None),
                    (true, false) => {
                        shadow.seen = loaded;
                        if loaded < size {
                            let ahead = distance(position, loaded, size);
                            self.lag = self.lag.saturating_add(ahead).min(size);
                        }
                        loaded
                    }
                    (moved, true) => {
                        self.reconcile(memory, registers, moved.then_some(loaded), position, size)?
                    }
                }
            }
        };
        if value >= size {
            return Err(DoorbellError::Invalid(value));
        }
        if value == position {
            return Ok(None);
        }
        // Pairs with the driver's write barrier between the queue's entries and its doorbell.
        fence(Ordering::Acquire);
        Ok(Some(value))
    }

    /// The register has moved, and the shadow where `moved` holds its value: the newer of the two, which both
    /// hold afterwards.
    #[cold]
    fn reconcile(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        mut moved: Option<u32>,
        position: u32,
        size: u32,
    ) -> Result<u32, DmaError> {
        let lag = self.lag;
        let mut value = position;
        let mut newest = None;
        self.register = TAKEN;
        for _ in 0..EXCHANGES {
            newest = take_register(registers, self.index).or(newest);
            let Some(shadow) = &mut self.shadow else { return Ok(value) };
            if let Some(loaded) = moved {
                shadow.seen = loaded;
                if loaded >= size {
                    return Ok(loaded);
                }
                value = loaded;
            }
            let (address, seen) = (shadow.address, shadow.seen);
            let Some(register) = newest else { return Ok(value) };
            if register >= size {
                // For the caller to report, unless the shadow has better.
                return Ok(if moved.is_some() { value } else { register });
            }
            if !self.counts(register, position, value, lag, size) {
                return Ok(value);
            }
            // A driver stores the shadow before the register (its write barrier between the two), so the
            // exchange finds what belongs to this register write.
            fence(Ordering::Acquire);
            let found = memory.compare_exchange_u32(address, seen, register)?;
            if found == seen {
                if let Some(shadow) = &mut self.shadow {
                    shadow.seen = register;
                }
                return Ok(register);
            }
            // As in `poll`.
            fence(Ordering::Acquire);
            moved = Some(found);
        }
        Ok(value)
    }

    /// Whether a register write is newer than `value`, the newest that is known from the shadow.
    ///
    /// Both lie ahead of `position` by less than a lap, since the driver can't have filled the ring twice; only
    /// a late register write lies behind it. `lag` is the lag at `position`.
    fn counts(&mut self, register: u32, position: u32, value: u32, lag: u32, size: u32) -> bool {
        let known = distance(position, value, size);
        let (ahead, back) = (distance(position, register, size), distance(register, position, size));
        let late = self.posted_registers && (lag >= size || back < lag);
        if late {
            let behind_position = if lag >= size { size } else { back };
            self.lag = behind_position.saturating_add(known).min(size);
            return false;
        }
        self.lag = known.saturating_sub(ahead);
        ahead > known
    }

    /// While polling: keeps EventIdx one entry behind `position`, so that the driver writes no register.
    ///
    /// # Errors
    /// Where EventIdx can't be stored.
    #[inline]
    pub fn publish(&mut self, memory: &impl DmaMemory, position: u32, size: u32) -> Result<(), DmaError> {
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        let value = behind(position, size);
        if shadow.published != value {
            memory.store_u32(shadow.event_idx, value)?;
            shadow.published = value;
        }
        Ok(())
    }

    /// Before sleeping: asks the driver to write the register at its next move from `position`, and says
    /// whether it has moved already (then the device must not sleep; [`Doorbell::poll`] will find it).
    ///
    /// # Errors
    /// Where the buffers can't be accessed.
    pub fn arm(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        position: u32,
    ) -> Result<bool, DmaError> {
        let moved = match &mut self.shadow {
            None => false,
            Some(shadow) => {
                memory.store_u32(shadow.event_idx, position)?;
                shadow.published = position;
                // Pairs with the driver's full barrier between its store to the shadow and its load of
                // EventIdx: one of the two loads must see the other side's store.
                fence(Ordering::SeqCst);
                memory.load_u32(shadow.address)? != shadow.seen
            }
        };
        Ok(moved || load_register(registers, self.index) != self.register)
    }
}
