//! A file that describes the devices of one process, for people to write:
//!
//! ```toml
//! [[device]]
//! socket = "/run/doorbell/vm1.sock"
//! protocol = "vfio-user"
//! cpus = [2, 3]                   # a poller on each
//!
//! [[device.namespace]]
//! file = "vm1.img"                # beside this file
//! block-size = 4096
//!
//! [[device]]
//! socket = "/run/doorbell/vm2.sock"
//! protocol = "vhost-user"
//!
//! [[device.namespace]]
//! ram = "1G"
//! ```
//!
//! | key of a device | default | what it is |
//! | --- | --- | --- |
//! | `socket`, or `fd` | one is needed | a path, or a descriptor that was handed over |
//! | `protocol` | needed | `"vfio-user"` or `"vhost-user"` |
//! | `pollers` | 1 | threads |
//! | `cpus` | any | a processor for each: `[2, 3]` or `"4-7"` |
//! | `queues` | 64 | I/O queues that are offered |
//! | `serial` | made from socket and storages; of virtio `doorbell` | up to 20 characters |
//! | `doorbells` | `"mapped"` | or `"shadow"` (vfio-user) |
//! | `shadow-doorbells` | true | offer Doorbell Buffer Config (vfio-user) |
//! | `queue-entries` | 1024 | of a queue at most (vfio-user) |
//! | `vectors` | 64 | MSI-X (vfio-user) |
//! | `mdts` | `"1M"` | largest transfer (vfio-user) |
//! | `state` | beside the first image | where SMART counters are kept, or `"none"` (vfio-user) |
//!
//! | key of a namespace | default | what it is |
//! | --- | --- | --- |
//! | `file`, `qcow2`, `ram`, `null` | one is needed | an image, or a size |
//! | `block-size` | 512 | or 4096 |
//! | `read-only` | false | for images |
//! | `incoming` | false | a vhost-user disk's `file` that another server hands over by migration |
//! | `direct` | `"auto"` | O_DIRECT of a `file`: `"on"`, `"off"` |
//!
//! Relative paths start at the file's own folder. All mistakes are found in one look, each with its line and column,
//! also those that only the machine can tell: an image that isn't there, a processor that doesn't exist.

mod check;
mod device;
mod mistake;
mod reader;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use toml::de::DeTable;

use mistake::Mistakes;
pub use mistake::{DevicesFileError, Mistake};

use crate::fleet::Device;

/// More than that is no devices file.
const LONGEST_BYTES: u64 = 16 << 20;

/// A devices file without a mistake.
#[derive(Debug)]
pub struct DevicesFile {
    path: PathBuf,
    /// Each with the line of its header.
    devices: Vec<(usize, Device)>,
}

impl DevicesFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// See [`DevicesFileError`].
    pub fn read(path: &Path) -> Result<Self, DevicesFileError> {
        let error = |what: String| DevicesFileError::Read { path: path.to_owned(), what };
        let found = std::fs::metadata(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                error("no such file; name the file that describes the devices".into())
            }
            _ => error(source.to_string()),
        })?;
        if found.len() > LONGEST_BYTES {
            return Err(error("too long for a file of devices; is it a disk image?".into()));
        }
        let bytes = std::fs::read(path).map_err(|source| error(source.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|source| {
            error(format!("not a text in UTF-8 ({}); is it a disk image?", source.utf8_error()))
        })?;
        let folder = std::path::absolute(path).map_err(|source| error(source.to_string()))?;
        let devices = parse(&text, folder.parent().unwrap_or(Path::new("/")))
            .map_err(|mistakes| DevicesFileError::Mistakes { path: path.to_owned(), mistakes })?;
        Ok(Self { path: path.to_owned(), devices })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The devices, each with the line of its header.
    #[must_use]
    pub fn into_devices(self) -> Vec<(usize, Device)> {
        self.devices
    }

    /// How many devices it describes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Never: a file without a device is a mistake.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// A line for each device: what it is and what it holds.
    pub fn describe(&self) -> impl Iterator<Item = String> {
        self.devices.iter().map(|(line, device)| {
            let (protocol, held) = match device {
                Device::Nvme(config) => {
                    ("vfio-user", config.namespaces.iter().map(ToString::to_string).collect())
                }
                Device::Virtio(config) => ("vhost-user", vec![config.namespace.to_string()]),
            };
            format!("line {line}: {protocol} on {}: {}", device.endpoint(), held.join(" "))
        })
    }
}

/// The devices that a text describes, each with its line.
fn parse(text: &str, folder: &Path) -> Result<Vec<(usize, Device)>, Vec<Mistake>> {
    let mut mistakes = Mistakes::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What follows from a text that can't be read would only mislead.
        for error in errors {
            mistakes.add(&error.span().unwrap_or(0..0), format!("this isn't TOML: {}", error.message()));
        }
        return Err(mistakes.into_list());
    }
    let entries = device::read(document.get_ref(), folder, &mut mistakes);
    check::check(&entries, &mut mistakes);
    let line = |entry: device::Entry| (mistakes.line(&entry.place), entry.device);
    let devices: Vec<_> = entries.into_iter().map(line).collect();
    match mistakes.into_list() {
        list if list.is_empty() => Ok(devices),
        list => Err(list),
    }
}
