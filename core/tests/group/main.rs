//! Tests of the queue group from outside. The sandbox runs the same files with a group inside its module
//! (`host-wasm/tests/protocol`), so they name the pair of driver and device as `crate::Pair`.
//! Only `tables.rs` is for the core alone.
#![cfg(not(loom))]

mod data;
mod doorbells;
mod life_cycle;
mod random;
mod tables;

use doorbell_core::testing::Pair;
