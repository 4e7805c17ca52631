//! Namespaces: which there are, what shape they have, and whether every group knows.
//!
//! The host adds, resizes and removes them at any time. A driver sees a namespace (or its new size) only once
//! every group knows it, and a removed one no longer from the moment of its removal; each change raises the
//! Namespace Attribute Changed event and enters the Changed Namespace List.

use super::groups::GroupSet;
use super::{Controller, Event, Lifecycle};
use crate::message::GroupRequest;
use crate::namespace::Namespace;
use crate::place::Place;
use crate::spec::admin::ALL_NAMESPACES;
use crate::spec::status::Status;

/// What the host says of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NamespaceConfig {
    /// Size in logical blocks, at least 1.
    pub size_blocks: u64,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// Blocks read as zeroes after Dataset Management has deallocated them (DLFEAT 001b); else as anything.
    pub deallocated_reads_zero: bool,
    /// UUID, in the byte order of its text form; 0 where there is none.
    pub uuid: [u8; 16],
    /// Namespace Globally Unique Identifier, big-endian; 0 where there is none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big-endian; 0 where there is none.
    pub eui64: [u8; 8],
}

impl NamespaceConfig {
    /// Whether a driver can tell the namespace from another.
    pub(super) fn is_identified(&self) -> bool {
        self.uuid != [0; 16] || self.nguid != [0; 16] || self.eui64 != [0; 8]
    }
}

/// Why a namespace was not added, resized or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum NamespaceError {
    /// The identifier is 0 or above the controller's `NAMESPACES`.
    InvalidNsid,
    /// The identifier is in use, or its last namespace hasn't gone altogether yet.
    InUse,
    /// Every identifier is in use.
    Full,
    /// No such namespace.
    NotFound,
    /// The block size is neither 512 nor 4096.
    InvalidBlockSize,
    /// The size is 0 or more bytes than 64 bits can count.
    InvalidSize,
    /// UUID, NGUID and EUI64 are all 0: a driver couldn't tell the namespace from another.
    NoIdentifier,
    /// Another namespace has one of these identifiers.
    DuplicateIdentifier,
}

impl core::fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::InvalidNsid => "the namespace identifier is 0 or too large for this controller",
            Self::InUse => "the namespace identifier is in use",
            Self::Full => "the controller has no room for another namespace",
            Self::NotFound => "there is no such namespace",
            Self::InvalidBlockSize => "the block size is neither 512 nor 4096 bytes",
            Self::InvalidSize => "the namespace is empty or too large",
            Self::NoIdentifier => "the namespace has neither UUID nor NGUID nor EUI64",
            Self::DuplicateIdentifier => "another namespace has the same UUID, NGUID or EUI64",
        })
    }
}

impl core::error::Error for NamespaceError {}

/// What [`Controller::poll_namespace_change`] reports: the change has reached every group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum NamespaceChange {
    /// Commands for the namespace may come.
    Added {
        /// Namespace identifier.
        nsid: u32,
    },
    /// Commands past the old end may come, or past the new end don't come any more.
    Resized {
        /// Namespace identifier.
        nsid: u32,
    },
    /// No command for it is in flight or will come; its storage may be closed and its identifier used again.
    Removed {
        /// Namespace identifier.
        nsid: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Groups are being told; drivers don't see it yet.
    Adding,
    Active,
    /// Groups are being told of its new shape.
    Resizing,
    /// Groups are giving it up.
    Removing,
    /// Gone, which the host hasn't been told yet.
    Removed,
}

/// One namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) shape: Namespace,
    pub(super) config: NamespaceConfig,
    pub(super) state: State,
    /// What the groups are told.
    pub(super) target: Namespace,
    /// Groups that are still to be told.
    pub(super) due: GroupSet,
    /// Groups that have been told and haven't answered.
    pub(super) sent: GroupSet,
    pub(super) report: Option<NamespaceChange>,
    /// Error Recovery's Time Limited Error Recovery, in units of 100 ms.
    pub(super) time_limit: u16,
}

