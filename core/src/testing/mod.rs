//! Things that tests of this crate and of its hosts share (feature `testing`; needs `std`).
//!
//! [`Pair`] puts a driver and a queue group on one thread over RAM: no sleeps, no threads, the same inputs give
//! the same bytes.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that goes wrong should say so at once"
)]

pub mod counting;
pub mod driver;
pub mod entry;
pub mod fake_group;
pub mod machine;
pub mod memory;
pub mod pair;
pub mod prp;
pub mod ring;
pub mod sgl;
pub mod storage;

pub use counting::CountingMemory;
pub use driver::Driver;
pub use fake_group::FakeGroup;
pub use machine::Machine;
pub use memory::RamMemory;
pub use pair::{Pair, PairOf, TestGroup};
pub use ring::{Ring, ShadowRule};
pub use storage::Storage;

/// Makes the length and the checksum of a changed state right again.
pub fn seal_state(state: &mut [u8]) {
    crate::state::seal(state);
}

#[cfg(loom)]
pub use crate::sync::without_fences;
