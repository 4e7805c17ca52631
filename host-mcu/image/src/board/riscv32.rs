//! QEMU's riscv32 virt machine: a 16550 UART, the CLINT's clock, the test device to end.

use core::arch::asm;

pub use riscv_rt::entry;

const UART: *mut u8 = 0x1000_0000 as *mut u8;
const LINE_STATUS: usize = 5;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const MTIME_LOW: *const u32 = 0x0200_bff8 as *const u32;
const MTIME_HIGH: *const u32 = 0x0200_bffc as *const u32;
/// Nanoseconds of a tick of the clock, at 10 MHz.
const TICK_NS: u64 = 100;
const TEST_DEVICE: *mut u32 = 0x0010_0000 as *mut u32;
const PASS: u32 = 0x5555;
/// Exit code 1 in the upper half.
const FAIL: u32 = 1 << 16 | 0x3333;

/// The machine needs no start.
pub fn init() {}

/// Sends a byte of the log.
pub fn put_byte(byte: u8) {
    // SAFETY: a register of the UART's page.
    let status = unsafe { UART.add(LINE_STATUS) };
    // SAFETY: a device register of this machine, which nothing else uses.
    while unsafe { status.read_volatile() } & TRANSMITTER_EMPTY == 0 {}
    // SAFETY: as above.
    unsafe { UART.write_volatile(byte) }
}

/// Nanoseconds since the machine began.
pub fn now_ns() -> u64 {
    loop {
        // SAFETY: a device register of this machine.
        let high = unsafe { MTIME_HIGH.read_volatile() };
        // SAFETY: as above.
        let low = unsafe { MTIME_LOW.read_volatile() };
        // SAFETY: as above.
        if high == unsafe { MTIME_HIGH.read_volatile() } {
            return (u64::from(high) << 32 | u64::from(low)) * TICK_NS;
        }
    }
}

/// Instructions since the machine began, where QEMU runs with `-icount shift=0`.
pub fn instructions() -> u64 {
    riscv::register::minstret::read64()
}

/// The stack pointer.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mv {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Ends QEMU, with exit code 0 or 1.
pub fn exit(success: bool) -> ! {
    // SAFETY: a device register of this machine.
    unsafe { TEST_DEVICE.write_volatile(if success { PASS } else { FAIL }) };
    loop {
        riscv::asm::wfi();
    }
}

/// Executes two instructions `turns` times, and nothing else.
#[inline(never)]
pub fn spin(turns: u32) {
    // SAFETY: counts a register down.
    unsafe {
        asm!("2: addi {0}, {0}, -1", "bnez {0}, 2b", inout(reg) turns => _, options(nomem, nostack));
    }
}
