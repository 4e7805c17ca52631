//! What a device is made from.

use std::path::PathBuf;

use crate::endpoint::Endpoint;
use crate::namespace_spec::NamespaceSpec;
use crate::storage::parse_size;

/// How doorbells reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellMode {
    /// The guest maps the doorbell page: its writes make no exit and no sound, so an idle poller naps.
    Mapped,
    /// No mapping: a register write is a message, shadow doorbells save most of them, and an idle poller
    /// really sleeps.
    Shadow,
}

/// A device and the threads that serve it.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Where clients come from.
    pub endpoint: Endpoint,
    /// The namespaces, from NSID 1.
    pub namespaces: Vec<NamespaceSpec>,
    /// Poller threads, each with one queue group of the device; 1 to [`MAX_GROUPS`](super::MAX_GROUPS).
    pub pollers: usize,
    /// A processor for each poller, or none at all.
    pub cpus: Vec<usize>,
    /// How doorbells reach the device.
    pub doorbells: DoorbellMode,
    /// Shadow doorbells (Doorbell Buffer Config) are offered.
    pub shadow_doorbells: bool,
    /// I/O queue pairs, 1 to [`MAX_QUEUES`](super::MAX_QUEUES).
    pub queues: u16,
    /// Entries of a queue at most, 2 to 65,536.
    pub queue_entries: u32,
    /// MSI-X vectors.
    pub vectors: u16,
    /// Maximum data transfer size in bytes, a power of two.
    pub mdts_bytes: u32,
    /// Serial number; `None` makes one from where the device is served and what it holds.
    pub serial: Option<String>,
    /// Where SMART counters are kept; `None` chooses a place beside the first persistent namespace.
    pub state: Option<PathBuf>,
}

impl DeviceConfig {
    /// A device at `path` with these namespaces and the defaults of the command line.
    #[must_use]
    pub fn new(path: PathBuf, namespaces: Vec<NamespaceSpec>) -> Self {
        Self {
            endpoint: Endpoint::Path(path),
            namespaces,
            pollers: 1,
            cpus: Vec::new(),
            doorbells: DoorbellMode::Mapped,
            shadow_doorbells: true,
            queues: 64,
            queue_entries: 1024,
            vectors: 64,
            mdts_bytes: 1 << 20,
            serial: None,
            state: None,
        }
    }
}

/// A maximum data transfer size as people write it: a power of two from 8K to 1M.
///
/// # Errors
/// What is wrong with it.
pub fn parse_mdts(text: &str) -> Result<u32, String> {
    mdts(parse_size(text).map_err(|error| error.to_string())?).ok_or_else(|| format!("{text} is {MDTS_RULE}"))
}

/// The same in bytes.
#[must_use]
pub fn mdts(bytes: u64) -> Option<u32> {
    let fits = bytes.is_power_of_two() && (8192..=1 << 20).contains(&bytes);
    u32::try_from(bytes).ok().filter(|_| fits)
}

/// What a maximum data transfer size isn't if it is refused.
pub const MDTS_RULE: &str = "not a power of two from 8K to 1M";
