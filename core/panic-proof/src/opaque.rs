//! Values and memory that the optimiser knows nothing about.

use core::ptr::{read_volatile, write_volatile};
use core::sync::atomic::AtomicU32;

use doorbell_core::memory::{Access, DmaError, DmaMemory};

static mut SOURCE: u64 = 0;
static mut SINK: u64 = 0;

/// Any 64 bits.
pub fn word() -> u64 {
    // SAFETY: a static of this type; volatile, so any value may be read.
    unsafe { read_volatile(&raw const SOURCE) }
}

/// Any 32 bits.
pub fn dword() -> u32 {
    word() as u32
}

/// Any 16 bits.
pub fn half() -> u16 {
    word() as u16
}

/// Any byte.
pub fn byte() -> u8 {
    word() as u8
}

/// Either.
pub fn flag() -> bool {
    word() & 1 != 0
}

/// Any bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = self::byte();
    }
    bytes
}

/// A slice of any length up to that of `bytes`.
pub fn part(bytes: &mut [u8]) -> &mut [u8] {
    let len = word() as usize;
    bytes.get_mut(..len).unwrap_or_default()
}

static mut STATE: [u8; 1 << 18] = [0; 1 << 18];

/// A buffer of any length for a state, with any bytes.
pub fn state() -> &'static mut [u8] {
    let state = unknown(&raw mut STATE);
    for byte in state.iter_mut() {
        *byte = self::byte();
    }
    part(state)
}

/// Uses a value up.
pub fn sink(value: u64) {
    // SAFETY: a static of this type.
    unsafe { write_volatile(&raw mut SINK, value) }
}

/// A reference whose target's contents are unknown although the table was only just made.
pub fn unknown<T>(target: *mut T) -> &'static mut T {
    let mut pointer = target;
    // SAFETY: a volatile read of a local; the value is the one that was stored.
    let pointer = unsafe { read_volatile(&raw mut pointer) };
    // SAFETY: `target` is a static of this type, and the image has one thread and one use of it at a time.
    unsafe { &mut *pointer }
}

/// Guest memory of which nothing is known.
pub struct OpaqueMemory;

fn outcome() -> Result<(), DmaError> {
    if flag() { Ok(()) } else { Err(DmaError) }
}

impl DmaMemory for OpaqueMemory {
    #[inline(never)]
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        sink(address);
        for byte in buffer {
            *byte = self::byte();
        }
        outcome()
    }
    #[inline(never)]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        sink(address);
        for byte in bytes {
            sink(u64::from(*byte));
        }
        outcome()
    }
    #[inline(never)]
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        sink(address);
        outcome()?;
        Ok(dword())
    }
    #[inline(never)]
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        sink(address ^ u64::from(value));
        outcome()
    }
    #[inline(never)]
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        sink(address ^ u64::from(current) ^ u64::from(new));
        outcome()?;
        Ok(dword())
    }
    #[inline(never)]
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        sink(address ^ len_bytes ^ u64::from(access == Access::Read));
        outcome()
    }
}

static REGISTERS: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];

/// A register file of any length.
pub fn registers() -> &'static [AtomicU32] {
    let len = word() as usize;
    REGISTERS.get(..len).unwrap_or(&REGISTERS)
}
