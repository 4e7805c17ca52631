//! Doorbell as firmware: the controller of `doorbell-core` in static memory, without an allocator.
//!
//! ```text
//!   driver --PCIe--> endpoint block            flash part
//!                         |                        |
//!                  Endpoint (a board's)     Media (RamMedia, FlashMedia, a board's)
//!                         |                        |
//!                         +-------> Device <-------+
//!                       Controller + QueueGroup, one loop
//! ```
//!
//! * [`device::Device`] is the loop: it carries bus events to the core and the core's commands to the medium. It
//!   is zero bytes until it is started, so a static of it lies in `.bss`.
//! * [`endpoint::Endpoint`] and [`media::Media`] are what a board fills in; see `BOARD.md`.
//! * `model` (feature `model`) is a driver that behaves as Linux's does, and an endpoint for it, in RAM: what
//!   stands in for the bus in the images under QEMU and in this crate's tests.
//!
//! Everything runs on one core from one loop; interrupt handlers, where a board has some, only wake it.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod device;
pub mod endpoint;
mod log;
pub mod media;
#[cfg(any(test, feature = "model"))]
pub mod model;
