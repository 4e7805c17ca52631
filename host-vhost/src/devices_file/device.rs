//! From tables to devices.

use std::ops::Range;
use std::path::{Path, PathBuf};

use doorbell_core::controller::Ascii;
use toml::de::{DeTable, DeValue};

use super::mistake::Mistakes;
use super::reader::{Found, Table, integer};
use crate::cpus::CpuList;
use crate::device::{DeviceConfig, DoorbellMode, MAX_GROUPS, MAX_QUEUES, MDTS_RULE, mdts};
use crate::endpoint::Endpoint;
use crate::fleet::Device;
use crate::namespace_spec::NamespaceSpec;
use crate::storage::{Direct, StorageConfig};
use crate::vhost_user_blk::{BlkConfig, DataPath};

/// A device, and where in the file its parts are.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) device: Device,
    /// Of the header.
    pub(super) place: Range<usize>,
    /// Of the socket or the descriptor.
    pub(super) endpoint_place: Range<usize>,
    pub(super) cpus_place: Range<usize>,
    pub(super) state_place: Range<usize>,
    /// Of the media, by namespace.
    pub(super) media: Vec<Range<usize>>,
}

impl Entry {
    pub(super) fn namespaces(&self) -> &[NamespaceSpec] {
        match &self.device {
            Device::Nvme(config) => &config.namespaces,
            Device::Virtio(config) => std::slice::from_ref(&config.namespace),
        }
    }

    pub(super) fn cpus(&self) -> &[usize] {
        match &self.device {
            Device::Nvme(config) => &config.cpus,
            Device::Virtio(config) => &config.cpus,
        }
    }
}

const DEVICE_KEYS: [&str; 14] = [
    "socket",
    "fd",
    "protocol",
    "namespace",
    "pollers",
    "cpus",
    "queues",
    "serial",
    "doorbells",
    "shadow-doorbells",
    "queue-entries",
    "vectors",
    "mdts",
    "state",
];

/// Those that a virtio disk has nothing for.
const NVME_KEYS: [&str; 6] = ["doorbells", "shadow-doorbells", "queue-entries", "vectors", "mdts", "state"];

const NAMESPACE_KEYS: [&str; 8] =
    ["file", "qcow2", "ram", "null", "block-size", "read-only", "direct", "incoming"];

const ONE_MEDIUM: &str =
    "give it one medium: file = \"disk.img\", qcow2 = \"disk.qcow2\", ram = \"1G\" or null = \"1T\"";

/// All devices without a mistake. Relative paths start at `folder`.
pub(super) fn read(document: &DeTable<'_>, folder: &Path, mistakes: &mut Mistakes<'_>) -> Vec<Entry> {
    let file = Table::new(document, 0..0, "the file", &["device"], mistakes);
    let tables = file.tables("device", "device", mistakes);
    if tables.is_empty() && document.is_empty() {
        mistakes.add(&(0..0), "no device: begin one with [[device]] and give it a socket and a protocol");
    }
    tables.into_iter().filter_map(|(table, place)| device(table, place, folder, mistakes)).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    VfioUser,
    VhostUser,
}

fn device(
    table: &DeTable<'_>,
    place: Range<usize>,
    folder: &Path,
    mistakes: &mut Mistakes<'_>,
) -> Option<Entry> {
    let table = Table::new(table, place.clone(), "a device", &DEVICE_KEYS, mistakes);
    let endpoint = endpoint(&table, folder, mistakes);
    let protocol = protocol(&table, mistakes);
    if protocol == Some(Protocol::VhostUser) {
        for key in NVME_KEYS {
            if let Some(place) = table.place_of(key) {
                let text = format!(
                    "`{key}` is for vfio-user devices; a vhost-user disk has no such thing: remove it"
                );
                mistakes.add(&place, text);
            }
        }
    }
    let namespaces = namespaces(&table, protocol, folder, mistakes);
    let (pollers, cpus, cpus_place) = pollers(&table, mistakes);
    let queues = table.number("queues", 1..=MAX_QUEUES as u64, mistakes).or(MAX_QUEUES as u64) as u16;
    let serial =
        table.string("serial", "DISK7", mistakes).then(mistakes, |serial| match Ascii::<20>::new(&serial) {
            Some(_) if !serial.is_empty() => Ok(serial),
            _ => Err("`serial` has to be 1 to 20 printable ASCII characters".into()),
        });
    let (endpoint, endpoint_place) = endpoint?;
    let (specs, media) = namespaces?;
    let mut entry = Entry {
        place,
        endpoint_place,
        cpus_place,
        state_place: 0..0,
        media,
        device: match protocol? {
            Protocol::VhostUser => Device::Virtio(BlkConfig {
                endpoint,
                namespace: specs.into_iter().next()?,
                queues,
                pollers,
                cpus,
                serial: serial.value(),
                data_path: DataPath::Direct,
            }),
            Protocol::VfioUser => Device::Nvme(DeviceConfig {
                endpoint,
                pollers,
                cpus,
                queues,
                serial: serial.value(),
                ..DeviceConfig::new(PathBuf::new(), specs)
            }),
        },
    };
    if let Device::Nvme(config) = &mut entry.device {
        entry.state_place = nvme(&table, config, folder, mistakes);
    }
    Some(entry)
}

