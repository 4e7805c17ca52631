//! Namespaces as records.

use super::super::Controller;
use super::super::groups::{GroupSet, UnderWay};
use super::super::namespaces::{Entry, NamespaceChange, NamespaceConfig, Namespaces, State, shape};
use crate::namespace::Namespace;
use crate::state::controller::NamespaceRecord;
use crate::state::{StateError, Writer, ensure};
use zerocopy::IntoBytes;

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

    fn load_changed(&mut self, changed: &[u8]) {
        for (eight, bits) in self.changed.chunks_mut(8).zip(changed) {
            for (bit, changed) in (0u32..).zip(eight) {
                *changed = bits.wrapping_shr(bit) & 1 != 0;
            }
        }
    }
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// Fills an empty table of which drivers know `highest_nsid` entries.
    pub(super) fn load_namespaces(
        &mut self,
        highest_nsid: usize,
        records: &[NamespaceRecord],
        changed: &[u8],
        has_storage: impl Fn(u32, &Namespace) -> bool,
    ) -> Result<(), StateError> {
        let hidden = NAMESPACES.checked_sub(highest_nsid);
        self.namespaces.hidden = hidden.ok_or(StateError::TooSmall("namespaces"))?;
        ensure(highest_nsid > 0, "the highest namespace identifier")?;
        let groups = self.groups.all();
        for record in records {
            let index = record.index.get();
            let nsid = u32::from(index).saturating_add(1);
            let impossible = StateError::Inconsistent("a namespace that can't be added");
            self.add_namespace(Some(nsid), record.config()).map_err(|_| impossible)?;
            let entry = self.namespaces.get_mut(nsid).ok_or(impossible)?;
            record.restore(entry)?;
            let told = (entry.due.0 | entry.sent.0) & !groups.0 == 0;
            ensure(told, "a namespace that more groups than there are have to know")?;
            // Numbers and flags that mean nothing have become others.
            ensure(entry.record(index).as_bytes() == record.as_bytes(), "a namespace's state")?;
            // A removed namespace's storage may be closed as soon as the host has been told.
            let stored = has_storage(nsid, &entry.shape) && has_storage(nsid, &entry.target);
            if entry.state != State::Removed && !stored {
                return Err(StateError::Mismatch("a namespace has no such storage"));
            }
        }
        self.namespaces.load_changed(changed);
        Ok(())
    }
}

impl Entry {
    #[inline(never)]
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
    /// The namespace's configuration, as it says.
    #[must_use]
    pub const fn config(&self) -> NamespaceConfig {
        NamespaceConfig {
            size_blocks: self.size_blocks.get(),
            block_bytes: self.block_bytes.get(),
            read_only: self.read_only != 0,
            deallocated_reads_zero: self.deallocated_reads_zero != 0,
            uuid: self.uuid,
            nguid: self.nguid,
            eui64: self.eui64,
        }
    }

    /// Makes of a namespace that was just added what it was; something else, where the record is none that
    /// [`Entry::record`] makes.
    fn restore(&self, entry: &mut Entry) -> Result<(), StateError> {
        entry.state = match self.state {
            0 => State::Adding,
            1 => State::Active,
            2 => State::Resizing,
            3 => State::Removing,
            _ => State::Removed,
        };
        let nsid = u32::from(self.index.get()).saturating_add(1);
        entry.report = match self.report {
            1 => Some(NamespaceChange::Added { nsid }),
            2 => Some(NamespaceChange::Resized { nsid }),
            3 => Some(NamespaceChange::Removed { nsid }),
            _ => None,
        };
        let visible = NamespaceConfig { size_blocks: self.visible_blocks.get(), ..entry.config };
        entry.shape = shape(&visible).map_err(|_| StateError::Inconsistent("a namespace's shape"))?;
        (entry.due, entry.sent) = (GroupSet(self.due.get()), GroupSet(self.sent.get()));
        entry.time_limit = self.time_limit.get();
        let is_changing = matches!(entry.state, State::Adding | State::Resizing | State::Removing);
        let is_asked = !entry.due.is_empty() || !entry.sent.is_empty();
        ensure(is_changing == is_asked, "a namespace's change that no group is asked for")?;
        ensure(
            (entry.state == State::Removed) == (self.report == 3),
            "a removed namespace that nobody hears of",
        )
    }
}
