//! The shape of the module's linear memory.

/// Bytes of the stack, which lies below the data, so that an overflow traps instead of overwriting it.
const STACK_BYTES: u32 = 320 << 10;

/// Bytes of linear memory: as large as it ever gets.
const MEMORY_BYTES: u32 = 640 << 10;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=--stack-first");
    println!("cargo::rustc-link-arg-cdylib=--compress-relocations");
    println!("cargo::rustc-link-arg-cdylib=-zstack-size={STACK_BYTES}");
    println!("cargo::rustc-link-arg-cdylib=--initial-memory={MEMORY_BYTES}");
    println!("cargo::rustc-link-arg-cdylib=--max-memory={MEMORY_BYTES}");
}
