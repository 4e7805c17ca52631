//! The specification's structures and number spaces: layouts and names only, no behaviour.
//!
//! Structures are little-endian whatever the machine. A number space is a newtype with constants, so that a
//! value nobody knows survives a round trip.

pub mod admin;
pub mod feature;
pub mod identify;
pub mod log;
pub mod nvm;
pub mod queue_entry;
pub mod register;
pub mod status;
