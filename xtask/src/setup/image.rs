//! The Linux guest: a kernel, and a root in memory with the programs that the test scripts call.
//!
//! The image holds programs only. What a guest does (its `init` and its scripts) is in `tests/guest/` and
//! is appended by the harness at each start, so that a changed script needs no new set-up.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::output;
use crate::setup::debian::{Archive, Suite};

/// The packages that the guest's files come from.
pub(super) const PACKAGES: [&str; 6] =
    ["linux-image-cloud-amd64", "busybox-static", "fio", "nvme-cli", "pciutils", "e2fsprogs"];

/// Programs that busybox doesn't have.
const PROGRAMS: [&str; 7] = [
    "usr/bin/fio",
    "usr/bin/lspci",
    "usr/bin/setpci",
    "usr/sbin/nvme",
    "usr/sbin/mke2fs",
    "usr/sbin/e2fsck",
    "usr/lib64/ld-linux-x86-64.so.2",
];

/// Modules that a guest may load; the nvme driver is part of the kernel.
const MODULES: [&str; 1] = ["virtio_blk"];

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Makes `vmlinuz`, `initramfs` and `modules/` in `folder`.
pub(super) fn build(archive: &Archive, folder: &Path) -> Result<()> {
    let from = folder.join("linux");
    archive.unpack(Suite::Release, &PACKAGES, &from)?;
    fs::copy(kernel(&from)?, folder.join("vmlinuz"))?;
    modules(&from, &folder.join("modules"))?;

    let root = folder.join("root");
    for part in ["usr/bin", "usr/sbin", LIBRARIES, "usr/lib64", "usr/share/misc", "dev", "proc", "sys", "tmp"]
    {
        fs::create_dir_all(root.join(part))?;
    }
    for part in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{part}"), root.join(part))?;
    }
    let busybox = root.join("usr/bin/busybox");
    fs::copy(from.join("usr/bin/busybox"), &busybox)?;
    for name in output(Command::new(&busybox).arg("--list"))?.lines() {
        if name != "busybox" {
            symlink("busybox", root.join("usr/bin").join(name))?;
        }
    }
    for program in PROGRAMS {
        let name = Path::new(program).file_name().unwrap_or_default();
        // One of busybox's names gives way to the real program.
        let _ = fs::remove_file(root.join("usr/bin").join(name));
        fs::copy(from.join(program), root.join(program)).with_context(|| format!("{program} is missing"))?;
    }
    for library in libraries(&from)? {
        let name = library.file_name().unwrap_or_default();
        fs::copy(&library, root.join(LIBRARIES).join(name))?;
    }
    pack(&root, &folder.join("initramfs"))?;
    fs::remove_dir_all(root)?;
    Ok(fs::remove_dir_all(from)?)
}

fn kernel(from: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(from.join("boot"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("vmlinuz-") {
            println!("guest kernel: {}", entry.file_name().to_string_lossy());
            return Ok(entry.path());
        }
    }
    bail!("the kernel's package holds no vmlinuz")
}

/// Copies modules unpacked, each after those it depends on in `order`.
fn modules(from: &Path, target: &Path) -> Result<()> {
    fs::create_dir_all(target)?;
    let mut order = String::new();
    let files = output(Command::new("find").arg(from.join("usr/lib/modules")).args(["-name", "*.ko.xz"]))?;
    for module in MODULES {
        let file = files
            .lines()
            .find(|file| file.ends_with(&format!("/{module}.ko.xz")))
            .with_context(|| format!("the kernel has no module {module}"))?;
        let name = format!("{module}.ko");
        unpack(&from.join("usr/bin/busybox"), Path::new(file), &target.join(&name))?;
        order.push_str(&name);
        order.push('\n');
    }
    Ok(fs::write(target.join("order"), order)?)
}

fn unpack(busybox: &Path, from: &Path, to: &Path) -> Result<()> {
    let status = Command::new(busybox).arg("xzcat").arg(from).stdout(File::create(to)?).status()?;
    ensure!(status.success(), "{} can't be unpacked", from.display());
    Ok(())
}

/// The shared libraries of the programs, asked of the loader that will load them.
fn libraries(from: &Path) -> Result<BTreeSet<PathBuf>> {
    let folder = from.join(LIBRARIES);
    let path = format!("{0}:{0}/ceph", folder.display());
    let mut found = BTreeSet::new();
    for program in PROGRAMS.iter().filter(|program| !program.contains("/lib64/")) {
        let mut loader = Command::new(from.join("usr/lib64/ld-linux-x86-64.so.2"));
        let list = output(loader.arg("--library-path").arg(&path).arg("--list").arg(from.join(program)))?;
        for word in list.split_whitespace().filter(|word| word.starts_with('/')) {
            let library = Path::new(word);
            if library.starts_with(&folder) {
                found.insert(library.to_owned());
            }
        }
    }
    Ok(found)
}

fn pack(root: &Path, to: &Path) -> Result<()> {
    let names = output(Command::new("find").arg(".").current_dir(root))?;
    let list = root.with_extension("list");
    fs::write(&list, names)?;
    let status = Command::new("cpio")
        .args(["--create", "--format=newc", "--owner=+0:+0", "--quiet"])
        .current_dir(root)
        .stdin(Stdio::from(File::open(&list)?))
        .stdout(File::create(to)?)
        .status()?;
    ensure!(status.success(), "cpio could not write {}", to.display());
    Ok(fs::remove_file(list)?)
}
