//! How drivers ring doorbells.

use super::RamMemory;
use crate::memory::DmaMemory;
use crate::message::DoorbellBuffer;
use crate::sync::{Ordering, fence};

/// The rule by which a driver decides whether a move of a shadow doorbell needs the register too. All
/// arithmetic is modulo 65,536, whatever the queue's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowRule {
    /// Linux: the move passes EventIdx.
    Linux,
    /// SPDK: the move passes EventIdx or starts or ends there.
    Spdk,
}

impl ShadowRule {
    /// Whether the register has to be written for a move from `old` to `new`.
    #[must_use]
    pub const fn needs_register(self, event_idx: u32, old: u32, new: u32) -> bool {
        let (event_idx, old, new) = (event_idx as u16, old as u16, new as u16);
        let moved = new.wrapping_sub(old);
        match self {
            Self::Linux => new.wrapping_sub(event_idx).wrapping_sub(1) < moved,
            Self::Spdk => new.wrapping_sub(event_idx) <= moved,
        }
    }

    /// Stores `new` into a shadow doorbell; whether the register has to be written.
    #[must_use]
    pub fn store(self, memory: &RamMemory, buffer: DoorbellBuffer, index: u32, new: u32) -> bool {
        let offset = u64::from(index) * 4;
        // Between the queue's entries and the shadow.
        fence(Ordering::Release);
        let old = memory.load_u32(buffer.shadow + offset).expect("a shadow buffer in guest memory");
        memory.store_u32(buffer.shadow + offset, new).expect("a shadow buffer in guest memory");
        // Between the store to the shadow and the load of EventIdx; pairs with the fence in `Doorbell::arm`.
        fence(Ordering::SeqCst);
        let event_idx = memory.load_u32(buffer.event_idx + offset).expect("a buffer in guest memory");
        self.needs_register(event_idx, old, new)
    }
}

/// The way one doorbell is rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The register alone.
    Register,
    /// The shadow, and the register where the rule asks for it.
    Shadow(ShadowRule),
    /// The shadow and the register, whether asked for or not.
    Both,
}
