//! Programs that the machine itself must have.

use std::process::Command;

use anyhow::{Context, Result};

use crate::bare_metal;
use crate::command::{self, installed};
use crate::job::foreign;

/// A program that is looked for, and the Debian package that brings it.
const PROGRAMS: [(&str, &str); 16] = [
    ("apt-get", "apt"),
    ("cpio", "cpio"),
    ("dpkg-deb", "dpkg"),
    ("mcopy", "mtools"),
    ("mformat", "mtools"),
    ("i686-linux-gnu-gcc", "gcc-i686-linux-gnu"),
    ("nm", "binutils"),
    ("readelf", "binutils"),
    ("s390x-linux-gnu-gcc", "gcc-s390x-linux-gnu"),
    ("size", "binutils"),
    ("qemu-img", "qemu-utils"),
    ("qemu-s390x-static", "qemu-user-static"),
    ("qemu-system-arm", "qemu-system-arm"),
    ("qemu-system-riscv32", "qemu-system-misc"),
    ("timeout", "coreutils"),
    ("unshare", "util-linux"),
];

/// The keys that Debian's archive is signed with.
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Installs what is missing.
pub(crate) fn run() -> Result<()> {
    let mut packages: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !installed(program)).map(|(_, package)| *package).collect();
    if !std::path::Path::new(KEYRING).exists() {
        packages.push("debian-archive-keyring");
    }
    packages.extend(foreign::missing_packages());
    packages.extend(bare_metal::missing_packages(&bare_metal::TARGETS)?);
    packages.extend(bare_metal::missing_packages(&[bare_metal::WASM])?);
    install(packages)
}

/// Installs what is missing to compile the sandbox module, and nothing else.
pub(crate) fn for_module() -> Result<()> {
    install(bare_metal::missing_packages(&[bare_metal::WASM])?)
}

fn install(mut packages: Vec<&str>) -> Result<()> {
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let advice = || {
        format!("as root: apt-get update && apt-get install {} (then repeat the set-up)", packages.join(" "))
    };
    command::run(apt().arg("update")).with_context(advice)?;
    let install = ["install", "--yes", "--no-install-recommends"];
    command::run(apt().args(install).args(&packages)).with_context(advice)
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    command
}
