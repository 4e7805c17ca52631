//! What can be wrong with a module before it runs, and what ends a tenant's run.

use std::path::PathBuf;

/// Why a module isn't loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The engine can't be set up on this machine.
    #[error("the sandbox engine can't be set up: {0}")]
    Engine(String),
    /// The file can't be read.
    #[error("{path} can't be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than [`MAX_MODULE_BYTES`](crate::MAX_MODULE_BYTES).
    #[error("the module has {0} bytes, more than {max}", max = crate::MAX_MODULE_BYTES)]
    TooLarge(usize),
    /// Not a module of the WASM that the sandbox speaks.
    #[error("not a module for this sandbox: {0}")]
    Invalid(String),
    /// It imports something other than `dma_read` and `dma_write`.
    #[error("the module imports {0}, and a module gets doorbell.dma_read and doorbell.dma_write only")]
    Import(String),
    /// An export is missing or has another type.
    #[error("the module doesn't export {0} as the interface demands (see ABI.md)")]
    Export(&'static str),
    /// Its memory can grow, is shared, or is larger than the quota.
    #[error(
        "the module's memory must have equal minimum and maximum of at most {limit} bytes, and has {found}"
    )]
    Memory {
        /// The quota.
        limit: u64,
        /// What it has.
        found: String,
    },
    /// A compiled module isn't the one whose digest was given.
    #[error("the compiled module's SHA-256 is {found}, not {expected}: compile it again")]
    Digest {
        /// What was given.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The folder of compiled modules can be written by others.
    #[error(
        "{0} can be written by others than its owner, so compiled modules in it can't be trusted: chmod go-w"
    )]
    CacheNotPrivate(PathBuf),
    /// The folder of compiled modules can't be used.
    #[error("{path} can't be used for compiled modules: {source}")]
    Cache {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What ended a tenant's run: its module broke a rule. The guest sees CSTS.CFS until it resets the controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A trap: out of bounds, stack overflow, `unreachable`.
    #[error("trap: {0}")]
    Trap(String),
    /// A call ran longer than [`Quotas::call_time`](crate::Quotas::call_time).
    #[error("a call ran too long and was stopped")]
    Overrun,
    /// A call moved more bytes than [`Quotas::dma_bytes`](crate::Quotas::dma_bytes).
    #[error("a call moved more bytes of guest memory than its quota")]
    DmaQuota,
    /// What it left in its memory isn't what the interface allows.
    #[error("the module broke the interface: {0}")]
    Interface(&'static str),
    /// No instance could be made.
    #[error("no instance could be made: {0}")]
    Instance(String),
    /// The host asked for it.
    #[error("stopped by the host")]
    Killed,
}
