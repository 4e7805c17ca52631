//! The memory map of the target, and the linker scripts of its runtime and of defmt.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let map = format!("memory-{arch}.x");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::copy(&map, out.join("memory.x"))
        .unwrap_or_else(|error| panic!("{map}: {error}; the image is for arm and riscv32"));
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-link-search={}", out.display());
    let scripts: &[&str] =
        if arch == "arm" { &["link.x", "defmt.x"] } else { &["memory.x", "link.x", "defmt.x"] };
    println!("cargo:rustc-link-arg-bins=--nmagic");
    println!("cargo:rustc-link-arg-bins=--gc-sections");
    for script in scripts {
        println!("cargo:rustc-link-arg-bins=-T{script}");
    }
}
