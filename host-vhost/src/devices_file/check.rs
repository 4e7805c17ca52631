//! What only the machine, or all devices together, can tell: sockets, images, processors, memory.
//!
//! Nothing is opened or locked, so that the file of a running server can be checked.

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::device::Entry;
use super::mistake::Mistakes;
use crate::cpus::{self, CpuList};
use crate::endpoint::Endpoint;
use crate::fleet::Device;
use crate::storage::StorageConfig;

/// Bytes of a socket's path that the kernel takes, less what a control socket and a socket in the making add.
const SOCKET_PATH_BYTES: usize = 107 - ".ctl.4194304".len();

/// Looks at all devices.
pub(super) fn check(entries: &[Entry], mistakes: &mut Mistakes<'_>) {
    sockets(entries, mistakes);
    images(entries, mistakes);
    states(entries, mistakes);
    processors(entries, mistakes);
    memory(entries, mistakes);
}

fn sockets(entries: &[Entry], mistakes: &mut Mistakes<'_>) {
    let mut taken: HashMap<PathBuf, Range<usize>> = HashMap::new();
    let mut descriptors: HashMap<i32, Range<usize>> = HashMap::new();
    for entry in entries {
        let place = &entry.endpoint_place;
        match entry.device.endpoint() {
            Endpoint::Fd(fd) => {
                if let Some(first) = descriptors.insert(*fd, place.clone()) {
                    let line = mistakes.line(&first);
                    mistakes.add(place, format!("descriptor {fd} is the device's of line {line} already"));
                }
            }
            Endpoint::Path(path) => {
                if let Err(text) = socket(path, matches!(entry.device, Device::Nvme(_))) {
                    mistakes.add(place, text);
                }
                let path = resolved(path);
                // Each device also has a control socket beside its own.
                let paths = [path.clone(), crate::ctl::path_of(&path)];
                if let Some((path, first)) = paths.iter().find_map(|path| taken.get_key_value(path)) {
                    let (path, line) = (path.display(), mistakes.line(first));
                    let text =
                        format!("{path} is used by the device of line {line} already: choose another path");
                    mistakes.add(place, text);
                }
                taken.extend(paths.map(|path| (path, place.clone())));
            }
        }
    }
}

/// Whether a socket can be put there.
fn socket(path: &Path, nvme: bool) -> Result<(), String> {
    let (shown, len) = (path.display(), path.as_os_str().len());
    if len > SOCKET_PATH_BYTES {
        return Err(format!(
            "the path of this socket has {len} bytes; with the control socket beside it {SOCKET_PATH_BYTES} fit: use a shorter one"
        ));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && nvme => {}
        Ok(found) if found.is_dir() => {
            return Err(format!("{shown} is a directory: name a socket in it"));
        }
        Ok(found) if !found.file_type().is_socket() => {
            return Err(format!("{shown} exists and isn't a socket: remove it or choose another path"));
        }
        _ => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(format!("there is no directory {0}: create it with `mkdir -p {0}`", folder.display()));
    }
    access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("no socket can be made in {}: {error}", folder.display()))
}

