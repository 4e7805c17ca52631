//! The controller and nothing else: a board's image before it has a board. What a board fills in is here the
//! registers of a block that doesn't exist, so this runs nowhere; it is what `cargo xtask firmware --size`
//! weighs, and where an image of your own can begin (`BOARD.md`).
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::task::Poll;

use doorbell_core::controller::{ControllerConfig, ResetKind};
use doorbell_core::memory::{Access, DmaError, DmaMemory};
use doorbell_firmware::board::entry;
use doorbell_firmware::sizes::{COMMANDS, ERRORS, QUEUES, REGISTERS};
use doorbell_mcu::device::{Device, DeviceConfig};
use doorbell_mcu::endpoint::{Endpoint, EndpointEvent};
use doorbell_mcu::media::{Media, MediaError};

static CONFIG: DeviceConfig = DeviceConfig {
    controller: ControllerConfig { mdts_bytes: 131_072, vectors: 2, ..ControllerConfig::DEFAULT },
    eui64: [0xd0, 0x0b, 0xe1, 0, 0, 0, 0, 1],
};

static DOORBELLS: [AtomicU32; REGISTERS] = [const { AtomicU32::new(0) }; REGISTERS];
static mut DEVICE: Device<QUEUES, COMMANDS, ERRORS> = Device::new();

#[entry]
fn main() -> ! {
    // SAFETY: `main` runs once and this is the only reference.
    let device = unsafe { &mut *(&raw mut DEVICE) };
    let mut media = Medium;
    let mut endpoint = Block;
    if device.start(&CONFIG, &media).is_ok() {
        loop {
            if !device.poll(&DOORBELLS, &mut endpoint, &mut media) && device.arm(&DOORBELLS, &mut endpoint) {
                core::hint::spin_loop();
            }
        }
    }
    halt()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    halt()
}

fn halt() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// The endpoint block's registers, in dwords.
const BLOCK: *mut u32 = 0x4800_0000 as *mut u32;
/// 0: nothing, 1: read, 2: write, 3: Function Level Reset, 4: fundamental reset. Reading takes it.
const EVENT: usize = 0;
/// Offset into BAR 0, and length and tag.
const EVENT_OFFSET: usize = 1;
const EVENT_SHAPE: usize = 2;
const EVENT_DATA: usize = 3;
const ANSWER_DATA: usize = 5;
const ANSWER: usize = 7;
const MSIX: usize = 8;
const RESET_DONE: usize = 9;
const CLOCK_100US: usize = 10;
/// DMA: guest address, local address, length; writing the direction starts it, reading says how it stands.
const DMA_GUEST: usize = 16;
const DMA_LOCAL: usize = 18;
const DMA_LENGTH: usize = 19;
const DMA: usize = 20;
const DMA_FROM_GUEST: u32 = 1;
const DMA_TO_GUEST: u32 = 2;
const DMA_BUSY: u32 = 1;
const DMA_FAILED: u32 = 2;

fn write(block: *mut u32, register: usize, value: u32) {
    // SAFETY: `register` is one of those above, inside the block.
    let place = unsafe { block.add(register) };
    // SAFETY: a device register, which nothing else uses.
    unsafe { place.write_volatile(value) }
}

fn read(block: *mut u32, register: usize) -> u32 {
    // SAFETY: as in `write`.
    let place = unsafe { block.add(register) };
    // SAFETY: as in `write`.
    unsafe { place.read_volatile() }
}

struct Block;

fn dma(guest: u64, local: usize, len: usize, direction: u32) -> Result<(), DmaError> {
    write(BLOCK, DMA_GUEST, guest as u32);
    write(BLOCK, DMA_GUEST + 1, (guest >> 32) as u32);
    write(BLOCK, DMA_LOCAL, local as u32);
    write(BLOCK, DMA_LENGTH, len as u32);
    // What was written to memory before is there for the block, what the block writes is seen after.
    fence(Ordering::SeqCst);
    write(BLOCK, DMA, direction);
    loop {
        let state = read(BLOCK, DMA);
        if state & DMA_BUSY == 0 {
            fence(Ordering::SeqCst);
            return if state & DMA_FAILED == 0 { Ok(()) } else { Err(DmaError) };
        }
    }
}

impl DmaMemory for Block {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        dma(address, buffer.as_mut_ptr() as usize, buffer.len(), DMA_FROM_GUEST)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        dma(address, bytes.as_ptr() as usize, bytes.len(), DMA_TO_GUEST)
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.write(address, &value.to_le_bytes())
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let found = self.load_u32(address)?;
        if found == current {
            self.store_u32(address, new)?;
        }
        Ok(found)
    }
    fn check(&self, address: u64, len_bytes: u64, _: Access) -> Result<(), DmaError> {
        address.checked_add(len_bytes).map(|_| ()).ok_or(DmaError)
    }
}

