//! Notices that the machine stopped while a qcow2 image was open for writing.
//!
//! A qcow2 image has its own metadata, written to the page cache before a write is acknowledged, so
//! the end of our process leaves it whole. After a power failure the kernel may have written some of
//! it and not the rest: a cluster can be in use by a table while its reference count says free. Read
//! as it is, nothing acknowledged by a flush is missing; written to, such a cluster would be given away
//! a second time. Ordering the writes by `fdatasync` would cost two of them for each new cluster, so
//! instead the image carries the machine's boot identifier in an extended attribute while it is open
//! for writing. If another boot's identifier is found, the reference counts are repaired first, by
//! `qemu-img check -r all`, or the image is refused.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;

use super::OpenError;

/// See the module.
const ATTRIBUTE: &str = "user.doorbell.open-since-boot";

/// Marks an image as open for writing; call [`leave`] after a clean close. `held` is our descriptor,
/// which is locked.
pub(super) fn enter(held: &File, path: &Path) -> Result<(), OpenError> {
    let Ok(boot) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return Ok(()) };
    let mut found = [0; 64];
    if let Ok(len) = rustix::fs::fgetxattr(held, ATTRIBUTE, &mut found)
        && found[..len] != *boot.trim().as_bytes()
    {
        repair(path)?;
    }
    let marked = rustix::fs::fsetxattr(held, ATTRIBUTE, boot.trim().as_bytes(), XattrFlags::empty())
        .map_err(std::io::Error::from)
        .and_then(|()| held.sync_all());
    if let Err(error) = marked {
        tracing::warn!(path = %path.display(), %error, "no extended attributes here: after a power failure run `qemu-img check -r all` on the image before it is served again");
    }
    Ok(())
}

/// The image was closed and everything is on the medium.
pub(super) fn leave(held: &File) {
    let _ = rustix::fs::fremovexattr(held, ATTRIBUTE);
}

fn repair(path: &Path) -> Result<(), OpenError> {
    tracing::warn!(path = %path.display(), "the machine stopped while this image was open for writing; repairing it");
    // `-U`: the lock it would take is ours.
    let checked =
        Command::new("qemu-img").args(["check", "-q", "-f", "qcow2", "-r", "all"]).arg(path).output();
    // 3: clusters are leaked, which wastes room and nothing else.
    if checked.as_ref().is_ok_and(|output| matches!(output.status.code(), Some(0 | 3))) {
        return Ok(());
    }
    let why = match checked {
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("qemu-img: {error}"),
    };
    let what = format!(
        "the machine stopped while this image was open for writing, and it can't be repaired ({why}); \
         run `qemu-img check -r all` on it, then `setfattr -x {ATTRIBUTE}`"
    );
    Err(OpenError::Unusable { path: path.into(), what })
}
