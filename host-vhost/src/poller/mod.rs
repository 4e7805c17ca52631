//! Poller threads: they own queue groups and do the I/O.
//!
//! A poller owns any number of [`GroupRunner`]s of any number of devices, one
//! [`IoContext`](crate::storage::IoContext) for all their storages, and a mailbox. In a turn it takes a batch of commands
//! from each group, hands what was queued to the kernel in one call, reaps what has ended, posts the
//! completions and raises at most one interrupt for each completion queue.
//!
//! Per command there is no lock, no allocation and no system call (RAM and null storages make none per batch
//! either).

mod flight;
pub mod idle;
pub mod latency;
mod runner;
mod thread;
pub(crate) mod turns;
mod upgrade;
mod work;

pub use runner::{GroupReport, GroupRunner, QueueReport};
pub use thread::{Poller, PollerConfig, PollerCounters, PollerMail, ToGroup};
pub use upgrade::Upgraded;

use doorbell_core::message::{GroupMessage, GroupStatistics};

/// What a group tells the control thread of its device.
#[derive(Debug)]
pub enum FromGroup {
    /// A message of the core.
    Message(GroupMessage),
    /// After [`ToGroup::Pause`]: nothing of this group touches its storages until it is resumed.
    Paused {
        /// The pause's.
        ticket: u64,
    },
    /// After [`ToGroup::Refresh`]: the group has the present storages and no others.
    Refreshed {
        /// The request's.
        ticket: u64,
    },
    /// After [`ToGroup::CheckLevel`]: the group's part of the INTx level is up to date.
    LevelChecked,
    /// After [`ToGroup::Detach`]: the group is gone.
    Detached,
    /// After [`ToGroup::Statistics`], and before the reply to a reset.
    Statistics(GroupStatistics),
    /// After [`PollerMail::Upgrade`].
    Upgraded(Upgraded),
    /// After [`ToGroup::Report`].
    Report(Box<GroupReport>),
}
