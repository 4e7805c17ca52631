//! Brings what the whole-system tests need under `target/guest`:
//!
//! | path | what it is |
//! | --- | --- |
//! | `qemu-system-x86_64` | starts a QEMU that has `vfio-user-pci` |
//! | `qemu-img`, `qemu-io`, `qemu-storage-daemon` | its other programs, with the driver `virtio-blk-vhost-user` |
//! | `firmware/` | OVMF's code and variables, and the EFI shell |
//! | `vmlinuz` | a Linux kernel with the nvme driver built in |
//! | `initramfs` | busybox, fio, nvme-cli, pciutils, e2fsprogs; the tests append scripts to it |
//! | `modules/` | loadable modules for guests that want them, as plain `.ko` |
//!
//! Nothing of that is installed on the machine: Debian packages are downloaded by the machine's own apt
//! with a state of its own, and unpacked. The folder appears in one step when it is complete, so that an
//! interrupted set-up starts anew and a finished one costs nothing to repeat.

mod debian;
pub(crate) mod host;
mod image;
mod qemu;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::layout;

/// To be raised when the same packages are to be unpacked in another way.
const RECIPE: u32 = 1;

/// Does what is missing; with `force`, everything.
pub(crate) fn run(force: bool) -> Result<()> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!("the set-up knows Linux on x86_64 only: the guests are x86_64 and so is the QEMU it fetches");
    }
    host::run()?;
    let done = layout::guest();
    let stamp = done.join("stamp");
    if !force && fs::read_to_string(&stamp).is_ok_and(|text| text == recipe()) {
        println!("{} is complete", done.display());
        return Ok(());
    }
    let partial = layout::target().join("guest.partial");
    remove(&partial)?;
    fs::create_dir_all(&partial).with_context(|| format!("{} can't be made", partial.display()))?;
    build(&partial)?;
    fs::write(partial.join("stamp"), recipe())?;
    remove(&done)?;
    fs::rename(&partial, &done).with_context(|| format!("{} can't be renamed", partial.display()))?;
    println!("{} is complete", done.display());
    Ok(())
}

fn build(folder: &Path) -> Result<()> {
    let archive = debian::Archive::open(&folder.join("apt"))?;
    qemu::build(&archive, folder)?;
    image::build(&archive, folder)?;
    drop(archive);
    remove(&folder.join("apt"))
}

fn recipe() -> String {
    format!("{RECIPE} {:?} {:?} {:?}\n", qemu::PACKAGES, qemu::FIRMWARE, image::PACKAGES)
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} can't be removed", folder.display()))?;
    }
    Ok(())
}
