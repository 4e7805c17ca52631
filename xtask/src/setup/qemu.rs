//! A QEMU with `vfio-user-pci`, and firmware to boot with.
//!
//! The device came with QEMU 10.1. The machine's own is taken when it has it. Otherwise a newer one is
//! unpacked beside its libraries and started through its own dynamic loader, which needs neither an
//! installation nor a chroot: sockets and disk images keep their paths.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{installed, output};
use crate::setup::debian::{Archive, Suite};

/// The packages of a QEMU that has to be fetched.
pub(super) const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-utils", "seabios"];

/// The packages of UEFI firmware.
pub(super) const FIRMWARE: [&str; 2] = ["ovmf", "efi-shell-x64"];

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Makes the start scripts and `firmware/` in `folder`.
pub(super) fn build(archive: &Archive, folder: &Path) -> Result<()> {
    if suitable("qemu-system-x86_64") && installed("qemu-img") {
        println!("the installed QEMU has vfio-user-pci");
        script(folder, "qemu-system-x86_64", "exec qemu-system-x86_64 \"$@\"")?;
        script(folder, "qemu-img", "exec qemu-img \"$@\"")?;
    } else {
        archive.unpack(Suite::Backports, &PACKAGES, &folder.join("qemu"))?;
        let data = "-L \"$root/usr/share/qemu\" -L \"$root/usr/share/seabios\"";
        script(folder, "qemu-system-x86_64", &loader("qemu-system-x86_64", data))?;
        script(folder, "qemu-img", &loader("qemu-img", ""))?;
    }
    let program = folder.join("qemu-system-x86_64");
    if !suitable(&program.to_string_lossy()) {
        bail!("{} has no vfio-user-pci although it was just unpacked", program.display());
    }
    let version = output(Command::new(&program).arg("--version"))?;
    println!("{}", version.lines().next().unwrap_or_default());
    firmware(archive, folder)
}

fn firmware(archive: &Archive, folder: &Path) -> Result<()> {
    let root = folder.join("ovmf");
    archive.unpack(Suite::Release, &FIRMWARE, &root)?;
    let target = folder.join("firmware");
    fs::create_dir_all(&target)?;
    for (from, to) in [
        ("usr/share/OVMF/OVMF_CODE_4M.fd", "code.fd"),
        ("usr/share/OVMF/OVMF_VARS_4M.fd", "variables.fd"),
        ("usr/share/efi-shell-x64/shellx64.efi", "shell.efi"),
    ] {
        fs::copy(root.join(from), target.join(to)).with_context(|| format!("{from} is not in ovmf"))?;
    }
    Ok(fs::remove_dir_all(root)?)
}

/// Whether this program is a QEMU that has the device.
fn suitable(program: &str) -> bool {
    output(Command::new(program).args(["-device", "help"]))
        .is_ok_and(|text| text.contains("\"vfio-user-pci\""))
}

fn loader(program: &str, data: &str) -> String {
    format!(
        "root=$here/qemu\n\
         export QEMU_MODULE_DIR=\"$root/{LIBRARIES}/qemu\"\n\
         exec \"$root/usr/lib64/ld-linux-x86-64.so.2\" --library-path \"$root/{LIBRARIES}\" \\\n    \
         \"$root/usr/bin/{program}\" {data} \"$@\""
    )
}

/// A start script that becomes the program, so that a signal to it reaches the program.
fn script(folder: &Path, name: &str, body: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\nhere=$(cd \"$(dirname \"$0\")\" && pwd)\n{body}\n"))?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
}
