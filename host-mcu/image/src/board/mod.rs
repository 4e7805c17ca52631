//! The machine that QEMU makes: a UART for the log, a clock, and a way to end.

#[cfg(target_arch = "arm")]
#[path = "arm.rs"]
mod machine;
#[cfg(target_arch = "riscv32")]
#[path = "riscv32.rs"]
mod machine;

pub use machine::{entry, exit, init, instructions, now_ns, put_byte, spin, stack_pointer};