impl Entry {
    const fn is_visible(&self) -> bool {
        matches!(self.state, State::Active | State::Resizing)
    }
}

/// The table; the namespace identifier is the index plus 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Namespaces<const NAMESPACES: usize> {
    pub(super) entries: [Place<Entry>; NAMESPACES],
    /// Changed since the driver read the Changed Namespace List.
    pub(super) changed: [bool; NAMESPACES],
    /// Entries that an instance of which this one goes on didn't have; drivers know of the others only.
    pub(super) hidden: usize,
}

impl<const NAMESPACES: usize> Namespaces<NAMESPACES> {
    pub(super) const fn new() -> Self {
        Self { entries: [Place::Empty; NAMESPACES], changed: [false; NAMESPACES], hidden: 0 }
    }

    /// Number of Namespaces (NN): constant, because drivers size tables by it.
    #[expect(clippy::cast_possible_truncation, reason = "bounded where the controller is made")]
    pub(super) const fn highest_nsid(&self) -> u32 {
        self.visible() as u32
    }

    /// Entries of the table that drivers know of.
    pub(super) const fn visible(&self) -> usize {
        NAMESPACES.saturating_sub(self.hidden)
    }

    /// The active namespaces above `nsid`, ascending.
    pub(super) fn active_above(&self, nsid: u32) -> impl Iterator<Item = u32> + '_ {
        let visible = |entry: &Place<Entry>| entry.as_ref().is_some_and(Entry::is_visible);
        (1..)
            .zip(&self.entries)
            .filter(move |(_, entry)| visible(entry))
            .map(|(id, _)| id)
            .filter(move |id| *id > nsid)
    }

    /// The changed namespaces, ascending.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> + '_ {
        (1..).zip(&self.changed).filter(|(_, changed)| **changed).map(|(nsid, _)| nsid)
    }

    pub(super) fn clear_changed(&mut self) {
        self.changed = [false; NAMESPACES];
    }

    /// # Errors
    /// Invalid Namespace or Format where no namespace can have this identifier.
    pub(super) fn check_nsid(&self, nsid: u32) -> Result<(), Status> {
        if nsid == 0 || nsid > self.highest_nsid() { Err(Status::INVALID_NAMESPACE.dnr()) } else { Ok(()) }
    }

    /// The active namespace `nsid`, `None` where it is inactive.
    ///
    /// # Errors
    /// As [`Namespaces::check_nsid`].
    pub(super) fn find(&self, nsid: u32) -> Result<Option<&Entry>, Status> {
        self.check_nsid(nsid)?;
        Ok(self.get(nsid).filter(|entry| entry.is_visible()))
    }

    pub(super) fn time_limit(&self, nsid: u32) -> Result<u16, Status> {
        let entry = self.find(nsid)?.ok_or(Status::INVALID_FIELD.dnr())?;
        Ok(entry.time_limit)
    }

    pub(super) fn set_time_limit(&mut self, nsid: u32, time_limit: u16) -> Result<(), Status> {
        if nsid == ALL_NAMESPACES {
            for entry in self.entries.iter_mut().flatten() {
                entry.time_limit = time_limit;
            }
            return Ok(());
        }
        self.find(nsid)?.ok_or(Status::INVALID_FIELD.dnr())?;
        if let Some(entry) = self.get_mut(nsid) {
            entry.time_limit = time_limit;
        }
        Ok(())
    }

    /// Whether no namespace waits to become known.
    pub(super) fn all_known_to_groups(&self) -> bool {
        !self.entries.iter().flatten().any(|entry| entry.state == State::Adding)
    }

    /// A controller reset: features and the changed list go back to their defaults.
    pub(super) fn controller_was_reset(&mut self) {
        self.clear_changed();
        for entry in self.entries.iter_mut().flatten() {
            entry.time_limit = 0;
        }
    }

    /// A reset overtook whatever the groups were being told; they are told again.
    pub(super) fn groups_were_reset(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            entry.due.insert_all(entry.sent);
            entry.sent = GroupSet::EMPTY;
        }
    }

    /// What `group` is to be told, and the index that its answer belongs to.
    pub(super) fn take_due(&mut self, group: u16) -> Option<(u16, GroupRequest)> {
        for (index, entry) in (0u16..).zip(&mut self.entries) {
            let Some(entry) = entry.as_mut() else { continue };
            if entry.due.remove(group) {
                entry.sent.insert(group);
                let nsid = u32::from(index).saturating_add(1);
                let request = if entry.state == State::Removing {
                    GroupRequest::RemoveNamespace { nsid }
                } else {
                    GroupRequest::SetNamespace { nsid, namespace: entry.target }
                };
                return Some((index, request));
            }
        }
        None
    }

    /// `group` has answered for the namespace at `index`; the change where that was the last answer.
    pub(super) fn answered(&mut self, group: u16, index: u16) -> Option<NamespaceChange> {
        let entry = self.entries.get_mut(usize::from(index))?.as_mut()?;
        entry.sent.remove(group);
        if !entry.due.is_empty() || !entry.sent.is_empty() {
            return None;
        }
        let nsid = u32::from(index).saturating_add(1);
        let change = match entry.state {
            State::Adding => NamespaceChange::Added { nsid },
            State::Resizing => NamespaceChange::Resized { nsid },
            State::Removing => NamespaceChange::Removed { nsid },
            State::Active | State::Removed => return None,
        };
        entry.state = if entry.state == State::Removing { State::Removed } else { State::Active };
        entry.shape = entry.target;
        entry.report = Some(change);
        Some(change)
    }

    fn get(&self, nsid: u32) -> Option<&Entry> {
        self.entries.get(index(nsid)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, nsid: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index(nsid)?)?.as_mut()
    }

    fn mark_changed(&mut self, nsid: u32) {
        if let Some(changed) = index(nsid).and_then(|index| self.changed.get_mut(index)) {
            *changed = true;
        }
    }

    fn first_free(&self) -> Option<u32> {
        (1..)
            .zip(self.entries.iter().take(self.visible()))
            .find(|(_, entry)| entry.is_empty())
            .map(|(nsid, _)| nsid)
    }

    pub(super) fn has_identifier_of(&self, config: &NamespaceConfig) -> bool {
        let same = |a: &[u8], b: &[u8]| a == b && a.iter().any(|&byte| byte != 0);
        self.entries.iter().flatten().any(|entry| {
            same(&entry.config.uuid, &config.uuid)
                || same(&entry.config.nguid, &config.nguid)
                || same(&entry.config.eui64, &config.eui64)
        })
    }

    /// The next change to tell the host.
    fn take_report(&mut self) -> Option<NamespaceChange> {
        for place in &mut self.entries {
            let Some(entry) = place.as_mut() else { continue };
            if let Some(report) = entry.report.take() {
                if entry.state == State::Removed {
                    *place = Place::Empty;
                }
                return Some(report);
            }
        }
        None
    }
}

