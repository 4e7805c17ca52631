//! The model host: memory, an endpoint, and a driver that does what Linux's does, step by step, and verifies
//! every byte. It stands in for a board's endpoint block and for the machine behind it.
//!
//! [`Host::run`] is the whole story: enabling, Identify, features, queues, reads and writes by PRP and SGL on
//! full queues, Compare, Write Zeroes, Dataset Management, errors, aborts, shadow doorbells, resets of every
//! kind, shutdown. A device that goes to sleep is only woken by a bus event, so a lost wake-up is a time-out.

mod admin;
mod buffer;
mod endpoint;
mod gate;
mod host;
mod io;
mod life;
mod measure;
mod queue;
mod ram;

pub use endpoint::{ModelEndpoint, VECTORS};
pub use gate::Gate;
pub use host::{Bench, Failure, Host, NoBench, Report};
pub use measure::Instructions;
pub use ram::{BASE, GuestRam, PAGE};

/// Guest memory that the model host needs for `queues` I/O queue pairs, in dwords.
#[must_use]
pub const fn ram_words(queues: usize) -> usize {
    (host::FIRST_QUEUE_PAGE as usize + 2 * queues + host::DATA_PAGES as usize) * PAGE as usize / 4
}
