//! The vhost-user-blk backend against a frontend of our own: raw messages, and rings in a memfd.
#![expect(unreachable_pub, reason = "test modules share items")]

mod frontend;
mod fuzz;
mod handover;
mod hostile;
mod kill;
mod log;
mod memory;
mod operator;
mod process;
mod protocol;
mod requests;
mod ring;
