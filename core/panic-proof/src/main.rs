//! Calls every public operation of the core with arguments that nobody can know, over full-size tables.
//!
//! Its panic handler calls a function that doesn't exist, so the image links only if the optimiser has proved
//! that no panic can be reached. `cargo xtask test panic` links it for x86_64, thumbv7em (both float ABIs) and
//! riscv32imac at opt-level 3 and s, checks the symbols, and shows that a planted index breaks the link.
#![no_std]
#![no_main]

mod controller;
mod group;
mod opaque;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn a_path_of_the_core_can_panic() -> !;
    }
    // SAFETY: never runs; it doesn't even link.
    unsafe { a_path_of_the_core_can_panic() }
}

/// Where the image starts.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    loop {
        group::exercise();
        controller::exercise();
        #[cfg(feature = "planted")]
        planted();
    }
}

/// What the proof must find.
#[cfg(feature = "planted")]
#[inline(never)]
fn planted() {
    let bytes = [opaque::byte(), opaque::byte()];
    opaque::sink(u64::from(bytes[opaque::word() as usize & 3]));
}
