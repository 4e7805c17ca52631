//! Where the set-up put things. `cargo xtask setup` makes these files (`xtask/src/setup/`).

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// The root of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Cargo's output folder.
#[must_use]
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(path) => workspace().join(path),
        None => workspace().join("target"),
    }
}

/// A file of the set-up, for instance `vmlinuz`; an error says how to get it.
pub fn part(name: &str) -> Result<PathBuf> {
    let path = target().join("guest").join(name);
    ensure!(path.exists(), "{} is missing: run `cargo xtask setup`", path.display());
    Ok(path)
}

/// The folder of the scripts that a guest runs.
#[must_use]
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}
