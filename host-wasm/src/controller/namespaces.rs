//! The namespaces as the host was told of them: they outlive instances, and bound what a module may say of them.

use std::collections::BTreeMap;

use doorbell_core::controller::{NamespaceChange, NamespaceConfig, NamespaceError};
use doorbell_core::namespace::Namespace;

use crate::error::Fault;

/// The highest identifier of any controller.
const MAX_NSID: u32 = 1024;

/// By identifier.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    entries: BTreeMap<u32, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    config: NamespaceConfig,
    /// The host has been told that every group knows it.
    known: bool,
    /// The host waits to be told of a new size.
    resizing: bool,
    /// The host waits to be told that it is gone.
    removing: bool,
}

impl Namespaces {
    pub(super) fn contains(&self, nsid: u32) -> bool {
        self.entries.contains_key(&nsid)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is such a namespace with this configuration.
    pub(super) fn is(&self, nsid: u32, config: &NamespaceConfig) -> bool {
        self.entries.get(&nsid).is_some_and(|entry| entry.config == *config)
    }

    /// A namespace of a state: `state` and `report` as in the core's `NamespaceRecord`.
    pub(super) fn moved(&mut self, nsid: u32, config: NamespaceConfig, state: u8, report: u8) {
        let entry = Entry {
            config,
            known: state != 0 && report != 1,
            resizing: state == 2 || report == 2,
            removing: state >= 3 || report == 3,
        };
        self.entries.insert(nsid, entry);
    }

    /// Those that a fresh instance is to have.
    pub(super) fn all(&self) -> Vec<(u32, NamespaceConfig)> {
        let there = self.entries.iter().filter(|(_, entry)| !entry.removing);
        there.map(|(&nsid, entry)| (nsid, entry.config)).collect()
    }

    /// Whether a namespace has this shape, so that groups may be told so.
    pub(super) fn has_shape(&self, nsid: u32, shape: &Namespace) -> bool {
        self.entries.get(&nsid).is_some_and(|entry| {
            shape.block_shift < 32
                && shape.block_bytes() == entry.config.block_bytes
                && shape.size_blocks == entry.config.size_blocks
                && shape.read_only == entry.config.read_only
        })
    }

    pub(super) fn added(&mut self, nsid: u32, config: NamespaceConfig) {
        let entry = Entry { config, known: false, resizing: false, removing: false };
        self.entries.insert(nsid, entry);
    }

    pub(super) fn resized(&mut self, nsid: u32, size_blocks: u64) -> Result<(), NamespaceError> {
        let entry = self.entries.get_mut(&nsid).filter(|entry| !entry.removing);
        let entry = entry.ok_or(NamespaceError::NotFound)?;
        if size_blocks == 0 || size_blocks.checked_mul(u64::from(entry.config.block_bytes)).is_none() {
            return Err(NamespaceError::InvalidSize);
        }
        entry.config.size_blocks = size_blocks;
        entry.resizing = true;
        Ok(())
    }

    pub(super) fn removed(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        let entry = self.entries.get_mut(&nsid).filter(|entry| !entry.removing);
        entry.ok_or(NamespaceError::NotFound)?.removing = true;
        Ok(())
    }

    /// Adds a namespace that the next instance will know.
    pub(super) fn add_while_failed(
        &mut self,
        nsid: Option<u32>,
        config: NamespaceConfig,
    ) -> Result<u32, NamespaceError> {
        if !matches!(config.block_bytes, 512 | 4096) {
            return Err(NamespaceError::InvalidBlockSize);
        }
        if config.size_blocks.checked_mul(u64::from(config.block_bytes)).is_none_or(|bytes| bytes == 0) {
            return Err(NamespaceError::InvalidSize);
        }
        let same = |a: &[u8], b: &[u8]| a == b && a.iter().any(|&byte| byte != 0);
        let twice = self.entries.values().any(|entry| {
            same(&entry.config.uuid, &config.uuid)
                || same(&entry.config.nguid, &config.nguid)
                || same(&entry.config.eui64, &config.eui64)
        });
        if twice {
            return Err(NamespaceError::DuplicateIdentifier);
        }
        if config.uuid == [0; 16] && config.nguid == [0; 16] && config.eui64 == [0; 8] {
            return Err(NamespaceError::NoIdentifier);
        }
        let nsid = match nsid {
            Some(nsid) => nsid,
            None => (1..=MAX_NSID).find(|nsid| !self.contains(*nsid)).ok_or(NamespaceError::Full)?,
        };
        if !(1..=MAX_NSID).contains(&nsid) {
            return Err(NamespaceError::InvalidNsid);
        }
        if self.contains(nsid) {
            return Err(NamespaceError::InUse);
        }
        self.added(nsid, config);
        Ok(nsid)
    }

    /// Removes a namespace that no instance knows; the change to report, where nothing uses it any more.
    pub(super) fn remove_while_failed(
        &mut self,
        nsid: u32,
        quiet: bool,
    ) -> Result<Option<NamespaceChange>, NamespaceError> {
        self.removed(nsid)?;
        if !quiet {
            return Ok(None);
        }
        self.entries.remove(&nsid);
        Ok(Some(NamespaceChange::Removed { nsid }))
    }

    /// No group of the failed tenant has a command any more: what was to be removed is gone.
    pub(super) fn groups_are_quiet(&mut self) -> Vec<NamespaceChange> {
        let gone: Vec<u32> =
            self.entries.iter().filter(|(_, entry)| entry.removing).map(|(&nsid, _)| nsid).collect();
        self.entries.retain(|_, entry| !entry.removing);
        gone.into_iter().map(|nsid| NamespaceChange::Removed { nsid }).collect()
    }

    /// What the module says of a namespace; the change to tell the host, if it hasn't been told before.
    pub(super) fn reported(&mut self, change: NamespaceChange) -> Result<Option<NamespaceChange>, Fault> {
        let unknown = Fault::Interface("a change of a namespace that isn't there");
        match change {
            NamespaceChange::Added { nsid } => {
                let entry = self.entries.get_mut(&nsid).ok_or(unknown)?;
                if !entry.known {
                    entry.known = true;
                    entry.resizing = false;
                    return Ok(Some(change));
                }
                // Known since before a fresh start; its new size isn't.
                let resized = std::mem::take(&mut entry.resizing);
                Ok(resized.then_some(NamespaceChange::Resized { nsid }))
            }
            NamespaceChange::Resized { nsid } => {
                let entry = self.entries.get_mut(&nsid).ok_or(unknown)?;
                entry.resizing = false;
                Ok(Some(change))
            }
            NamespaceChange::Removed { nsid } => {
                // A group that can't take a namespace has it removed everywhere.
                self.entries.remove(&nsid).ok_or(unknown)?;
                Ok(Some(change))
            }
        }
    }
}
