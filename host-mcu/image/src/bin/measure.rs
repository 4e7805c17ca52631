//! Instructions a command: QEMU counts them (`-icount shift=0`), the model host drives.
#![no_std]
#![no_main]

use core::sync::atomic::AtomicU32;

use doorbell_core::controller::ControllerConfig;
use doorbell_firmware::board::{self, entry};
use doorbell_firmware::sizes::{COMMANDS, ERRORS, QUEUES, REGISTERS};
use doorbell_mcu::device::{Device, DeviceConfig};
use doorbell_mcu::media::NullMedia;
use doorbell_mcu::model::{Bench, Gate, GuestRam, Host, ModelEndpoint, VECTORS, ram_words};

static CONFIG: DeviceConfig = DeviceConfig {
    controller: ControllerConfig { mdts_bytes: 32_768, vectors: VECTORS as u16, ..ControllerConfig::DEFAULT },
    eui64: [0xd0, 0x0b, 0xe1, 0, 0, 0, 0, 1],
};

static REGISTERS_OF_THE_DEVICE: [AtomicU32; REGISTERS] = [const { AtomicU32::new(0) }; REGISTERS];
static mut DEVICE: Device<QUEUES, COMMANDS, ERRORS> = Device::new();
static mut GUEST: [u32; ram_words(QUEUES)] = [0; ram_words(QUEUES)];

/// Turns of the loop that the instrument is tried on.
const SPINS: u32 = 100_000;

#[derive(Debug)]
struct Counter;

impl Bench for Counter {
    fn instructions(&mut self) -> u64 {
        board::instructions()
    }
}

#[entry]
fn main() -> ! {
    board::init();
    // SAFETY: `main` runs once and this is the only reference.
    let device = unsafe { &mut *(&raw mut DEVICE) };
    // SAFETY: as above.
    let guest = unsafe { &mut *(&raw mut GUEST) };
    // The instrument first: a loop whose instructions are known.
    let before = board::instructions();
    board::spin(SPINS);
    let counted = board::instructions() - before;
    defmt::println!("instrument: {=u64} counted, {=u32} executed", counted, 2 * SPINS);
    let media = NullMedia::new(1024);
    if device.start(&CONFIG, &media).is_err() {
        board::exit(false);
    }
    let endpoint = ModelEndpoint::new(GuestRam::new(guest), board::now_ns);
    let mut host = Host::new(device, &REGISTERS_OF_THE_DEVICE, endpoint, Gate::new(media), Counter);
    match host.measure() {
        Ok(instructions) => {
            defmt::println!(
                "instructions: {=u64} {=u64} {=u64}",
                instructions.alone,
                instructions.alone_by_shadow,
                instructions.in_batches
            );
            board::exit(true)
        }
        Err(failure) => {
            defmt::error!("{}", failure);
            board::exit(false)
        }
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    defmt::error!("{}", defmt::Display2Format(info));
    board::exit(false)
}
