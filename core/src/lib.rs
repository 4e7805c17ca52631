//! An NVMe controller as a device model: `no_std`, allocation-free, sans-I/O.
//!
//! In this crate *driver* or *guest* is what the NVMe specification calls the host, and *host* is only the
//! program that embeds this crate.
//!
//! ```text
//!          doorbell writes (any thread, atomic stores, or the guest itself through a mapped page)
//!                         |
//!  MMIO < 1000h    +------v------+
//! ---------------> |  registers  |------------------------------+
//! |                +-------------+                              |
//! v                                                             v
//! +-------------+  GroupRequest (queues, doorbell buffer, +--------------+  IoCommand   +---------+
//! | Controller  |  namespaces, abort, reset)              |  QueueGroup  | -----------> | storage |
//! | registers,  | --------- carried by the host --------> |  CQs + every |              | of that |
//! | admin queue | <-------------- GroupMessage ---------- |  SQ on them  | <----------- | thread  |
//! +-------------+                                         +--------------+ complete(tag)+---------+
//!  control thread                                          one polling thread each (1..n)
//! ```
//!
//! * [`Controller`](controller::Controller) owns the registers, the admin queue pair, Identify data,
//!   features, log pages, asynchronous events and namespaces. It is never on the I/O path.
//! * [`QueueGroup`](group::QueueGroup) owns I/O completion queues and every I/O submission queue that names
//!   one of them. One thread owns a group by `&mut`, so the I/O path has no lock and no atomic of its own.
//! * [`ConfigSpace`](pci::ConfigSpace) is the PCI configuration space that goes with it.
//! * The two share no memory. They exchange the small `Copy` values of [`message`], which the host carries.
//! * Inputs are `handle_*` and `write_*`, outputs are `poll_*`; guest memory ([`memory::DmaMemory`]) and the
//!   doorbell registers ([`doorbell::Registers`]) are arguments. Time, threads and storage belong to hosts.
//! * Table sizes are const generics and every constructor is `const`, so a controller can be a `static`.
//!
//! What a guest writes never reaches a panic, an index or an unbounded loop: no path in this crate panics, and
//! a linked image proves it (see `CONTRIBUTING.md`).
//!
//! Sources: NVM Express Base Specification 2.0 (and 1.4 for the version reported), NVM Command Set
//! Specification 1.0, NVMe over PCIe Transport Specification 1.0.
#![cfg_attr(not(any(test, loom, feature = "testing")), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used,
    )
)]

pub mod command;
pub mod controller;
pub mod data;
pub mod doorbell;
pub mod engine;
pub mod group;
pub mod memory;
pub mod message;
pub mod namespace;
pub mod pci;
mod place;
mod queue;
pub mod spec;
mod support;
mod sync;
pub mod tag;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
