//! Namespaces as people write them: `ram=1G`, `file=disk.img,block=4096,read-only`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::storage::{Direct, OpenError, Storage, StorageConfig, parse_size};

/// A namespace to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSpec {
    /// The medium.
    pub storage: StorageConfig,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Another process still writes it and hands it over during a live migration.
    pub incoming: bool,
}

/// Why a text isn't a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "namespace `{text}`: {what}; write for example ram=1G, null=1T, file=disk.img or qcow2=disk.qcow2, \
         followed by any of ,block=4096 ,read-only ,direct=on|off ,incoming"
)]
pub struct ParseNamespaceError {
    text: String,
    what: String,
}

impl NamespaceSpec {
    /// A namespace with the default block size of 512 bytes.
    #[must_use]
    pub const fn new(storage: StorageConfig) -> Self {
        Self { storage, block_bytes: 512, incoming: false }
    }

    /// Opens the medium.
    ///
    /// # Errors
    /// See [`OpenError`]; each says what to do.
    pub fn open(&self) -> Result<Arc<dyn Storage>, OpenError> {
        if self.incoming { self.storage.open_incoming() } else { self.storage.open() }
    }

    /// The same for a process with another working directory.
    ///
    /// # Errors
    /// The present one can't be had.
    pub fn with_absolute_path(mut self) -> std::io::Result<Self> {
        if let StorageConfig::File { path, .. } | StorageConfig::Qcow2 { path, .. } = &mut self.storage {
            *path = std::path::absolute(&*path)?;
        }
        Ok(self)
    }
}

impl FromStr for NamespaceSpec {
    type Err = ParseNamespaceError;

    fn from_str(text: &str) -> Result<Self, ParseNamespaceError> {
        let error = |what: String| ParseNamespaceError { text: text.to_owned(), what };
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let (kind, value) = first
            .split_once('=')
            .ok_or_else(|| error("it doesn't start with kind=size or kind=path".into()))?;
        let mut block_bytes = 512;
        let mut read_only = false;
        let mut incoming = false;
        let mut direct = Direct::Auto;
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("block", "512") => block_bytes = 512,
                ("block", "4096" | "4K" | "4k") => block_bytes = 4096,
                ("block", other) => {
                    return Err(error(format!("block size `{other}` is neither 512 nor 4096")));
                }
                ("read-only" | "readonly", "" | "on") => read_only = true,
                ("incoming", "" | "on") => incoming = true,
                ("direct", "on") => direct = Direct::On,
                ("direct", "off") => direct = Direct::Off,
                ("direct", "auto") => direct = Direct::Auto,
                _ => return Err(error(format!("I don't know the option `{part}`"))),
            }
        }
        let size = || parse_size(value).map_err(|problem| error(problem.to_string()));
        let path = || match value {
            "" => Err(error("the path is missing".into())),
            value => Ok(PathBuf::from(value)),
        };
        let storage = match kind {
            "null" => StorageConfig::Null { size_bytes: size()? },
            "ram" => StorageConfig::Ram { size_bytes: size()? },
            "file" => StorageConfig::File { path: path()?, read_only, direct },
            "qcow2" => StorageConfig::Qcow2 { path: path()?, read_only },
            _ => return Err(error(format!("I don't know the kind `{kind}`"))),
        };
        if read_only && matches!(kind, "null" | "ram") {
            return Err(error(format!("a {kind} namespace can't be read-only: it would be empty for ever")));
        }
        Ok(Self { storage, block_bytes, incoming })
    }
}

impl std::fmt::Display for NamespaceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        match &self.storage {
            // Written so that it can be read again: the control socket carries namespaces as text.
            StorageConfig::Null { size_bytes } => write!(text, "null={size_bytes}")?,
            StorageConfig::Ram { size_bytes } => write!(text, "ram={size_bytes}")?,
            StorageConfig::File { path, read_only, direct } => {
                write!(text, "file={}", path.display())?;
                text.push_str(if *read_only { ",read-only" } else { "" });
                text.push_str(match direct {
                    Direct::Auto => "",
                    Direct::On => ",direct=on",
                    Direct::Off => ",direct=off",
                });
            }
            StorageConfig::Qcow2 { path, read_only } => {
                write!(text, "qcow2={}{}", path.display(), if *read_only { ",read-only" } else { "" })?;
            }
        }
        write!(f, "{text},block={}{}", self.block_bytes, if self.incoming { ",incoming" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_read_as_people_write_them() {
        let spec: NamespaceSpec = "file=/tmp/a.img,block=4096,read-only".parse().unwrap();
        let storage =
            StorageConfig::File { path: "/tmp/a.img".into(), read_only: true, direct: Direct::Auto };
        assert_eq!(spec, NamespaceSpec { block_bytes: 4096, ..NamespaceSpec::new(storage) });
        let spec: NamespaceSpec = "ram=64M".parse().unwrap();
        assert_eq!(spec, NamespaceSpec::new(StorageConfig::Ram { size_bytes: 64 << 20 }));
    }

    #[test]
    fn a_mistake_is_named_and_the_way_shown() {
        for (text, what) in [
            ("64M", "kind=size"),
            ("ram=lots", "whole number"),
            ("file=", "path is missing"),
            ("tape=1G", "kind `tape`"),
            ("ram=1G,block=520", "neither 512 nor 4096"),
            ("ram=1G,fast", "option `fast`"),
            ("ram=1G,read-only", "can't be read-only"),
        ] {
            let message = text.parse::<NamespaceSpec>().unwrap_err().to_string();
            assert!(message.contains(what) && message.contains("ram=1G"), "{message}");
        }
    }
}
