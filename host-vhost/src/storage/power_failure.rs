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

use super::{OpenError, image};

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
        repair(held, path)?;
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

fn repair(held: &File, path: &Path) -> Result<(), OpenError> {
    tracing::warn!(path = %path.display(), "the machine stopped while this image was open for writing; repairing it");
    // qemu-img wants the lock for itself.
    image::unlock(held);
    let checked =
        Command::new("qemu-img").args(["check", "-q", "-f", "qcow2", "-r", "all"]).arg(path).output();
    image::lock(held, path, false)?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::storage::Qcow2Storage;

    fn qemu_img(arguments: &[&str]) -> Option<i32> {
        Command::new("qemu-img")
            .args(arguments)
            .output()
            .expect("qemu-img (package qemu-utils)")
            .status
            .code()
    }

    fn mark(path: &Path) -> Option<Vec<u8>> {
        let mut found = [0; 64];
        let len = rustix::fs::getxattr(path, ATTRIBUTE, &mut found).ok()?;
        Some(found[..len].to_vec())
    }

    #[test]
    fn image_of_an_earlier_boot_is_repaired_before_use() {
        // Beside the test itself, since a temporary directory may be in memory.
        let program = std::env::current_exe().expect("this test");
        let directory = tempfile::tempdir_in(program.parent().expect("folder")).expect("directory");
        let path = directory.path().join("disk.qcow2");
        let text = path.to_str().expect("path");
        assert_eq!(
            qemu_img(&["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata", text, "1M"]),
            Some(0)
        );
        drop(Qcow2Storage::open(&path, false).expect("open"));
        assert_eq!(mark(&path), None, "closed cleanly");

        // What a power failure can leave: clusters in use whose reference count says free. The table of
        // counts is cluster 1 (its offset is at 48 of the header), its first block what it points at.
        let file = File::options().read(true).write(true).open(&path).expect("image");
        let word = |at| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).expect("read");
            u64::from_be_bytes(bytes)
        };
        let block = word(word(48));
        file.write_all_at(&[0; 8], block + 2 * 6).expect("clear four counts");
        assert_eq!(qemu_img(&["check", "-q", text]), Some(2), "damaged");
        rustix::fs::setxattr(&path, ATTRIBUTE, b"another boot", XattrFlags::empty()).expect("mark");

        let storage = Qcow2Storage::open(&path, false).expect("repaired");
        assert_ne!(mark(&path), None, "open for writing");
        assert!(Qcow2Storage::open(&path, true).is_err(), "locked again after the repair");
        drop(storage);
        assert_eq!(mark(&path), None);
        assert_eq!(qemu_img(&["check", "-q", text]), Some(0));
    }
}
