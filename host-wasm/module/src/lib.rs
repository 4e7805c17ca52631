//! Doorbell's controller and queue group as a WASM module: the core, unchanged, behind a fixed-width interface.
//!
//! One module serves both roles. An instance may be used as a controller, as a queue group, or as both. The core
//! keeps its tables in statics, so there is no allocator; there is no WASI and no start function. The interface
//! is described in `host-wasm/ABI.md`, its records are those of `doorbell-abi`.
//!
//! The core sees guest memory through [`doorbell_turn::memory::Guest`]: inside `group_poll` a staged window, elsewhere
//! the two imports.
//!
//! Nothing here panics: the panic handler refers to a function that doesn't exist, and `cargo xtask module`
//! checks that the built file neither imports it nor holds a reachable `unreachable`.
#![no_std]
// One job for it: the tests and the sources that are checked with the workspace's lints are in doorbell-abi and core.
#![warn(missing_docs)]

mod controller;
mod group;
#[cfg(feature = "upgrade")]
mod state;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn a_path_of_the_module_can_panic() -> !;
    }
    // SAFETY: never runs; a module that contains it is refused when it is built.
    unsafe { a_path_of_the_module_can_panic() }
}