/// What only an NVMe controller has. Returns where the state file is named.
fn nvme(
    table: &Table<'_, '_>,
    config: &mut DeviceConfig,
    folder: &Path,
    mistakes: &mut Mistakes<'_>,
) -> Range<usize> {
    let doorbells =
        table.string("doorbells", "mapped", mistakes).then(mistakes, |text| match text.as_str() {
            "mapped" => Ok(DoorbellMode::Mapped),
            "shadow" => Ok(DoorbellMode::Shadow),
            other => Err(format!("`doorbells` is \"mapped\" or \"shadow\", not \"{other}\"")),
        });
    config.doorbells = doorbells.or(config.doorbells);
    config.shadow_doorbells = table.boolean("shadow-doorbells", mistakes).or(config.shadow_doorbells);
    let entries = table.number("queue-entries", 2..=65536, mistakes);
    config.queue_entries = entries.or(config.queue_entries.into()) as u32;
    config.vectors = table.number("vectors", 1..=128, mistakes).or(config.vectors.into()) as u16;
    let size = table.size("mdts", mistakes);
    let size = size.then(mistakes, |bytes| mdts(bytes).ok_or_else(|| format!("`mdts` is {MDTS_RULE}")));
    config.mdts_bytes = size.or(config.mdts_bytes);
    let mut place = table.place.clone();
    if let Found::Value(path, at) = table.string("state", "disk.smart.json", mistakes) {
        place = at;
        config.state = Some(if path == "none" { path.into() } else { folder.join(path) });
    }
    place
}

fn endpoint(
    table: &Table<'_, '_>,
    folder: &Path,
    mistakes: &mut Mistakes<'_>,
) -> Option<(Endpoint, Range<usize>)> {
    let socket = table.string("socket", "/run/doorbell/vm1.sock", mistakes).then(mistakes, |path| {
        if path.is_empty() { Err("`socket` is empty: name a path".into()) } else { Ok(folder.join(path)) }
    });
    let fd = table.number("fd", 3..=0xffff, mistakes);
    match (socket, fd) {
        (Found::Missing, Found::Missing) => {
            let text = "this device has no socket: add socket = \"/run/doorbell/vm1.sock\"";
            mistakes.add(&table.place, text);
            None
        }
        (Found::Value(path, place), Found::Missing) => Some((Endpoint::Path(path), place)),
        (Found::Missing, Found::Value(fd, place)) => Some((Endpoint::Fd(fd as i32), place)),
        (Found::Value(..), Found::Value(_, place)) => {
            mistakes.add(&place, "`fd` is there instead of `socket`, and this device has both: remove one");
            None
        }
        _ => None,
    }
}

fn protocol(table: &Table<'_, '_>, mistakes: &mut Mistakes<'_>) -> Option<Protocol> {
    const CHOICE: &str = "\"vfio-user\" (an NVMe controller) or \"vhost-user\" (a virtio disk)";
    let protocol = table.string("protocol", "vfio-user", mistakes);
    if protocol.is_missing() {
        mistakes.add(&table.place, format!("this device has no protocol: add protocol = {CHOICE}"));
    }
    let choose = |text: String| match text.as_str() {
        "vfio-user" => Ok(Protocol::VfioUser),
        "vhost-user" => Ok(Protocol::VhostUser),
        other => Err(format!("`protocol` is {CHOICE}, not \"{other}\"")),
    };
    protocol.then(mistakes, choose).value()
}

/// Poller threads, their processors, and where those are named. Processors alone say how many threads.
fn pollers(table: &Table<'_, '_>, mistakes: &mut Mistakes<'_>) -> (usize, Vec<usize>, Range<usize>) {
    let takes = "processors, such as cpus = [2, 3] or cpus = \"4-7\"";
    let cpus = table.read("cpus", takes, mistakes, |value| match value {
        DeValue::String(text) => Some(text.parse::<CpuList>().map(|list| list.0)),
        DeValue::Array(array) => {
            let numbers = array.iter().map(|element| integer(element.get_ref()).map(|cpu| cpu as usize));
            Some(numbers.collect::<Option<_>>().ok_or_else(|| format!("`cpus` takes {takes}")))
        }
        _ => None,
    });
    let pollers = table.number("pollers", 1..=MAX_GROUPS as u64, mistakes);
    let Found::Value(cpus, place) = cpus else {
        return (pollers.or(1) as usize, Vec::new(), table.place.clone());
    };
    match pollers {
        Found::Value(pollers, _) if pollers != cpus.len() as u64 => {
            let text = format!(
                "{} processors for {pollers} pollers: name one for each, or leave `pollers` or `cpus` out",
                cpus.len()
            );
            mistakes.add(&place, text);
        }
        _ if cpus.is_empty() || cpus.len() > MAX_GROUPS => {
            mistakes.add(&place, format!("`cpus` names 1 to {MAX_GROUPS} processors, a poller each"));
        }
        _ => {}
    }
    (cpus.len(), cpus, place)
}