/// The same path for the same place, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(path) = std::fs::canonicalize(path) {
        return path;
    }
    let folder = path.parent().and_then(|folder| std::fs::canonicalize(folder).ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

fn images(entries: &[Entry], mistakes: &mut Mistakes<'_>) {
    /// Where it was named first, and whether anybody there writes.
    type Seen = (Range<usize>, bool);
    let mut seen: HashMap<(u64, u64), Seen> = HashMap::new();
    for entry in entries {
        for (spec, place) in entry.namespaces().iter().zip(&entry.media) {
            let (path, read_only, qcow2) = match &spec.storage {
                StorageConfig::File { path, read_only, .. } => (path, *read_only, false),
                StorageConfig::Qcow2 { path, read_only } => (path, *read_only, true),
                StorageConfig::Null { .. } | StorageConfig::Ram { .. } => continue,
            };
            let identity = match image(path, read_only, qcow2, spec.block_bytes) {
                Ok(identity) => identity,
                Err(text) => {
                    mistakes.add(place, text);
                    continue;
                }
            };
            // Whoever migrates takes the image over from another, which may be in this process too.
            if spec.incoming {
                continue;
            }
            let (first, writes) = seen.entry(identity).or_insert_with(|| (place.clone(), false));
            if first != place && (*writes || !read_only) {
                let line = mistakes.line(first);
                mistakes.add(
                    place,
                    format!(
                        "{} is named in line {line} already; two writers, or a writer and a reader, would destroy \
                         it: name another image, or set read-only = true in both places",
                        path.display()
                    ),
                );
            }
            *writes |= !read_only;
        }
    }
}

/// Whether an image can be served; what identifies it.
fn image(path: &Path, read_only: bool, qcow2: bool, block_bytes: u32) -> Result<(u64, u64), String> {
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if qcow2 => {
            format!("{shown}: no such file; create it with `qemu-img create -f qcow2 {shown} 1G`")
        }
        std::io::ErrorKind::NotFound => {
            format!("{shown}: no such file; create it with `truncate -s 1G {shown}`")
        }
        _ => format!("{shown}: {error}"),
    })?;
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(format!("{shown} is neither a file nor a block device"));
    }
    let wanted = if read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };
    access(path, wanted).map_err(|error| {
        let how = if read_only { "read" } else { "written (it can be served with read-only = true)" };
        format!("{shown} can't be {how}: {error}")
    })?;
    if kind.is_block_device() {
        return Ok((found.dev(), found.rdev() | 1 << 63));
    }
    match (found.len(), qcow2) {
        (0, false) => {
            return Err(format!("{shown} is empty; give it a size with `truncate -s 1G {shown}`"));
        }
        (len, false) if len < block_bytes.into() => {
            return Err(format!("{shown} has {len} bytes, less than a block of {block_bytes}"));
        }
        (_, true) if !has_qcow2_magic(path) => {
            return Err(format!("{shown} isn't a qcow2 image; a raw image is named with `file`"));
        }
        _ => {}
    }
    Ok((found.dev(), found.ino()))
}

fn has_qcow2_magic(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"QFI\xfb"
}

fn states(entries: &[Entry], mistakes: &mut Mistakes<'_>) {
    let mut seen: HashMap<PathBuf, Range<usize>> = HashMap::new();
    for entry in entries {
        let Device::Nvme(config) = &entry.device else { continue };
        let Some(path) = config.state.as_ref().filter(|path| path.as_os_str() != "none") else { continue };
        if let Some(first) = seen.insert(resolved(path), entry.state_place.clone()) {
            let line = mistakes.line(&first);
            mistakes.add(
                &entry.state_place,
                format!("{} is the state file of line {line} already: choose another", path.display()),
            );
        }
    }
}

fn processors(entries: &[Entry], mistakes: &mut Mistakes<'_>) {
    let Ok(allowed) = cpus::allowed() else { return };
    for entry in entries {
        let missing: Vec<usize> =
            entry.cpus().iter().copied().filter(|cpu| !allowed.0.contains(cpu)).collect();
        if !missing.is_empty() {
            mistakes.add(
                &entry.cpus_place,
                format!("this process can't run on processor {}; it may use {allowed}", CpuList(missing)),
            );
        }
    }
}

/// RAM namespaces that can't ever be filled.
fn memory(entries: &[Entry], mistakes: &mut Mistakes<'_>) {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return };
    let Some(machine_bytes) = machine_bytes(&text) else { return };
    let mut sum_bytes: u64 = 0;
    for entry in entries {
        for (spec, place) in entry.namespaces().iter().zip(&entry.media) {
            let StorageConfig::Ram { size_bytes } = spec.storage else { continue };
            let before = sum_bytes;
            sum_bytes = sum_bytes.saturating_add(size_bytes);
            // Told once, where it is too much.
            if before <= machine_bytes && sum_bytes > machine_bytes {
                let text = format!(
                    "up to here the RAM namespaces add up to {sum_bytes} bytes, more than the {machine_bytes} \
                     that this machine has with swap: make them smaller, or use a file"
                );
                mistakes.add(place, text);
            }
        }
    }
}

/// Memory and swap from `/proc/meminfo`.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some(kib("MemTotal")?.saturating_add(kib("SwapTotal")?).saturating_mul(1024))
}
