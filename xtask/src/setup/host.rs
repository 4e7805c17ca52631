//! Programs that the machine itself must have.

use std::process::Command;

use anyhow::{Context, Result};

use crate::bare_metal;
use crate::command::{self, installed};

/// A program that is looked for, and the Debian package that brings it.
const PROGRAMS: [(&str, &str); 9] = [
    ("apt-get", "apt"),
    ("cpio", "cpio"),
    ("dpkg-deb", "dpkg"),
    ("mcopy", "mtools"),
    ("mformat", "mtools"),
    ("nm", "binutils"),
    ("size", "binutils"),
    ("qemu-img", "qemu-utils"),
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
    packages.extend(bare_metal::missing_packages()?);
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
