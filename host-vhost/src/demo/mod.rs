//! `doorbell demo`: a device on a real vfio-user socket, a driver of our own attached to it, verified I/O, and
//! the tables of the three discussions that this project grew from.
//!
//! Everything is measured in one run on this machine; server and driver are threads of one process that share
//! nothing but the socket and what is passed through it.

mod cpus;
mod load;
mod sandbox;
mod session;
mod silence;
mod tables;

pub use sandbox::run_sandbox;
pub use session::{DemoError, run};
