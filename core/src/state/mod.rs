//! Live upgrade: the state of a running [`Controller`](crate::controller::Controller),
//! [`QueueGroup`](crate::group::QueueGroup) or [`ConfigSpace`](crate::pci::ConfigSpace) as bytes, to go on with
//! in another instance, of this engine or another, without the guest noticing.
//!
//! `save` writes a state into a buffer of `STATE_BYTES` bytes and changes nothing; `load` reads one into a
//! new instance. What was saved and loaded does byte for byte what the first instance would
//! have done: no reset, no error, nothing lost, nothing doubled.
//!
//! A host does this between two calls of the instances, so nothing has to come to rest:
//!
//! 1. It brings the messages that are on their way to where they go, or keeps them for the new instances.
//! 2. It saves the controller, each group, and the configuration space, and loads each into a new instance. Where
//!    one refuses, the old ones go on.
//! 3. It drops the old instances and drives the new ones. Completions of commands that the old groups gave out
//!    go to the new ones, by the same tags.
//!
//! # What travels, and what doesn't
//!
//! | | |
//! | --- | --- |
//! | from the state | everything that the guest can see or has set, which includes what the configuration announced (sizes, identifiers, MDTS); everything that the two sides have said to each other |
//! | from the new instance | table sizes, [`GroupConfig::posted_registers`](crate::group::GroupConfig), whether it is [paused](crate::group::QueueGroup::pause) |
//! | must fit | the number of groups, and the bytes of BAR 0 and the vectors of a configuration space, are the same; I/O queues, vectors, queue entries and MDTS of the state are no more than those of the new instance's configuration; a guest that was told of no volatile write cache gets none; the host has a storage for every namespace (it is asked) |
//! | never saved, the host's | guest memory, the doorbell registers (the page stays, or its content is copied while nobody can write to it), storage, and messages, interrupts and namespace changes that the host has taken out of one side and not brought to the other |
//!
//! Commands in flight travel with their tags: the host lets its storage carry on and calls
//! [`QueueGroup::complete`](crate::group::QueueGroup::complete) of the new instance. Times are on the host's
//! monotonic clock, which goes on.
//!
//! A larger table is no change for the guest: the highest namespace identifier and the length of the error log
//! stay what they were until the state's end, and the state goes back into tables of the old size.
//!
//! # Layout
//!
//! Everything is little-endian, unaligned, and of fixed width; a flag is 0 or 1, and an absent value's field
//! is 0. A state is a [`Header`] and the records of its kind, one after the other:
//!
//! | kind | records |
//! | --- | --- |
//! | 1, controller | [`ControllerRecord`](controller::ControllerRecord); a [`GroupRecord`](controller::GroupRecord) for each group; a [`QueueRecord`](controller::QueueRecord) for each I/O queue identifier from 1; a [`NamespaceRecord`](controller::NamespaceRecord) for each namespace, ascending; a byte for each eight namespace identifiers from 1, least significant bit first: the Changed Namespace List; an [`ErrorRecord`](controller::ErrorRecord) for each entry of the error log, oldest first |
//! | 2, queue group | [`QueueGroupRecord`](group::QueueGroupRecord); a [`SubmissionRecord`](group::SubmissionRecord) for each submission queue, in the order of their turns; a [`CompletionRecord`](group::CompletionRecord) for each completion queue, those that owe an interrupt first, in that order; a [`NamespaceRecord`](group::NamespaceRecord) for each namespace, ascending; an [`EventRecord`](group::EventRecord) for each waiting event, in order; the generation (4 bytes) of each command slot ever used; the free ones among these (2 bytes each) in the order in which they will be used; a [`CommandRecord`](group::CommandRecord) for each command in flight, by slot |
//! | 3, configuration space | [`ConfigSpaceRecord`](pci::ConfigSpaceRecord) |
//!
//! What can be derived isn't there: free entries of completion queues, addresses of doorbells, counts of
//! commands, capabilities, most of CSTS. So it can't contradict the rest.
//!
//! # Versions
//!
//! A version's layout never changes. Any change of a layout, or of what a field means, makes a new version, and
//! `load` understands that and every older one ([`VERSION`] is what `save` writes). So upgrades always work, and
//! a way back needs an engine of the same version: an older one refuses with [`StateError::UnknownVersion`], and
//! the host keeps the instance that it has.
//!
//! # Whom a state may come from
//!
//! Anyone. A sandboxed controller may belong to a guest, so `load` checks every value against every table and
//! every invariant; whatever it accepts is a state in which nothing panics, no work is unbounded and no access
//! is unaligned. A failed `load` leaves an empty instance.

mod bytes;
mod crc;

pub mod controller;
pub mod group;
pub mod pci;

#[cfg(any(test, feature = "testing"))]
pub(crate) use bytes::seal;
pub use bytes::{HEADER_BYTES, Header};
pub(crate) use bytes::{Reader, Writer, ensure, flag};

/// The version that `save` writes.
pub const VERSION: u16 = 1;

/// First bytes of every state.
pub const MAGIC: [u8; 4] = *b"DBst";

/// What a state is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A [`Controller`](crate::controller::Controller).
    Controller = 1,
    /// A [`QueueGroup`](crate::group::QueueGroup).
    QueueGroup = 2,
    /// A [`ConfigSpace`](crate::pci::ConfigSpace).
    ConfigSpace = 3,
}

/// Why a state was not saved or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The buffer to save into is smaller than the state; `STATE_BYTES` bytes are always enough.
    BufferTooSmall,
    /// The bytes are no state, or one of another kind.
    NotThatState,
    /// A state of a version that this engine doesn't know: it is newer.
    UnknownVersion(u16),
    /// The state is shorter or longer than it says.
    WrongLength,
    /// The checksum is wrong: the state was damaged on its way.
    WrongChecksum,
    /// A table of the instance is too small for what the state holds.
    TooSmall(&'static str),
    /// The state contradicts the new instance's configuration or the host's storage.
    Mismatch(&'static str),
    /// The state contradicts itself; no working controller has written it.
    Inconsistent(&'static str),
}

impl core::fmt::Display for StateError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::BufferTooSmall => f.write_str("the buffer is too small for the state"),
            Self::NotThatState => f.write_str("these bytes are not a state of this kind"),
            Self::UnknownVersion(version) => {
                write!(f, "the state has version {version}, this engine knows versions up to {VERSION}")
            }
            Self::WrongLength => f.write_str("the state is incomplete or followed by something else"),
            Self::WrongChecksum => f.write_str("the state is damaged: its checksum is wrong"),
            Self::TooSmall(table) => write!(f, "this engine is too small for the state's {table}"),
            Self::Mismatch(what) => write!(f, "the state doesn't go with this configuration: {what}"),
            Self::Inconsistent(what) => write!(f, "the state contradicts itself: {what}"),
        }
    }
}

impl core::error::Error for StateError {}
