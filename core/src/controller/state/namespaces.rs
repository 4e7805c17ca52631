//! Namespaces as records.

use super::super::groups::{GroupSet, UnderWay};
use super::super::namespaces::{Entry, NamespaceChange, NamespaceConfig, Namespaces, State, shape};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::state::controller::NamespaceRecord;
use crate::state::{StateError, Writer, ensure, flag};

impl<const NAMESPACES: usize> Namespaces<NAMESPACES> {
    /// Namespaces that there are, of whatever state.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.entries.iter().flatten().count()).unwrap_or(u16::MAX)
    }

    pub(super) fn has_entry(&self, index: u16) -> bool {
        self.entries.get(usize::from(index)).is_some_and(|place| !place.is_empty())
    }

    /// Whether every namespace that `group` has been told of is the one that is under way to it.
    pub(super) fn all_told_by(&self, group: u16, under_way: UnderWay) -> bool {
        (0..).zip(&self.entries).all(|(index, place)| {
            let told = place.as_ref().is_some_and(|entry| entry.sent.contains(group));
            !told || under_way == UnderWay::Namespace(index)
        })
    }

    pub(super) fn save(&self, writer: &mut Writer<'_>) -> Result<(), StateError> {
        for (index, place) in (0u16..).zip(&self.entries) {
            if let Some(entry) = place.as_ref() {
                writer.record(&entry.record(index))?;
            }
        }
        for eight in self.changed.chunks(8).take(self.visible().div_ceil(8)) {
            let bits = (0u32..)
                .zip(eight)
                .fold(0u8, |bits, (bit, changed)| bits | u8::from(*changed).wrapping_shl(bit));
            writer.record(&bits)?;
        }
        Ok(())
    }

    /// Fills an empty table of which drivers know `highest_nsid` entries.
    pub(super) fn load(
        &mut self,
        highest_nsid: usize,
        records: &[NamespaceRecord],
        changed: &[u8],
        groups: GroupSet,
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        self.hidden = NAMESPACES.checked_sub(highest_nsid).ok_or(StateError::TooSmall("namespaces"))?;
        ensure(highest_nsid > 0, "the highest namespace identifier")?;
        for record in records {
            let index = record.index.get();
            ensure(usize::from(index) < highest_nsid, "a namespace above the highest identifier")?;
            let nsid = u32::from(index).saturating_add(1);
            let entry = record.restore(nsid)?;
            let told = (entry.due.0 | entry.sent.0) & !groups.0 == 0;
            ensure(told, "a namespace that more groups than there are have to know")?;
            // A removed namespace's storage may be closed as soon as the host has been told.
            let stored = has_storage(nsid, &entry.shape) && has_storage(nsid, &entry.target);
            if entry.state != State::Removed && !stored {
                return Err(StateError::Mismatch("a namespace has no such storage"));
            }
            ensure(!self.has_identifier_of(&entry.config), "two namespaces with the same identifier")?;
            match self.entries.get_mut(usize::from(index)) {
                Some(place) if place.is_empty() => *place = Place::Full(entry),
                _ => return Err(StateError::Inconsistent("a namespace twice")),
            }
        }
        for (eight, bits) in self.changed.chunks_mut(8).zip(changed) {
            for (bit, changed) in (0u32..).zip(eight) {
                *changed = bits.wrapping_shr(bit) & 1 != 0;
            }
        }
        Ok(())
    }
}

impl Entry {
    fn record(&self, index: u16) -> NamespaceRecord {
        let Self { shape, config, state, target: _, due, sent, report, time_limit } = self;
        let NamespaceConfig {
            size_blocks,
            block_bytes,
            read_only,
            deallocated_reads_zero,
            uuid,
            nguid,
            eui64,
        } = *config;
        NamespaceRecord {
            index: index.into(),
            state: match state {
                State::Adding => 0,
                State::Active => 1,
                State::Resizing => 2,
                State::Removing => 3,
                State::Removed => 4,
            },
            report: match report {
                None => 0,
                Some(NamespaceChange::Added { .. }) => 1,
                Some(NamespaceChange::Resized { .. }) => 2,
                Some(NamespaceChange::Removed { .. }) => 3,
            },
            read_only: read_only.into(),
            deallocated_reads_zero: deallocated_reads_zero.into(),
            time_limit: (*time_limit).into(),
            block_bytes: block_bytes.into(),
            size_blocks: size_blocks.into(),
            visible_blocks: shape.size_blocks.into(),
            uuid,
            nguid,
            eui64,
            due: due.0.into(),
            sent: sent.0.into(),
        }
    }
}

impl NamespaceRecord {
    fn restore(&self, nsid: u32) -> Result<Entry, StateError> {
        let state = match self.state {
            0 => State::Adding,
            1 => State::Active,
            2 => State::Resizing,
            3 => State::Removing,
            4 => State::Removed,
            _ => return Err(StateError::Inconsistent("a namespace's state")),
        };
        let report = match self.report {
            0 => None,
            1 => Some(NamespaceChange::Added { nsid }),
            2 => Some(NamespaceChange::Resized { nsid }),
            3 => Some(NamespaceChange::Removed { nsid }),
            _ => return Err(StateError::Inconsistent("a namespace's change")),
        };
        let config = NamespaceConfig {
            size_blocks: self.size_blocks.get(),
            block_bytes: self.block_bytes.get(),
            read_only: flag(self.read_only)?,
            deallocated_reads_zero: flag(self.deallocated_reads_zero)?,
            uuid: self.uuid,
            nguid: self.nguid,
            eui64: self.eui64,
        };
        let visible = NamespaceConfig { size_blocks: self.visible_blocks.get(), ..config };
        let impossible = StateError::Inconsistent("a namespace's shape");
        let target = shape(&config).map_err(|_| impossible)?;
        let shape = shape(&visible).map_err(|_| impossible)?;
        ensure(config.is_identified(), "a namespace without an identifier")?;
        let (due, sent) = (GroupSet(self.due.get()), GroupSet(self.sent.get()));
        let is_changing = matches!(state, State::Adding | State::Resizing | State::Removing);
        let is_asked = !due.is_empty() || !sent.is_empty();
        ensure(is_changing == is_asked, "a namespace's change that no group is asked for")?;
        let is_reported = matches!(report, Some(NamespaceChange::Removed { .. }));
        ensure((state == State::Removed) == is_reported, "a removed namespace that nobody hears of")?;
        Ok(Entry { shape, config, state, target, due, sent, report, time_limit: self.time_limit.get() })
    }
}
