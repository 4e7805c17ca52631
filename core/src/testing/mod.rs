//! Things that tests of this crate and of its hosts share (feature `testing`; needs `std`).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that goes wrong should say so at once"
)]

pub mod fake_group;
pub mod memory;

pub use fake_group::FakeGroup;
pub use memory::RamMemory;
