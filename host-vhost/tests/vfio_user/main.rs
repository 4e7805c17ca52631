//! The vfio-user side of the native host: codec, sessions, guest memory, and our own client against them.
#![expect(unreachable_pub, reason = "test modules share items")]

mod child;
mod codec;
mod crate_client;
mod dma;
mod driver;
mod dummy;
mod life;
mod malformed;
mod memory;
mod raw;
mod session;
mod truncated;
