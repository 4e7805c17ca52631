//! The engine: how modules are compiled and instances are laid out, and the clock that stops runaways.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use wasmtime::{
    Config, InstanceAllocationStrategy, Linker, OptLevel, PoolingAllocationConfig, Strategy, WasmFeatures,
};

use crate::error::LoadError;
use crate::instance::{Data, define_imports};

/// Length of an epoch: how often a running module looks whether it has run for too long.
pub(crate) const EPOCH: Duration = Duration::from_millis(1);

/// Bytes of stack that a module may use.
const STACK_BYTES: usize = 256 << 10;

/// Bytes at the low end of linear memory that stay resident in a slot that nobody uses. The project's module has its
/// stack there, its constants, and what instances touch first.
const KEPT_BYTES: usize = 16 << 10;

/// What an engine is made with.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Instances that may exist at once. A tenant has one for its controller and one for each group. Address
    /// space is reserved for each.
    pub instances: u32,
    /// Bytes of linear memory that an instance may have.
    pub memory_bytes: u64,
}

impl EngineConfig {
    /// 1,000 instances of at most 1 MiB.
    pub const DEFAULT: Self = Self { instances: 1000, memory_bytes: 1 << 20 };
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Compiles modules and owns the pool that instances come from. One for a process; clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    config: EngineConfig,
    engine: wasmtime::Engine,
    linker: Linker<Data>,
    stop: AtomicBool,
}

impl Engine {
    /// An engine and its clock, a thread that lives as long as the engine.
    ///
    /// # Errors
    /// Where the address space for the instances can't be reserved or there is no thread.
    pub fn new(config: EngineConfig) -> Result<Self, LoadError> {
        let failed = |error: wasmtime::Error| LoadError::Engine(format!("{error:#}"));
        let engine = wasmtime::Engine::new(&settings(&config)).map_err(failed)?;
        let mut linker = Linker::new(&engine);
        define_imports(&mut linker).map_err(failed)?;
        let inner = Arc::new(Inner { config, engine, linker, stop: AtomicBool::new(false) });
        let clock = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("wasm-epochs".into())
            .spawn(move || tick(&clock))
            .map_err(|error| LoadError::Engine(error.to_string()))?;
        Ok(Self { inner })
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.inner.engine
    }

    pub(crate) fn linker(&self) -> &Linker<Data> {
        &self.inner.linker
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn tick(engine: &Weak<Inner>) {
    // Runaways end when this thread runs, so it goes before them where it may (on Linux this is of the thread alone).
    let _ = rustix::process::setpriority_process(None, -10);
    // Holds the engine only for an instant, so that it can go.
    while let Some(inner) = engine.upgrade() {
        if inner.stop.load(Ordering::Relaxed) {
            return;
        }
        inner.engine.increment_epoch();
        drop(inner);
        std::thread::sleep(EPOCH);
    }
}

fn settings(config: &EngineConfig) -> Config {
    let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(config.instances)
        .total_memories(config.instances)
        .total_tables(config.instances)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .table_elements(64)
        .max_memory_size(memory_bytes)
        // A slot that is used again is zeroed in place up to here, and given back to the system beyond. Not by
        // `pagemap_scan`: that zeroes the pages which the kernel shows as present, so it leaves those that are
        // swapped out or being moved to the next tenant.
        .linear_memory_keep_resident(KEPT_BYTES)
        .max_unused_warm_slots(config.instances.min(64));
    let mut settings = Config::new();
    settings
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        // A module's constants are copied: the project's have 300 bytes, and a mapping of them in every slot would
        // cost a system call, a page fault, and two more of the mappings that a process may have.
        .memory_init_cow(false)
        // Every access is checked by the guard pages behind a slot's 4 GiB.
        .epoch_interruption(true)
        .consume_fuel(false)
        .max_wasm_stack(STACK_BYTES)
        .wasm_backtrace_max_frames(None)
        // Nothing but what compilers emit for `no_std` code.
        .wasm_features(
            WasmFeatures::THREADS
                | WasmFeatures::RELAXED_SIMD
                | WasmFeatures::SIMD
                | WasmFeatures::TAIL_CALL
                | WasmFeatures::MULTI_MEMORY
                | WasmFeatures::MEMORY64
                | WasmFeatures::EXTENDED_CONST
                | WasmFeatures::REFERENCE_TYPES,
            false,
        );
    settings
}
