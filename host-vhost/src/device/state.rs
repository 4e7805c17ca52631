//! SMART counters over a restart: a small JSON file beside a persistent namespace.

use std::io::Write;
use std::path::{Path, PathBuf};

use doorbell_core::controller::SmartCounters;
use serde::{Deserialize, Serialize};

use crate::namespace_spec::NamespaceSpec;
use crate::storage::StorageConfig;

/// Where the counters are kept, and what was written last.
#[derive(Debug)]
pub(super) struct StateFile {
    path: Option<PathBuf>,
    written: Option<Kept>,
}

/// The file's contents, version 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    version: u32,
    bytes_read: u64,
    bytes_written: u64,
    read_commands: u64,
    write_commands: u64,
    busy_ns: u64,
    power_cycles: u64,
    power_on_ns: u64,
    unsafe_shutdowns: u64,
    media_errors: u64,
    error_log_entries: u64,
    /// A guest was using the controller: if this is what a new life finds, the process ended under it.
    #[serde(default)]
    in_use: bool,
}

impl StateFile {
    /// The file that a person named, or the one beside the first writable persistent namespace.
    pub(super) fn choose(named: Option<&Path>, namespaces: &[NamespaceSpec]) -> Self {
        let beside = |spec: &NamespaceSpec| match &spec.storage {
            StorageConfig::File { path, read_only: false, .. } | StorageConfig::Qcow2 { path, read_only: false }
                // A block device has no folder of its own to keep a file in.
                if !path.starts_with("/dev") =>
            {
                let mut name = path.as_os_str().to_owned();
                name.push(".smart.json");
                Some(PathBuf::from(name))
            }
            _ => None,
        };
        let path = match named {
            Some(path) if path.as_os_str() == "none" => None,
            Some(path) => Some(path.to_owned()),
            None => namespaces.iter().find_map(beside),
        };
        Self { path, written: None }
    }

    /// The counters of the last life, if there was one. A file that can't be read is left alone and said so.
    pub(super) fn load(&mut self) -> Option<SmartCounters> {
        let path = self.path.as_ref()?;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "SMART counters can't be read: they start at zero and aren't kept");
                self.path = None;
                return None;
            }
        };
        match serde_json::from_str::<Kept>(&text) {
            Ok(kept) if kept.version == 1 => Some(kept.to_counters()),
            _ => {
                tracing::warn!(path = %path.display(), "not a file of SMART counters: they start at zero and aren't kept; remove it or name another with --state");
                self.path = None;
                None
            }
        }
    }

    /// Writes the counters, if they have changed, so that the file is whole at any moment.
    pub(super) fn save(&mut self, counters: SmartCounters, in_use: bool) {
        let Some(path) = &self.path else { return };
        let kept = Kept::new(counters, in_use);
        if self.written.as_ref() == Some(&kept) {
            return;
        }
        match write_whole(path, &kept) {
            Ok(()) => self.written = Some(kept),
            Err(error) => tracing::warn!(path = %path.display(), %error, "SMART counters can't be written"),
        }
    }
}

fn write_whole(path: &Path, kept: &Kept) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(kept)?)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

impl Kept {
    fn new(counters: SmartCounters, in_use: bool) -> Self {
        Self {
            version: 1,
            bytes_read: counters.bytes_read,
            bytes_written: counters.bytes_written,
            read_commands: counters.read_commands,
            write_commands: counters.write_commands,
            busy_ns: counters.busy_ns,
            power_cycles: counters.power_cycles,
            power_on_ns: counters.power_on_ns,
            unsafe_shutdowns: counters.unsafe_shutdowns,
            media_errors: counters.media_errors,
            error_log_entries: counters.error_log_entries,
            in_use,
        }
    }

    fn to_counters(&self) -> SmartCounters {
        SmartCounters {
            bytes_read: self.bytes_read,
            bytes_written: self.bytes_written,
            read_commands: self.read_commands,
            write_commands: self.write_commands,
            busy_ns: self.busy_ns,
            power_cycles: self.power_cycles,
            power_on_ns: self.power_on_ns,
            unsafe_shutdowns: self.unsafe_shutdowns.saturating_add(self.in_use.into()),
            media_errors: self.media_errors,
            error_log_entries: self.error_log_entries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_survive_and_a_foreign_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("smart.json");
        let counters = SmartCounters { bytes_read: 7, unsafe_shutdowns: 2, ..SmartCounters::default() };
        let mut state = StateFile::choose(Some(&path), &[]);
        assert_eq!(state.load(), None);
        state.save(counters, false);
        assert_eq!(StateFile::choose(Some(&path), &[]).load(), Some(counters));
        state.save(counters, true);
        let killed = SmartCounters { unsafe_shutdowns: 3, ..counters };
        assert_eq!(StateFile::choose(Some(&path), &[]).load(), Some(killed));
        std::fs::write(&path, "my diary").unwrap();
        let mut state = StateFile::choose(Some(&path), &[]);
        assert_eq!(state.load(), None);
        state.save(counters, false);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my diary");
    }
}
