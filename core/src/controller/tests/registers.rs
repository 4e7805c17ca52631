//! registers
