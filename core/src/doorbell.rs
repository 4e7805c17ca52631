//! Doorbells.
pub use crate::sync::AtomicU32;
/// The doorbell registers.
pub type Registers = [AtomicU32];
