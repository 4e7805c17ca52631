//! The model host's whole story against the firmware's loop, on the machine that builds it.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_core::controller::ControllerConfig;
use doorbell_mcu::device::{Device, DeviceConfig};
use doorbell_mcu::media::{FlashMedia, Media, NullMedia, RamMedia};
use doorbell_mcu::model::{Gate, GuestRam, Host, ModelEndpoint, NoBench, Report, ram_words};

const CONFIG: DeviceConfig = DeviceConfig {
    controller: ControllerConfig { mdts_bytes: 32_768, vectors: 32, ..ControllerConfig::DEFAULT },
    eui64: [0xd0, 0, 0x0b, 0, 0, 0, 0, 1],
};

fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1000, Ordering::Relaxed)
}

fn registers(queues: usize) -> Vec<AtomicU32> {
    (0..2 * (queues + 1)).map(|_| AtomicU32::new(0)).collect()
}

fn run<const QUEUES: usize, const COMMANDS: usize>(media: impl Media) -> Report {
    let mut words = vec![0_u32; ram_words(QUEUES)];
    let registers = registers(QUEUES);
    let mut device = Device::<QUEUES, COMMANDS>::new();
    device.start(&CONFIG, &media).unwrap();
    let endpoint = ModelEndpoint::new(GuestRam::new(&mut words), clock);
    let mut host = Host::new(&mut device, &registers, endpoint, Gate::new(media), NoBench);
    let report = host.run().unwrap_or_else(|failure| panic!("{failure:#x?}"));
    println!("{QUEUES} x {COMMANDS}: {report:?}");
    assert!(report.verified_bytes > 100_000 && report.sleeps > 0 && report.shadow_moves > 0);
    report
}

#[test]
fn the_smallest_device_serves_the_whole_story() {
    run::<1, 8>(RamMedia::new(&mut vec![0; 64 * 1024], 512));
}

#[test]
fn one_command_at_a_time_is_enough() {
    run::<1, 1>(RamMedia::new(&mut vec![0; 64 * 1024], 512));
}

#[test]
fn several_queues_share_the_command_table() {
    run::<2, 32>(RamMedia::new(&mut vec![0; 128 * 1024], 512));
    run::<8, 16>(RamMedia::new(&mut vec![0; 128 * 1024], 512));
}

#[test]
fn blocks_of_4096_bytes() {
    run::<4, 64>(RamMedia::new(&mut vec![0; 256 * 1024], 4096));
}

#[test]
fn a_read_needs_no_second_turn() {
    let media = NullMedia::new(1024);
    let mut words = vec![0_u32; ram_words(1)];
    let registers = registers(1);
    let mut device = Device::<1, 8>::new();
    device.start(&CONFIG, &media).unwrap();
    let endpoint = ModelEndpoint::new(GuestRam::new(&mut words), clock);
    let mut host = Host::new(&mut device, &registers, endpoint, Gate::new(media), NoBench);
    host.measure().unwrap();
}

/// Flash that is never cut off; the log's own tests see to that.
struct Flash(Vec<u8>);

impl embedded_storage::nor_flash::ErrorType for Flash {
    type Error = embedded_storage::nor_flash::NorFlashErrorKind;
}

impl embedded_storage::nor_flash::ReadNorFlash for Flash {
    const READ_SIZE: usize = 1;
    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let start = offset as usize;
        bytes.copy_from_slice(&self.0[start..start + bytes.len()]);
        Ok(())
    }
    fn capacity(&self) -> usize {
        self.0.len()
    }
}

impl embedded_storage::nor_flash::NorFlash for Flash {
    const WRITE_SIZE: usize = 8;
    const ERASE_SIZE: usize = 4096;
    fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        self.0[from as usize..to as usize].fill(0xff);
        Ok(())
    }
    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        for (place, byte) in self.0[offset as usize..].iter_mut().zip(bytes) {
            assert_eq!(*place, 0xff, "written twice");
            *place = *byte;
        }
        Ok(())
    }
}

#[test]
fn a_namespace_in_flash() {
    const SECTORS: usize = 24;
    let flash = Flash(vec![0xff; SECTORS * 4096]);
    run::<2, 8>(FlashMedia::<Flash, 128, SECTORS>::mount(flash).unwrap());
}
