//! Doorbell's controller as a WASM sandbox for VMMs: the same core as a module, one sandbox for each tenant.
//!
//! # For whom
//!
//! For people who write a VMM and don't want one tenant's device to reach another's. The module holds the whole
//! controller: registers, admin commands, queues. The host holds what the module must not: guest memory, storage,
//! interrupts, time. It calls the module, checks what it says, and only then does it.
//!
//! # How it is put together
//!
//! [`Engine`] compiles modules and owns a pool of instances; [`Module`] is a compiled one that has been checked to
//! import nothing but guest memory; [`Sandbox`] is a tenant. Its [`SandboxedController`] and [`SandboxedGroup`]
//! implement the core's own [`ControllerEngine`](doorbell_core::engine::ControllerEngine) and
//! [`GroupEngine`](doorbell_core::engine::GroupEngine), so whatever drives a native controller drives a sandboxed
//! one. Guest memory is any [`DmaMemory`](doorbell_core::memory::DmaMemory); [`GuestRam`] is one for `vm-memory`.
//!
//! # What a malicious module can do
//!
//! Suppose that a guest has taken its module over completely. It can then
//!
//! * read and write its own guest's memory: a device can do that by DMA anyway;
//! * read, write and discard its own namespaces, within their bounds, as its guest can;
//! * raise its own interrupt vectors, and report nonsense about its own queues;
//! * stop: its guest loses its disk until the next reset.
//!
//! It can't reach anything else, for these reasons:
//!
//! | what it might try | what stands in its way |
//! | --- | --- |
//! | memory of the host or of another tenant | linear memory with guard pages, checked by the compiler; imports check `ptr` and `len` against it; every guest address is looked up in that guest's memory and nowhere else |
//! | system calls, files, network, time | two imports and no other; a module with a third isn't loaded |
//! | an endless loop, anywhere, start function included | epochs: it is stopped after [`Quotas::call_time`] of its thread's processor time |
//! | endless recursion | its stack is bounded, an overflow traps |
//! | more memory | minimum and maximum are equal, or it isn't loaded |
//! | guest memory moved without end | [`Quotas::dma_bytes`] a call |
//! | a range beyond its namespace, more than MDTS, a write to a read-only namespace | checked before the command is given out |
//! | a tag twice, a tag that doesn't exist | the host's own table of what is outstanding |
//! | saying that a reset is over while the host still copies | the host's own count of what is outstanding |
//! | floods of messages, events, interrupts | lists of fixed length, one answer a request, one interrupt a queue |
//! | failing again and again | one fresh start a second |
//!
//! Data pointers leave the module as they stood in the command, and the host walks them with the core's own
//! [`Segments`](doorbell_core::data::Segments), in bounded steps and without a path that panics; that way a list is
//! read once, by whoever moves the data. A module could name any list and any address in it, which is no more than
//! its guest can.
//!
//! # What isn't covered
//!
//! * **Side channels.** Tenants share caches, branch predictors and memory bandwidth. Cranelift masks the index of
//!   bounds-checked accesses against speculation where it emits explicit checks, and heap accesses rely on guard
//!   pages; that is no defence against every form of speculative execution. A module has no clock, so measuring
//!   is up to its guest, which has one. Tenants who mustn't share a core mustn't share a poller thread either.
//! * **Faults of the engine or the compiler** (wasmtime, Cranelift): a sandbox is as good as they are. Keep them
//!   up to date, and run the host itself with few privileges.
//! * **Compiled modules** are machine code. They are run only from bytes whose SHA-256 is known
//!   ([`Module::precompiled`]) or from a folder that only this user can write to ([`Module::cached`]).
//! * **Fairness of a shared poller** beyond the bound of a call: a module that uses its time up in every call gets its
//!   share of the thread as any busy guest does. It is stopped at the bound, not below it.
//! * **A guest that truncates the file behind its memory**: that concerns every host, sandboxed or not.

mod controller;
mod engine;
mod error;
mod export;
mod group;
mod guest_ram;
mod instance;
mod lend;
mod mirror;
mod module;
mod sandbox;
mod upgrade;

pub use controller::SandboxedController;
pub use engine::{Engine, EngineConfig};
pub use error::{Fault, LoadError};
pub use group::SandboxedGroup;
pub use guest_ram::GuestRam;
pub use instance::Quotas;
pub use module::{MAX_MODULE_BYTES, Module, ModuleDigest};
pub use sandbox::{RESTART_INTERVAL, Sandbox, SandboxConfig, SandboxStatistics};
