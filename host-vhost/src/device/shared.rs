//! What the threads of a device share.
//!
//! Everything that changes at run time has snapshots: a change makes a new one and moves a generation on, and a
//! poller compares generations once a turn (loads of lines that nobody writes meanwhile). There is no lock on
//! the way of a command.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{ControlMail, DoorbellMode, MAX_GROUPS};
use crate::doorbell_page::DoorbellPage;
use crate::interrupt::Interrupts;
use crate::mailbox::Mailbox;
use crate::memory::SharedMap;
use crate::storage::Storage;

/// The storages of a device; the one of namespace `n` at `n - 1`.
pub type Storages = Arc<Vec<Option<Arc<dyn Storage>>>>;

/// What the threads of a device share.
#[derive(Debug)]
pub struct DeviceShared {
    /// Guest memory.
    pub memory: Arc<SharedMap>,
    /// The doorbell registers.
    pub doorbells: DoorbellPage,
    /// How they are reached.
    pub doorbell_mode: DoorbellMode,
    /// Where interrupts go.
    pub interrupts: Arc<Interrupts>,
    /// Messages to the control thread.
    pub control: Mailbox<ControlMail>,
    storage_generation: AtomicU64,
    storages: Mutex<Storages>,
    enabled: AtomicBool,
    pin_based: AtomicBool,
    /// Groups whose completion queues have unread entries, by bit; the admin queue is bit [`MAX_GROUPS`].
    levels: AtomicU32,
    level_masked: AtomicBool,
    /// Held while the pin follows from the two above.
    pin: Mutex<()>,
}

impl DeviceShared {
    /// A device without memory, with these storages.
    ///
    /// # Errors
    /// The system is out of file descriptors or memory.
    pub fn new(vectors: u16, doorbell_mode: DoorbellMode, storages: Storages) -> std::io::Result<Self> {
        Ok(Self {
            memory: SharedMap::new(),
            doorbells: DoorbellPage::new()?,
            doorbell_mode,
            interrupts: Interrupts::new(vectors),
            control: Mailbox::new()?,
            storage_generation: AtomicU64::new(1),
            storages: Mutex::new(storages),
            enabled: AtomicBool::new(false),
            pin_based: AtomicBool::new(true),
            levels: AtomicU32::new(0),
            level_masked: AtomicBool::new(false),
            pin: Mutex::new(()),
        })
    }

    /// Moves on with every change of the storages.
    #[inline]
    #[must_use]
    pub fn storage_generation(&self) -> u64 {
        self.storage_generation.load(Ordering::Acquire)
    }

    /// The storages as they are now.
    #[must_use]
    pub fn storages(&self) -> Storages {
        Arc::clone(&self.storages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a storage in the place of namespace `nsid`, or takes it away.
    pub fn set_storage(&self, nsid: u32, storage: Option<Arc<dyn Storage>>) {
        let Some(index) = (nsid as usize).checked_sub(1) else { return };
        let mut current = self.storages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Vec::clone(&current);
        if next.len() <= index {
            next.resize(index + 1, None);
        }
        next[index] = storage;
        *current = Arc::new(next);
        self.storage_generation.fetch_add(1, Ordering::Release);
    }

    /// Whether a guest may write doorbells without anybody being told, so that pollers have to look.
    #[inline]
    #[must_use]
    pub fn must_be_watched(&self) -> bool {
        self.doorbell_mode == DoorbellMode::Mapped && self.enabled.load(Ordering::Relaxed)
    }

    /// Says whether the controller is enabled; only then doorbells mean anything. Returns whether that is new.
    pub fn set_enabled(&self, enabled: bool) -> bool {
        self.enabled.swap(enabled, Ordering::Relaxed) != enabled
    }

    /// Whether interrupts are pin-based (INTx), a level that falls when the guest has taken the completions.
    #[inline]
    #[must_use]
    pub fn is_pin_based(&self) -> bool {
        self.pin_based.load(Ordering::Relaxed)
    }

    /// Says whether interrupts are pin-based: the client doesn't use MSI-X.
    pub fn set_pin_based(&self, pin_based: bool) {
        self.pin_based.store(pin_based, Ordering::Relaxed);
    }

    /// Says whether `source` (a group, or [`MAX_GROUPS`] for the admin queue) wants INTx asserted.
    pub fn set_level(&self, source: usize, asserted: bool) {
        let bit = 1u32 << source.min(MAX_GROUPS);
        // Only the source itself sets its bit, and mostly it says the same again.
        if (self.levels.load(Ordering::Relaxed) & bit != 0) == asserted {
            return;
        }
        let before = if asserted {
            self.levels.fetch_or(bit, Ordering::AcqRel)
        } else {
            self.levels.fetch_and(!bit, Ordering::AcqRel)
        };
        if (before & bit != 0) != asserted {
            self.update_pin();
        }
    }

    /// INTMS: whether the guest has masked the interrupt.
    pub fn set_level_masked(&self, masked: bool) {
        if self.level_masked.swap(masked, Ordering::AcqRel) != masked {
            self.update_pin();
        }
    }

    /// After a change. Whoever comes last sees every change, so two threads can't leave an old level behind.
    fn update_pin(&self) {
        let _pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner);
        let asserted = self.levels.load(Ordering::Acquire) != 0 && !self.level_masked.load(Ordering::Acquire);
        self.interrupts.set_intx(asserted);
    }
}
