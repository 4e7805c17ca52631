//! A small NVMe driver over qtest. Each step is the test's to take: what is written to which register, when
//! a doorbell rings, when a completion queue is read. It shares nothing with the core on purpose: numbers
//! are the specification's, written out (NVM Express Base 1.4; NVM Command Set 1.0).
//!
//! [`Controller`] is the driver, [`Command`] and [`Completion`] are queue entries, [`data`] describes
//! memory by PRP and SGL.

mod command;
mod controller;
pub mod data;
mod queue;

pub use command::{Command, Completion, Status};
pub use controller::{Controller, register};
pub use queue::{CompletionQueue, Rule, SubmissionQueue};
