//! QEMU's mps2-an386 and mps2-an500 (Arm AN386 and AN500): CMSDK UART 0 and timer 0, semihosting to end.

use core::arch::asm;

pub use cortex_m_rt::entry;
use cortex_m_semihosting::debug;

const UART: *mut u32 = 0x4000_4000 as *mut u32;
const TIMER: *mut u32 = 0x4000_0000 as *mut u32;

/// UART registers, in dwords.
const DATA: usize = 0;
const STATE: usize = 1;
const UART_CONTROL: usize = 2;
const BAUD_DIVISOR: usize = 4;
/// Timer registers, in dwords.
const TIMER_CONTROL: usize = 0;
const VALUE: usize = 1;
const RELOAD: usize = 2;

/// Nanoseconds of a tick of the timer, at 25 MHz.
const TICK_NS: u64 = 40;

fn write(block: *mut u32, register: usize, value: u32) {
    // SAFETY: `register` is one of those above, inside the block's page.
    let place = unsafe { block.add(register) };
    // SAFETY: a device register of this machine, which nothing else uses.
    unsafe { place.write_volatile(value) }
}

fn read(block: *mut u32, register: usize) -> u32 {
    // SAFETY: as in `write`.
    let place = unsafe { block.add(register) };
    // SAFETY: as in `write`.
    unsafe { place.read_volatile() }
}

/// Starts the UART and the clock.
pub fn init() {
    write(UART, BAUD_DIVISOR, 16);
    write(UART, UART_CONTROL, 1);
    write(TIMER, RELOAD, u32::MAX);
    write(TIMER, VALUE, u32::MAX);
    write(TIMER, TIMER_CONTROL, 1);
}

/// Sends a byte of the log.
pub fn put_byte(byte: u8) {
    while read(UART, STATE) & 1 != 0 {}
    write(UART, DATA, u32::from(byte));
}

/// Nanoseconds since [`init`]. Begins again after 171 seconds, which is longer than any image runs.
pub fn now_ns() -> u64 {
    u64::from(u32::MAX - read(TIMER, VALUE)) * TICK_NS
}

/// Instructions since [`init`], where QEMU runs with `-icount shift=0`: one a nanosecond. The timer is coarser,
/// so only differences over many commands mean something.
pub fn instructions() -> u64 {
    now_ns()
}

/// The stack pointer.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Ends QEMU, with exit code 0 or 1.
pub fn exit(success: bool) -> ! {
    debug::exit(if success { debug::EXIT_SUCCESS } else { debug::EXIT_FAILURE });
    loop {
        cortex_m::asm::wfi();
    }
}

/// Executes two instructions `turns` times, and nothing else.
#[inline(never)]
pub fn spin(turns: u32) {
    // SAFETY: counts a register down.
    unsafe {
        asm!("2: subs {0}, {0}, #1", "bne 2b", inout(reg) turns => _, options(nomem, nostack));
    }
}
