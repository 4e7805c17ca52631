//! The namespaces of a device: their storages, sizes and identifiers.

use std::collections::BTreeMap;
use std::sync::Arc;

use doorbell_core::controller::{NamespaceConfig, NamespaceError};
use doorbell_core::engine::ControllerEngine;
use uuid::Uuid;

use super::{DeviceShared, MAX_NAMESPACES};
use crate::ctl::protocol::NamespaceStatistics;
use crate::engine::HostedController;
use crate::namespace_spec::NamespaceSpec;
use crate::storage::{OpenError, Storage, StorageConfig};

/// A namespace whose storage is open.
#[derive(Debug)]
pub struct Opened {
    name: String,
    storage: Arc<dyn Storage>,
    block_bytes: u32,
    uuid: [u8; 16],
}

impl Opened {
    /// Opens the storage. The UUID is made from what it is, so it stays the same from start to start: a file's
    /// path, or for memory the serial number and `ordinal`.
    ///
    /// # Errors
    /// What the storage says.
    pub fn open(spec: &NamespaceSpec, serial: &str, ordinal: u64) -> Result<Self, OpenError> {
        if spec.incoming {
            return Err(OpenError::NoHandover);
        }
        let storage = spec.storage.open()?;
        let unique = match &spec.storage {
            StorageConfig::File { path, .. } | StorageConfig::Qcow2 { path, .. } => {
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                format!("{serial}/{}", path.display())
            }
            StorageConfig::Null { .. } | StorageConfig::Ram { .. } => format!("{serial}/{ordinal}"),
        };
        Ok(Self::with_storage(spec.to_string(), storage, spec.block_bytes, &unique))
    }

    /// A storage that is open already. Its UUID is made from `unique`, and `name` is for people.
    #[must_use]
    pub fn with_storage(name: String, storage: Arc<dyn Storage>, block_bytes: u32, unique: &str) -> Self {
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("doorbell:{unique}").as_bytes()).into_bytes();
        Self { name, storage, block_bytes, uuid }
    }

    /// What it is, as a person wrote it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether acknowledged writes need a flush to survive a power failure.
    #[must_use]
    pub fn has_volatile_cache(&self) -> bool {
        self.storage.volatile_cache()
    }
}

/// The namespaces by identifier.
#[derive(Debug, Default)]
pub(super) struct NamespaceTable {
    entries: BTreeMap<u32, Entry>,
}

#[derive(Debug)]
struct Entry {
    storage: Arc<dyn Storage>,
    block_bytes: u32,
}

impl NamespaceTable {
    /// Adds a namespace under the lowest free identifier, which it returns.
    pub(super) fn add(
        &mut self,
        controller: &mut HostedController,
        shared: &DeviceShared,
        opened: Opened,
    ) -> Result<u32, String> {
        let Opened { storage, block_bytes, uuid, .. } = opened;
        let config = NamespaceConfig {
            size_blocks: storage.size_bytes() / u64::from(block_bytes),
            block_bytes,
            read_only: storage.read_only(),
            deallocated_reads_zero: storage.deallocate_reads_zero(),
            uuid,
            nguid: [0; 16],
            eui64: [0; 8],
        };
        let nsid = controller.add_namespace(None, config).map_err(|error| match error {
            NamespaceError::Full => {
                format!("{error}: {MAX_NAMESPACES} is the most, remove one first")
            }
            error => error.to_string(),
        })?;
        shared.set_storage(nsid, Some(Arc::clone(&storage)));
        self.entries.insert(nsid, Entry { storage, block_bytes });
        Ok(nsid)
    }

    /// A namespace is gone altogether. Returns its storage.
    pub(super) fn removed(&mut self, nsid: u32) -> Option<Arc<dyn Storage>> {
        self.entries.remove(&nsid).map(|entry| entry.storage)
    }

    /// Whether a size is worth pausing the groups for.
    pub(super) fn check_resize(&self, nsid: u32, size_bytes: u64) -> Result<(), String> {
        let entry = self
            .entries
            .get(&nsid)
            .ok_or_else(|| format!("there is no namespace {nsid}; `doorbell stat` shows which there are"))?;
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(entry.block_bytes)) {
            return Err(format!("{size_bytes} bytes is no whole number of blocks of {}", entry.block_bytes));
        }
        Ok(())
    }

    /// Resizes the storage and the namespace. No command is in flight.
    pub(super) fn resize(
        &mut self,
        controller: &mut HostedController,
        nsid: u32,
        size_bytes: u64,
    ) -> Result<(), String> {
        let entry = self.entries.get(&nsid).ok_or_else(|| format!("there is no namespace {nsid}"))?;
        // Its queues share the size with it.
        entry.storage.resize(size_bytes).map_err(|error| error.to_string())?;
        controller
            .resize_namespace(nsid, size_bytes / u64::from(entry.block_bytes))
            .map_err(|error| error.to_string())
    }

    /// What `doorbell stat` shows.
    pub(super) fn statistics(&self) -> Vec<NamespaceStatistics> {
        let describe = |(nsid, entry): (&u32, &Entry)| NamespaceStatistics {
            nsid: *nsid,
            kind: entry.storage.kind().to_owned(),
            size_bytes: entry.storage.size_bytes(),
            block_bytes: entry.block_bytes,
            read_only: entry.storage.read_only(),
        };
        self.entries.iter().map(describe).collect()
    }
}
