//! The installation.
//!
//! | below the prefix | what it is |
//! | --- | --- |
//! | `bin/doorbell` | the program |
//! | `libexec/doorbell-vhost-user-blk` | its other name, under which it takes the arguments of QEMU's conventions for vhost-user backends |
//! | `share/qemu/vhost-user/50-doorbell-blk.json` | the description by which management tools find the backend (QEMU, `docs/interop/vhost-user.json`) |

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::command;

const PROGRAM: &str = "bin/doorbell";
const BACKEND: &str = "libexec/doorbell-vhost-user-blk";
const DESCRIPTION: &str = "share/qemu/vhost-user/50-doorbell-blk.json";

/// Builds the program for speed and installs it at `prefix`, which lies below `destdir` for now.
pub(crate) fn run(destdir: &Path, prefix: &Path) -> Result<()> {
    ensure!(prefix.is_absolute(), "--prefix {} has to be an absolute path", prefix.display());
    command::run(&mut command::cargo(["build", "--release", "--locked", "--package", "doorbell-vhost"]))?;
    let program = crate::layout::target().join("release/doorbell");
    for path in place(&program, destdir, prefix)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Puts everything in its place; what an earlier installation left there is replaced.
fn place(program: &Path, destdir: &Path, prefix: &Path) -> Result<[PathBuf; 3]> {
    let below = destdir.join(prefix.strip_prefix("/").unwrap_or(prefix));
    let places = [PROGRAM, BACKEND, DESCRIPTION].map(|part| below.join(part));
    for path in &places {
        let folder = path.parent().context("a part without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("{} can't be made", folder.display()))?;
        // A running program can't be written over, but its name can be given to another.
        if path.symlink_metadata().is_ok() {
            fs::remove_file(path).with_context(|| format!("{} can't be replaced", path.display()))?;
        }
    }
    let [bin, backend, description] = &places;
    let failed = |path: &Path| format!("{} can't be written", path.display());
    fs::copy(program, bin).with_context(|| failed(bin))?;
    fs::set_permissions(bin, fs::Permissions::from_mode(0o755)).with_context(|| failed(bin))?;
    symlink(Path::new("..").join(PROGRAM), backend).with_context(|| failed(backend))?;
    let text = json!({
        "description": "Doorbell vhost-user-blk",
        "type": "block",
        "binary": prefix.join(BACKEND),
    });
    fs::write(description, format!("{text:#}\n")).with_context(|| failed(description))?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_description_names_a_program_that_tells_what_it_can() {
        command::run(&mut command::cargo(["build", "--package", "doorbell-vhost", "--bin", "doorbell"]))
            .unwrap();
        let program = crate::layout::target().join("debug/doorbell");
        let prefix = tempfile::tempdir().unwrap();
        // Twice: an installation replaces the one before.
        place(&program, Path::new("/"), prefix.path()).unwrap();
        let [bin, _, description] = place(&program, Path::new("/"), prefix.path()).unwrap();
        assert!(command::output(Command::new(bin).arg("--version")).unwrap().starts_with("doorbell "));
        let described: Value = serde_json::from_str(&fs::read_to_string(description).unwrap()).unwrap();
        assert_eq!(described["type"], "block");
        let binary = described["binary"].as_str().unwrap();
        assert!(Path::new(binary).is_absolute());
        let told = command::output(Command::new(binary).arg("--print-capabilities")).unwrap();
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told, json!({"type": "block", "features": ["read-only", "blk-file"]}));
    }

    #[test]
    fn a_package_is_staged_below_its_root_and_names_its_final_place() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("program");
        fs::write(&program, "").unwrap();
        let [bin, backend, description] = place(&program, root.path(), Path::new("/usr")).unwrap();
        assert_eq!(bin, root.path().join("usr/bin/doorbell"));
        assert_eq!(fs::canonicalize(backend).unwrap(), fs::canonicalize(bin).unwrap());
        let described: Value = serde_json::from_str(&fs::read_to_string(description).unwrap()).unwrap();
        assert_eq!(described["binary"], "/usr/libexec/doorbell-vhost-user-blk");
    }
}