impl Endpoint for Block {
    fn poll_event(&mut self) -> Option<EndpointEvent> {
        let kind = read(BLOCK, EVENT);
        if kind == 0 {
            return None;
        }
        let offset = read(BLOCK, EVENT_OFFSET);
        let shape = read(BLOCK, EVENT_SHAPE);
        let (len_bytes, tag) = ((shape as u8).min(8), (shape >> 8) as u8);
        Some(match kind {
            1 => EndpointEvent::Read { offset, len_bytes, tag },
            2 => {
                let value = u64::from(read(BLOCK, EVENT_DATA + 1)) << 32 | u64::from(read(BLOCK, EVENT_DATA));
                EndpointEvent::Write { offset, len_bytes, value }
            }
            3 => EndpointEvent::Reset(ResetKind::Flr),
            _ => EndpointEvent::Reset(ResetKind::Disconnect),
        })
    }

    fn answer_read(&mut self, tag: u8, bytes: &[u8]) {
        let mut data = [0; 8];
        data.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        let data = u64::from_le_bytes(data);
        write(BLOCK, ANSWER_DATA, data as u32);
        write(BLOCK, ANSWER_DATA + 1, (data >> 32) as u32);
        write(BLOCK, ANSWER, u32::from(tag));
    }

    fn raise_msix(&mut self, vector: u16) {
        write(BLOCK, MSIX, u32::from(vector));
    }

    fn reset_done(&mut self) {
        write(BLOCK, RESET_DONE, 1);
    }

    fn now_ns(&mut self) -> u64 {
        u64::from(read(BLOCK, CLOCK_100US)) * 100_000
    }
}

/// The medium's registers, in dwords, and its page.
const MEDIUM: *mut u32 = 0x4900_0000 as *mut u32;
const MEDIUM_BLOCK: usize = 0;
const MEDIUM_COMMAND: usize = 1;
const MEDIUM_STATE: usize = 2;
const READ: u32 = 1;
const WRITE: u32 = 2;
const FLUSH: u32 = 3;
const BUSY: u32 = 1;
const FAILED: u32 = 2;
const PAGE: *mut u8 = 0x4910_0000 as *mut u8;
const PAGE_BYTES: usize = 512;

struct Medium;

impl Medium {
    fn page(&mut self) -> &mut [u8] {
        // SAFETY: the block's page is memory of this size that only this reaches; `self` is the only one.
        unsafe { core::slice::from_raw_parts_mut(PAGE, PAGE_BYTES) }
    }

    fn run(&mut self, command: u32, offset_bytes: u64) -> Result<(), ()> {
        write(MEDIUM, MEDIUM_BLOCK, (offset_bytes / PAGE_BYTES as u64) as u32);
        write(MEDIUM, MEDIUM_COMMAND, command);
        loop {
            let state = read(MEDIUM, MEDIUM_STATE);
            if state & BUSY == 0 {
                return if state & FAILED == 0 { Ok(()) } else { Err(()) };
            }
        }
    }
}

impl Media for Medium {
    fn block_bytes(&self) -> u32 {
        PAGE_BYTES as u32
    }
    fn size_blocks(&self) -> u64 {
        1 << 20
    }
    fn has_write_cache(&self) -> bool {
        true
    }
    fn read(&mut self, offset_bytes: u64, _: u32) -> Poll<Result<&[u8], MediaError>> {
        let read = self.run(READ, offset_bytes);
        Poll::Ready(read.map(|()| &*self.page()).map_err(|()| MediaError::Read))
    }
    fn lend(&mut self, _: u64, _: u32) -> &mut [u8] {
        self.page()
    }
    fn write(&mut self, offset_bytes: u64, _: u32, durable: bool) -> Poll<Result<(), MediaError>> {
        let written = self.run(WRITE, offset_bytes);
        if durable && written.is_ok() {
            return self.flush();
        }
        Poll::Ready(written.map_err(|()| MediaError::Write))
    }
    fn zero(&mut self, offset_bytes: u64, _: u64, durable: bool) -> Poll<Result<u64, MediaError>> {
        self.page().fill(0);
        self.write(offset_bytes, PAGE_BYTES as u32, durable).map(|done| done.map(|()| PAGE_BYTES as u64))
    }
    fn flush(&mut self) -> Poll<Result<(), MediaError>> {
        Poll::Ready(self.run(FLUSH, 0).map_err(|()| MediaError::Write))
    }
}
