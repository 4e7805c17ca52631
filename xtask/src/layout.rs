//! Where things are. `doorbell-tests` finds the same files by the same names (`tests/src/layout.rs`).

use std::path::PathBuf;

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Cargo's output folder.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(path) => workspace().join(path),
        None => workspace().join("target"),
    }
}

/// What the set-up makes: QEMU, firmware, kernel, guest image.
pub(crate) fn guest() -> PathBuf {
    target().join("guest")
}
