//! The specification's structures and number spaces: layouts and names only, no behaviour.
//!
//! Structures are little-endian whatever the machine. A number space is a newtype with constants, so that a
//! value nobody knows survives a round trip.

pub mod nvm;
pub mod queue_entry;
pub mod status;