/// The namespaces, and where their media are named.
fn namespaces(
    table: &Table<'_, '_>,
    protocol: Option<Protocol>,
    folder: &Path,
    mistakes: &mut Mistakes<'_>,
) -> Option<(Vec<NamespaceSpec>, Vec<Range<usize>>)> {
    let tables = table.tables("namespace", "device.namespace", mistakes);
    if table.place_of("namespace").is_none() {
        let text = format!("this device has no storage: add a table [[device.namespace]] and {ONE_MEDIUM}");
        mistakes.add(&table.place, text);
    }
    if let ([_, (_, second), ..], Some(Protocol::VhostUser)) = (&tables[..], protocol) {
        mistakes.add(second, "a vhost-user device is one disk: put this namespace into a device of its own");
    }
    let count = tables.len();
    let read = |(table, place)| namespace(table, place, protocol, folder, mistakes);
    let read: Vec<_> = tables.into_iter().filter_map(read).collect();
    (count > 0 && read.len() == count).then(|| read.into_iter().unzip())
}

fn namespace(
    table: &DeTable<'_>,
    place: Range<usize>,
    protocol: Option<Protocol>,
    folder: &Path,
    mistakes: &mut Mistakes<'_>,
) -> Option<(NamespaceSpec, Range<usize>)> {
    let table = Table::new(table, place.clone(), "a namespace", &NAMESPACE_KEYS, mistakes);
    let files = ["file", "qcow2"].map(|key| {
        table.string(key, "disk.img", mistakes).then(mistakes, |path| {
            if path.is_empty() {
                Err(format!("`{key}` is empty: name a path"))
            } else {
                Ok(folder.join(path))
            }
        })
    });
    let sizes = ["ram", "null"].map(|key| table.size(key, mistakes));
    let block = table.size("block-size", mistakes).then(mistakes, |bytes| match bytes {
        512 | 4096 => Ok(bytes as u32),
        other => Err(format!("`block-size` is 512 or 4096, not {other}")),
    });
    let read_only = table.boolean("read-only", mistakes);
    let direct = table.string("direct", "auto", mistakes).then(mistakes, |text| match text.as_str() {
        "auto" => Ok(Direct::Auto),
        "on" => Ok(Direct::On),
        "off" => Ok(Direct::Off),
        other => Err(format!("`direct` is \"auto\", \"on\" or \"off\", not \"{other}\"")),
    });
    let named: Vec<&str> =
        ["file", "qcow2", "ram", "null"].into_iter().filter(|key| table.place_of(key).is_some()).collect();
    match named[..] {
        [_] => {}
        [] => mistakes.add(&place, format!("this namespace has no storage: {ONE_MEDIUM}")),
        _ => mistakes
            .add(&place, format!("this namespace has {} of {}: {ONE_MEDIUM}", named.len(), named.join(", "))),
    }
    let kind = named.first().copied().filter(|_| named.len() == 1)?;
    let in_memory = matches!(kind, "ram" | "null");
    if let (true, Found::Value(true, place)) = (in_memory, &read_only) {
        mistakes.add(place, format!("a {kind} namespace can't be read-only: it would be empty for ever"));
    }
    if let (true, Some(place)) = (kind != "file", table.place_of("direct")) {
        mistakes
            .add(&place, format!("`direct` is for `file`; a {kind} namespace has no such thing: remove it"));
    }
    let incoming = table.boolean("incoming", mistakes);
    if let (Found::Value(true, place), false) =
        (&incoming, kind == "file" && protocol != Some(Protocol::VfioUser))
    {
        let text = "`incoming` is for a `file` of a vhost-user device, whose image another server still has: remove it";
        mistakes.add(place, text);
    }
    let block_bytes = block.or(512);
    let read_only = read_only.or(false);
    let [file, qcow2] = files;
    let [ram, null] = sizes;
    let size = |size: Found<u64>, mistakes: &mut Mistakes<'_>| {
        size.then(mistakes, |bytes| {
            if bytes > 0 && bytes.is_multiple_of(block_bytes.into()) {
                Ok(bytes)
            } else {
                Err(format!("{bytes} bytes is no whole number of blocks of {block_bytes}, 1 or more"))
            }
        })
    };
    let (storage, place) = match kind {
        "file" => {
            with_place(file, |path| StorageConfig::File { path, read_only, direct: direct.or(Direct::Auto) })
        }
        "qcow2" => with_place(qcow2, |path| StorageConfig::Qcow2 { path, read_only }),
        "ram" => with_place(size(ram, mistakes), |size_bytes| StorageConfig::Ram { size_bytes }),
        _ => with_place(size(null, mistakes), |size_bytes| StorageConfig::Null { size_bytes }),
    }?;
    Some((NamespaceSpec { storage, block_bytes, incoming: incoming.or(false) }, place))
}

fn with_place<T>(
    found: Found<T>,
    make: impl FnOnce(T) -> StorageConfig,
) -> Option<(StorageConfig, Range<usize>)> {
    match found {
        Found::Value(value, place) => Some((make(value), place)),
        Found::Missing | Found::Wrong => None,
    }
}
