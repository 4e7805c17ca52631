//! The binary interface between a sandboxed module and its host: fixed-width little-endian records in the
//! module's linear memory. `host-wasm/ABI.md` describes it for people who write a module in another language.
//!
//! Both sides compile this crate. Encoding can't fail; decoding refuses what no record means. Nothing in here
//! panics, since the module has no panic path.
//!
//! # Live upgrade
//!
//! Five exports that a module has all together or not at all; without them its tenants can't be upgraded while
//! they run. States are those of `doorbell_core::state`: plain, versioned bytes.
//!
//! | export | |
//! | --- | --- |
//! | `state_buffer() -> i64` | where states are passed: address in bits 63:32, bytes in bits 31:0 |
//! | `controller_save() -> i32` | leaves the controller's state in the buffer; its bytes, or 0 where it can't. The controller goes on |
//! | `controller_load(len: i32) -> i32` | goes on with the state in the first `len` bytes, and leaves the state record; 1 where it can't |
//! | `group_save() -> i32` | as for the controller |
//! | `group_load(len: i32) -> i32` | as for the controller; whether the group is paused doesn't change |
//!
//! A host calls `*_save` when it has taken every list and passed every completion, and `*_load` after `*_init`.
//! It checks what was saved, and has a module save again what it has just loaded, before it relies on it. Storages
//! are the host's: a module takes every namespace of a state.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod command;
mod controller;
mod layout;
mod message;

pub use command::{CommandRecord, CompletionRecord, WriteKind, WriteRecord};
pub use controller::{
    ConfigRecord, CountersRecord, HostOutput, NamespaceRecord, StateRecord, namespace_error,
    namespace_error_code, reset_kind, reset_kind_code,
};
pub use layout::{Field, LAYOUT_WORDS, MAGIC};
pub use message::{MessageRecord, QueueRecord, StatisticsRecord, TurnInput, TurnRecord};

/// The version of the interface; a host refuses another.
pub const ABI_VERSION: u32 = 1;

/// The module's imports, both from the import module [`IMPORTS`].
pub const IMPORTS: &str = "doorbell";

/// `dma_read(address: i64, ptr: i32, len: i32) -> i32` copies guest memory into the module's memory.
pub const DMA_READ: &str = "dma_read";

/// `dma_write(address: i64, ptr: i32, len: i32) -> i32` copies the module's memory into guest memory.
pub const DMA_WRITE: &str = "dma_write";

/// As `ptr` of an import: nothing is copied, the answer only says whether the range can be accessed that way.
pub const CHECK_ONLY: u32 = u32::MAX;

/// `now_ns` of `group_poll` that says: don't decide about interrupts.
pub const NO_INTERRUPTS: u64 = u64::MAX;

/// No time.
pub const NEVER: u64 = u64::MAX;

/// Bytes of the scratch area that records are passed in.
pub const SCRATCH_BYTES: usize = 512;
