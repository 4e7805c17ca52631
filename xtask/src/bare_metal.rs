//! A compiler for targets without an operating system.
//!
//! Where the toolchain has such a target it is used. Otherwise Debian's compiler builds `core` from the
//! sources that Debian packages beside it, so that nothing but Debian packages has to be fetched; the
//! toolchain lends it its linker.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{command, layout};

/// A 64-bit server and microcontrollers.
pub(crate) const TARGETS: [&str; 4] =
    ["x86_64-unknown-none", "thumbv7em-none-eabi", "thumbv7em-none-eabihf", "riscv32imac-unknown-none-elf"];

/// What sandbox modules are compiled for.
pub(crate) const WASM: &str = "wasm32-unknown-unknown";

/// A file of Debian's compiler, and the package that brings it.
const DEBIAN: [(&str, &str); 3] = [
    ("/usr/bin/rustc", "rustc-web"),
    ("/usr/bin/cargo", "cargo-web"),
    ("/usr/lib/rustlib/src/rust/library/core/Cargo.toml", "rust-web-src"),
];

/// The Debian packages that have to be installed before [`build`] can work for these targets.
pub(crate) fn missing_packages(targets: &[&str]) -> Result<Vec<&'static str>> {
    for target in targets {
        if !in_toolchain(target)? {
            return Ok(missing_of_debian());
        }
    }
    Ok(Vec::new())
}

/// A `cargo build --target TARGET --target-dir OUTPUT`, with or without `core` to be built first.
pub(crate) fn build(target: &str, output: &Path) -> Result<Command> {
    let mut cargo = if in_toolchain(target)? { command::cargo(["build"]) } else { for_bare_metal(target)? };
    cargo.args(["--target", target, "--target-dir"]).arg(output).env_remove("RUSTFLAGS");
    Ok(cargo)
}

fn for_bare_metal(target: &str) -> Result<Command> {
    let mut cargo = debian("build", "core", target)?;
    cargo.arg("-Zbuild-std-features=compiler-builtins-mem");
    let variable = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    cargo.env(variable, linker()?);
    Ok(cargo)
}

/// A `cargo ACTION` by Debian's compiler, which builds `crates` (`core` or `std`) for the target first.
pub(crate) fn debian(action: &str, crates: &str, target: &str) -> Result<Command> {
    let missing = missing_of_debian();
    ensure!(
        missing.is_empty(),
        "Rust's `{crates}` for {target} is neither in the toolchain nor can Debian's compiler build it; \
         `cargo xtask setup` installs what is missing: {}",
        missing.join(" ")
    );
    let mut cargo = Command::new("/usr/bin/cargo");
    cargo.arg(action).arg(format!("-Zbuild-std={crates}")).current_dir(layout::workspace());
    // `-Z` is for nightly compilers; RUSTC_BOOTSTRAP lets a stable one accept it.
    cargo.env("PATH", "/usr/bin:/bin").env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
    Ok(cargo)
}

/// The packages of Debian's compiler that aren't installed.
pub(crate) fn missing_of_debian() -> Vec<&'static str> {
    DEBIAN.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect()
}

fn in_toolchain(target: &str) -> Result<bool> {
    Ok(libraries(&["--target", target])?.is_dir())
}

/// The linker that comes with the toolchain.
fn linker() -> Result<PathBuf> {
    let path = libraries(&[])?.with_file_name("bin").join("rust-lld");
    ensure!(path.is_file(), "the toolchain has no {}, which links for bare metal", path.display());
    Ok(path)
}

/// Where the toolchain keeps, or would keep, the libraries of a target.
fn libraries(target: &[&str]) -> Result<PathBuf> {
    let mut rustc = Command::new("rustc");
    let printed = command::output(rustc.args(["--print", "target-libdir"]).args(target))
        .context("the toolchain is asked for its targets")?;
    Ok(PathBuf::from(printed.trim()))
}