fn index(nsid: u32) -> Option<usize> {
    usize::try_from(nsid.checked_sub(1)?).ok()
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// Adds a namespace with identifier `nsid`, or with the lowest free one, which is returned.
    ///
    /// Drivers see it once every group knows it ([`NamespaceChange::Added`]).
    ///
    /// # Errors
    /// Where the identifier or the configuration can't be; nothing has changed then.
    pub fn add_namespace(
        &mut self,
        nsid: Option<u32>,
        config: NamespaceConfig,
    ) -> Result<u32, NamespaceError> {
        let shape = shape(&config)?;
        if !config.is_identified() {
            return Err(NamespaceError::NoIdentifier);
        }
        if self.namespaces.has_identifier_of(&config) {
            return Err(NamespaceError::DuplicateIdentifier);
        }
        let nsid = match nsid {
            Some(nsid) => nsid,
            None => self.namespaces.first_free().ok_or(NamespaceError::Full)?,
        };
        let visible = self.namespaces.visible();
        let index = index(nsid).filter(|index| *index < visible);
        let place = index.and_then(|index| self.namespaces.entries.get_mut(index));
        let place = place.ok_or(NamespaceError::InvalidNsid)?;
        if !place.is_empty() {
            return Err(NamespaceError::InUse);
        }
        *place = Place::Full(Entry {
            shape,
            config,
            state: State::Adding,
            target: shape,
            due: self.groups.all(),
            sent: GroupSet::EMPTY,
            report: None,
            time_limit: 0,
        });
        Ok(nsid)
    }

    /// Gives a namespace another size. Drivers see it once every group knows it
    /// ([`NamespaceChange::Resized`]).
    ///
    /// # Errors
    /// Where there is no such namespace or it can't have that size.
    pub fn resize_namespace(&mut self, nsid: u32, size_blocks: u64) -> Result<(), NamespaceError> {
        let all = self.groups.all();
        let entry = self.namespaces.get_mut(nsid).ok_or(NamespaceError::NotFound)?;
        let config = NamespaceConfig { size_blocks, ..entry.config };
        let target = shape(&config)?;
        match entry.state {
            State::Adding => {}
            State::Active | State::Resizing => entry.state = State::Resizing,
            State::Removing | State::Removed => return Err(NamespaceError::NotFound),
        }
        entry.config = config;
        entry.target = target;
        entry.due = all;
        Ok(())
    }

    /// Removes a namespace. Drivers no longer see it; commands in flight for it still end, and then
    /// [`NamespaceChange::Removed`] says that its storage is free.
    ///
    /// # Errors
    /// Where there is no such namespace.
    pub fn remove_namespace(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        let all = self.groups.all();
        let entry = self.namespaces.get_mut(nsid).ok_or(NamespaceError::NotFound)?;
        let was_visible = entry.is_visible();
        if matches!(entry.state, State::Removing | State::Removed) {
            return Err(NamespaceError::NotFound);
        }
        entry.state = State::Removing;
        entry.due = all;
        if was_visible {
            self.namespace_changed(nsid);
        }
        Ok(())
    }

    /// A namespace change that has reached every group, or `None`.
    #[must_use = "a removed namespace's storage waits for this"]
    pub fn poll_namespace_change(&mut self) -> Option<NamespaceChange> {
        self.namespaces.take_report()
    }

    /// `group` has answered for the namespace at `index`. A group that can't take a namespace (its table is
    /// smaller than the controller's) has it removed again everywhere.
    pub(super) fn namespace_answered(&mut self, group: u16, index: u16, failed: bool) {
        let nsid = u32::from(index).saturating_add(1);
        if failed {
            // Where it was being removed already there is nothing to undo.
            let _ = self.remove_namespace(nsid);
        }
        match self.namespaces.answered(group, index) {
            Some(NamespaceChange::Added { nsid } | NamespaceChange::Resized { nsid }) => {
                self.namespace_changed(nsid);
            }
            Some(NamespaceChange::Removed { .. }) | None => {}
        }
    }

    fn namespace_changed(&mut self, nsid: u32) {
        // A driver that isn't there yet will see the namespaces as they are.
        if self.lifecycle == Lifecycle::Running {
            self.namespaces.mark_changed(nsid);
            if self.features.wants_namespace_events() {
                self.events.raise(Event::NamespaceAttributeChanged);
            }
        }
    }
}

pub(super) fn shape(config: &NamespaceConfig) -> Result<Namespace, NamespaceError> {
    let block_shift = match config.block_bytes {
        512 => 9,
        4096 => 12,
        _ => return Err(NamespaceError::InvalidBlockSize),
    };
    let fits = config.size_blocks.leading_zeros() >= u32::from(block_shift);
    if config.size_blocks == 0 || !fits {
        return Err(NamespaceError::InvalidSize);
    }
    Ok(Namespace { size_blocks: config.size_blocks, block_shift, read_only: config.read_only })
}
