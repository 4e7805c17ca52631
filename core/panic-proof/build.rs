//! The image starts at `_start` and needs no start files; symbols stay, for the check of their names.

fn main() {
    println!("cargo:rustc-link-arg-bins=--entry=_start");
    println!("cargo:rustc-link-arg-bins=--gc-sections");
    println!("cargo:rustc-link-arg-bins=--no-undefined");
}
