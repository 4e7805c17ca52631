//! A tenant: what its controller and its groups have in common.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_core::controller::ControllerConfig;

use crate::controller::SandboxedController;
use crate::error::Fault;
use crate::group::SandboxedGroup;
use crate::instance::{Instance, Quotas};
use crate::module::Module;

/// Time between two fresh starts of a tenant whose module keeps failing.
pub const RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// What a sandbox is made with.
#[derive(Clone, Copy, Debug)]
pub struct SandboxConfig {
    /// The controller's configuration.
    pub controller: ControllerConfig,
    /// Register writes may arrive after later stores into a shadow doorbell
    /// ([`GroupConfig`](doorbell_core::group::GroupConfig)).
    pub posted_registers: bool,
    /// What a call may use.
    pub quotas: Quotas,
    /// Places that the VMM has for the commands of a group: the slots of their tags lie below. A module that uses
    /// others is ended.
    pub command_slots: u16,
}

impl SandboxConfig {
    /// [`ControllerConfig::DEFAULT`] under [`Quotas::DEFAULT`], with as many places as the project's module has.
    pub const DEFAULT: Self = Self {
        controller: ControllerConfig::DEFAULT,
        posted_registers: false,
        quotas: Quotas::DEFAULT,
        command_slots: 1024,
    };
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Counters of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxStatistics {
    /// Calls into the module by its groups' polls.
    pub polls: u64,
    /// Commands that came out of it and were checked.
    pub commands: u64,
    /// Bytes of guest memory that it moved itself; user data isn't among them.
    pub dma_bytes: u64,
    /// Times its module broke a rule.
    pub faults: u64,
    /// Fresh starts after that.
    pub restarts: u64,
}

/// One tenant of a host: a module, quotas, and the instances that its controller and its groups run in.
///
/// Clones are the same tenant. A controller instance belongs on the host's control thread and a group instance on
/// its poller; they share nothing but messages. Where one of them breaks a rule, the tenant has *failed*: none of
/// its instances is called any more, its guest sees CSTS.CFS, and with the guest's next controller reset it starts
/// anew with fresh instances, at most once in [`RESTART_INTERVAL`].
#[derive(Clone, Debug)]
pub struct Sandbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) module: Module,
    pub(crate) config: SandboxConfig,
    /// Running calls end at their next epoch.
    stop: Arc<AtomicBool>,
    failed: AtomicBool,
    killed: AtomicBool,
    fault: Mutex<Option<Fault>>,
    last_restart: Mutex<Option<Instant>>,
    polls: AtomicU64,
    commands: AtomicU64,
    dma_bytes: AtomicU64,
    faults: AtomicU64,
    restarts: AtomicU64,
}

impl Sandbox {
    /// A tenant that will run `module`; nothing of it has run yet.
    #[must_use]
    pub fn new(module: &Module, config: SandboxConfig) -> Self {
        let shared = Shared {
            module: module.clone(),
            config,
            stop: Arc::new(AtomicBool::new(false)),
            failed: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            fault: Mutex::new(None),
            last_restart: Mutex::new(None),
            polls: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            dma_bytes: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The tenant's controller. One for a sandbox.
    ///
    /// # Errors
    /// Where the module fails before it has begun.
    pub fn controller(&self) -> Result<SandboxedController, Fault> {
        SandboxedController::new(Arc::clone(&self.shared))
    }

    /// One of the tenant's queue groups.
    ///
    /// # Errors
    /// Where the module fails before it has begun.
    pub fn group(&self) -> Result<SandboxedGroup, Fault> {
        SandboxedGroup::new(Arc::clone(&self.shared))
    }

    /// Ends the tenant for good: a call that is running ends within two epochs (about 2 ms), no other follows.
    pub fn kill(&self) {
        self.shared.killed.store(true, Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.fail(Fault::Killed);
    }

    /// What the module did last that it mustn't, if it did.
    #[must_use]
    pub fn last_fault(&self) -> Option<Fault> {
        lock(&self.shared.fault).clone()
    }

    /// Whether the tenant has failed and not started anew.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.shared.is_failed()
    }

    /// The counters.
    #[must_use]
    pub fn statistics(&self) -> SandboxStatistics {
        let shared = &self.shared;
        SandboxStatistics {
            polls: shared.polls.load(Ordering::Relaxed),
            commands: shared.commands.load(Ordering::Relaxed),
            dma_bytes: shared.dma_bytes.load(Ordering::Relaxed),
            faults: shared.faults.load(Ordering::Relaxed),
            restarts: shared.restarts.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    #[inline]
    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// What has failed the tenant.
    pub(crate) fn fault(&self) -> Fault {
        lock(&self.fault).clone().unwrap_or(Fault::Killed)
    }

    /// The tenant has failed. Says so in the log, once for each failure.
    #[cold]
    pub(crate) fn fail(&self, fault: Fault) {
        let mut last = lock(&self.fault);
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        // Once a restart, so at most once a second.
        tracing::warn!(serial = ?self.config.controller.serial, %fault, "sandboxed controller failed");
        *last = Some(fault);
    }

    /// A fresh instance of the module.
    pub(crate) fn instance(&self) -> Result<Instance, Fault> {
        Instance::new(&self.module, self.config.quotas, Arc::clone(&self.stop))
    }

    /// Whether the tenant may start anew now.
    pub(crate) fn may_restart(&self) -> bool {
        if self.killed.load(Ordering::Relaxed) {
            return false;
        }
        lock(&self.last_restart).is_none_or(|last| last.elapsed() >= RESTART_INTERVAL)
    }

    /// The tenant starts anew: its instances may be called again.
    pub(crate) fn restarted(&self) {
        *lock(&self.last_restart) = Some(Instant::now());
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.failed.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn count_poll(&self, commands: u64, dma_bytes: u64) {
        // One writer for most tenants; several groups may lose a count against each other, and save the locks.
        for (counter, by) in [(&self.polls, 1), (&self.commands, commands), (&self.dma_bytes, dma_bytes)] {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }
}

/// A panic of another thread leaves nothing half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
