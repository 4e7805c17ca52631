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
/// `qemu-block-extra` holds the module with libblkio, a virtio driver that needs no VM.
pub(super) const PACKAGES: [&str; 4] = ["qemu-system-x86", "qemu-utils", "qemu-block-extra", "seabios"];

/// QEMU's programs that aren't the machine itself.
const TOOLS: [&str; 3] = ["qemu-img", "qemu-io", "qemu-storage-daemon"];

/// The packages of UEFI firmware.
pub(super) const FIRMWARE: [&str; 2] = ["ovmf", "efi-shell-x64"];

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Makes the start scripts and `firmware/` in `folder`.
pub(super) fn build(archive: &Archive, folder: &Path) -> Result<()> {
    if suitable("qemu-system-x86_64") && TOOLS.into_iter().all(installed) && drives_virtio("qemu-img") {
        println!("the installed QEMU has vfio-user-pci and a virtio driver of its own");
        script(folder, "qemu-system-x86_64", "exec qemu-system-x86_64 \"$@\"")?;
        for tool in TOOLS {
            script(folder, tool, &format!("exec {tool} \"$@\""))?;
        }
    } else {
        archive.unpack(Suite::Backports, &PACKAGES, &folder.join("qemu"))?;
        let data = "-L \"$root/usr/share/qemu\" -L \"$root/usr/share/seabios\"";
        script(folder, "qemu-system-x86_64", &loader("qemu-system-x86_64", data))?;
        for tool in TOOLS {
            script(folder, tool, &loader(tool, ""))?;
        }
    }
    if !drives_virtio(&folder.join("qemu-img").to_string_lossy()) {
        bail!("{} has no driver virtio-blk-vhost-user; it comes with qemu-block-extra", folder.display());
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

/// Whether this program is a QEMU that has the device. The list of all devices would do too, but for that QEMU loads
/// every module that it finds, and fails where another version has left its own.
fn suitable(program: &str) -> bool {
    output(Command::new(program).args(["-device", "vfio-user-pci,help"])).is_ok()
}

/// Whether this `qemu-img` has the driver `virtio-blk-vhost-user`: then its complaint is another.
fn drives_virtio(program: &str) -> bool {
    let image = "driver=virtio-blk-vhost-user,path=/nonexistent/socket,cache.direct=on";
    let said = output(Command::new(program).args(["info", "--image-opts", image]));
    said.is_err_and(|error| {
        let text = format!("{error:#}");
        !text.contains("Unknown driver") && !text.contains("can't be started")
    })
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
