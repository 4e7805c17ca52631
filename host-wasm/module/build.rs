//! The shape of the module's linear memory.

/// Bytes of the stack, which lies below the data, so that an overflow would trap instead of overwriting it.
/// `cargo xtask module` adds up what the deepest call needs and refuses a module that could overflow. Small, because
/// what follows is what instances touch, and hosts keep the low end of memory for the next instance.
const STACK_BYTES: u32 = 4 << 10;

/// Bytes of linear memory: as large as it ever gets.
const MEMORY_BYTES: u32 = 128 << 10;

/// The same with the exports of a live upgrade, which have a buffer and tables on the stack.
const UPGRADE_STACK_BYTES: u32 = 64 << 10;
const UPGRADE_MEMORY_BYTES: u32 = 256 << 10;

fn main() {
    let upgrade = std::env::var_os("CARGO_FEATURE_UPGRADE").is_some();
    let (stack, memory) =
        if upgrade { (UPGRADE_STACK_BYTES, UPGRADE_MEMORY_BYTES) } else { (STACK_BYTES, MEMORY_BYTES) };
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=--stack-first");
    println!("cargo::rustc-link-arg-cdylib=--compress-relocations");
    println!("cargo::rustc-link-arg-cdylib=-zstack-size={stack}");
    println!("cargo::rustc-link-arg-cdylib=--initial-memory={memory}");
    println!("cargo::rustc-link-arg-cdylib=--max-memory={memory}");
}
