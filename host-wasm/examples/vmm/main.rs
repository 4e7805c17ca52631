//! A small VMM with a sandboxed NVMe controller.
//!
//! ```text
//! cargo xtask module
//! cargo run --release -p doorbell-wasm --example vmm -- target/module/doorbell.wasm
//! ```
//!
//! It has `vm-memory` guest memory, an MMIO bus of `vm-device` with the controller's BAR on it, interrupts as
//! eventfds, and a RAM disk. First a driver of its own, on this thread, writes and reads back through the device.
//! Then, where `/dev/kvm` can run one, a guest of a few instructions brings the controller up by itself and rings a
//! doorbell that never leaves the kernel (ioeventfd and shadow doorbells).

mod device;
mod driver;
mod guest;

use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use doorbell_wasm::{Engine, EngineConfig, GuestRam, Module, Sandbox, SandboxConfig};
use vm_device::bus::{MmioAddress, MmioRange};
use vm_device::device_manager::{IoManager, MmioManager as _};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::device::{EventFdInterrupts, NvmeDevice};

/// Where BAR0 is.
pub(crate) const BAR: u64 = 0xf000_0000;

/// Bytes of BAR0: registers and doorbells.
const BAR_BYTES: u64 = 0x2000;

/// Bytes of guest memory.
const RAM_BYTES: usize = 32 << 20;

/// Bytes of the disk.
const DISK_BYTES: usize = 16 << 20;

/// What every run has of its own.
pub(crate) struct Machine {
    pub(crate) memory: GuestMemoryMmap<()>,
    pub(crate) bus: IoManager,
    pub(crate) device: Arc<Mutex<NvmeDevice>>,
    pub(crate) interrupts: Arc<EventFdInterrupts>,
    pub(crate) sandbox: Sandbox,
}

impl Machine {
    fn new(module: &Module) -> Result<Self> {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM_BYTES)])?;
        let sandbox = Sandbox::new(module, SandboxConfig::DEFAULT);
        let interrupts = Arc::new(EventFdInterrupts::new(4)?);
        let device = NvmeDevice::new(
            &sandbox,
            GuestRam(memory.clone()),
            Box::new(Arc::clone(&interrupts)),
            vec![0; DISK_BYTES],
        )?;
        let device = Arc::new(Mutex::new(device));
        let mut bus = IoManager::new();
        let range = MmioRange::new(MmioAddress(BAR), BAR_BYTES)?;
        bus.register_mmio(range, Arc::new(Arc::clone(&device)))?;
        Ok(Self { memory, bus, device, interrupts, sandbox })
    }
}

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).context("usage: vmm MODULE (`cargo xtask module` builds one)")?;
    let engine = Engine::new(EngineConfig { instances: 16, ..EngineConfig::DEFAULT })?;
    let module = Module::from_file(&engine, Path::new(&path))?;

    let machine = Machine::new(&module)?;
    let moved = driver::run(&machine)?;
    println!(
        "driver: {} KiB written, read back and compared; {:?}",
        moved >> 10,
        machine.sandbox.statistics()
    );

    match guest::run(&Machine::new(&module)?) {
        Ok(said) => println!("guest: {said}"),
        Err(error) => println!("guest: /dev/kvm can't run one here ({error:#})"),
    }
    Ok(())
}
