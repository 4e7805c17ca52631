//! The controller with the model host in the same image: the model host drives it as Linux's driver does,
//! verifies every byte, and reports.
#![no_std]
#![no_main]

use core::sync::atomic::AtomicU32;

use doorbell_core::controller::ControllerConfig;
use doorbell_firmware::board::{self, entry};
use doorbell_firmware::sizes::{COMMANDS, ERRORS, QUEUES, REGISTERS};
use doorbell_firmware::stack::Worst;
use doorbell_mcu::device::{Device, DeviceConfig};
use doorbell_mcu::media::RamMedia;
use doorbell_mcu::model::{Bench, Gate, GuestRam, Host, ModelEndpoint, VECTORS, ram_words};

/// Bytes of the namespace.
const NAMESPACE: usize = 64 * 1024;

static CONFIG: DeviceConfig = DeviceConfig {
    controller: ControllerConfig { mdts_bytes: 32_768, vectors: VECTORS as u16, ..ControllerConfig::DEFAULT },
    eui64: [0xd0, 0x0b, 0xe1, 0, 0, 0, 0, 1],
};

static REGISTERS_OF_THE_DEVICE: [AtomicU32; REGISTERS] = [const { AtomicU32::new(0) }; REGISTERS];
static mut DEVICE: Device<QUEUES, COMMANDS, ERRORS> = Device::new();
static mut BLOCKS: [u8; NAMESPACE] = [0; NAMESPACE];
static mut GUEST: [u32; ram_words(QUEUES)] = [0; ram_words(QUEUES)];

#[derive(Debug)]
struct Stack(Worst);

impl Bench for Stack {
    fn turn(&mut self, turn: impl FnOnce() -> bool) -> bool {
        self.0.around(turn)
    }
}

#[entry]
fn main() -> ! {
    board::init();
    // SAFETY: `main` runs once and this is the only reference.
    let device = unsafe { &mut *(&raw mut DEVICE) };
    // SAFETY: as above.
    let blocks = unsafe { &mut *(&raw mut BLOCKS) };
    // SAFETY: as above.
    let guest = unsafe { &mut *(&raw mut GUEST) };
    let media = RamMedia::new(blocks, 512);
    if let Err(error) = device.start(&CONFIG, &media) {
        defmt::error!("the device can't start: {}", error);
        board::exit(false);
    }
    let endpoint = ModelEndpoint::new(GuestRam::new(guest), board::now_ns);
    let mut host =
        Host::new(device, &REGISTERS_OF_THE_DEVICE, endpoint, Gate::new(media), Stack(Worst::default()));
    match host.run() {
        Ok(report) => {
            defmt::println!("verified: {}", report);
            defmt::println!("worst stack: {=usize} bytes", host.bench().0.bytes());
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
