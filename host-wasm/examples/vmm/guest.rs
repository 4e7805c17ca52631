//! A guest under KVM, of a few instructions: brings the controller up, creates a queue pair, switches to shadow
//! doorbells, and writes a block through a doorbell that KVM turns into an eventfd.
#![allow(
    unsafe_code,
    reason = "a guest's memory is lent to KVM, and its program is read from this one's text"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit};
use vm_device::bus::MmioAddress;
use vm_device::device_manager::MmioManager as _;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::{BAR, Machine, RAM_BYTES};

/// Where the program lies and starts.
const ENTRY: u64 = 0x1000;

/// The port that the guest says its results to.
const PORT: u16 = 0x10;

// Flat 32-bit protected mode. Guest addresses: ASQ 2000h, ACQ 3000h, SQ 4000h, CQ 5000h, Shadow Doorbell 6000h,
// EventIdx 7000h, data 8000h.
std::arch::global_asm!(
    ".pushsection .rodata",
    ".global vmm_guest_start, vmm_guest_end",
    ".code32",
    "vmm_guest_start:",
    "mov edi, 0xf0000000",
    "mov dword ptr [edi + 0x24], 0x000f000f", // AQA
    "mov dword ptr [edi + 0x28], 0x2000",     // ASQ
    "mov dword ptr [edi + 0x2c], 0",
    "mov dword ptr [edi + 0x30], 0x3000", // ACQ
    "mov dword ptr [edi + 0x34], 0",
    "mov dword ptr [edi + 0x14], 0x00460001", // CC
    "2: mov eax, [edi + 0x1c]",               // CSTS.RDY
    "test eax, 1",
    "jz 2b",
    "mov dword ptr [0x2000], 0x00010005", // create completion queue 1, 16 entries
    "mov dword ptr [0x2018], 0x5000",
    "mov dword ptr [0x2028], 0x000f0001",
    "mov dword ptr [0x202c], 0x00010003",
    "mov dword ptr [0x2040], 0x00020001", // create submission queue 1
    "mov dword ptr [0x2058], 0x4000",
    "mov dword ptr [0x2068], 0x000f0001",
    "mov dword ptr [0x206c], 0x00010001",
    "mov dword ptr [0x2080], 0x0003007c", // Doorbell Buffer Config
    "mov dword ptr [0x2098], 0x6000",
    "mov dword ptr [0x20a0], 0x7000",
    "mov dword ptr [edi + 0x1000], 3",
    "3: mov eax, [0x302c]", // the third completion
    "test eax, 0x10000",
    "jz 3b",
    "mov dword ptr [0x8000], 0x6c6c6548", // data
    "mov dword ptr [0x4000], 0x00040001", // write one block
    "mov dword ptr [0x4004], 1",
    "mov dword ptr [0x4018], 0x8000",
    "mov dword ptr [0x4028], 5",
    "mov dword ptr [0x6008], 1", // the shadow, a full barrier, and the register, which KVM swallows
    "lock add dword ptr [esp], 0",
    "mov dword ptr [edi + 0x1008], 1",
    "4: mov eax, [0x500c]",
    "test eax, 0x10000",
    "jz 4b",
    "shr eax, 17",
    "mov dx, 0x10",
    "out dx, eax", // its status
    "hlt",
    "vmm_guest_end:",
    ".code64",
    ".popsection",
);

unsafe extern "C" {
    static vmm_guest_start: u8;
    static vmm_guest_end: u8;
}

/// Runs the guest; what it did, in words.
pub(crate) fn run(machine: &Machine) -> Result<String> {
    let kvm = Kvm::new().context("open")?;
    let vm = kvm.create_vm().context("create a machine")?;
    let host_address = machine.memory.get_host_address(GuestAddress(0))? as u64;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: RAM_BYTES as u64,
        userspace_addr: host_address,
    };
    // SAFETY: the mapping belongs to `machine`, which outlives `vm`; guest memory is only accessed as volatile.
    unsafe { vm.set_user_memory_region(region) }.context("give it memory")?;
    let start = &raw const vmm_guest_start;
    // SAFETY: both symbols lie in the one section above, the end behind the start.
    let len = unsafe { (&raw const vmm_guest_end).offset_from(start) } as usize;
    // SAFETY: `len` bytes of read-only data of this program.
    let program = unsafe { std::slice::from_raw_parts(start, len) };
    machine.memory.write_slice(program, GuestAddress(ENTRY))?;

    // The tail doorbell of queue 1. KVM doesn't say which value was written, so this needs shadow doorbells.
    let doorbell = EventFd::new(EFD_NONBLOCK)?;
    vm.register_ioevent(&doorbell, &IoEventAddress::Mmio(BAR + 0x1008), NoDatamatch).context("ioeventfd")?;
    let rung = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut vcpu = vm.create_vcpu(0).context("create a processor")?;
    protected_mode(&vcpu)?;
    std::thread::scope(|scope| {
        let (device, ended, count) = (&machine.device, Arc::clone(&stop), Arc::clone(&rung));
        scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if doorbell.read().is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                    if let Ok(mut device) = device.lock() {
                        device.run();
                    }
                } else {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        let status = exits(machine, &mut vcpu);
        stop.store(true, Ordering::Relaxed);
        status
    })
    .and_then(|status| {
        ensure!(status == 0, "its write failed with status {status:x}");
        let rung = rung.load(Ordering::Relaxed);
        ensure!(rung > 0, "its doorbell wasn't heard");
        Ok(format!("brought the controller up and wrote a block; {rung} doorbell by ioeventfd"))
    })
}

/// Serves the processor's exits until the guest has said its result.
fn exits(machine: &Machine, vcpu: &mut kvm_ioctls::VcpuFd) -> Result<u32> {
    let started = Instant::now();
    loop {
        ensure!(started.elapsed() < Duration::from_secs(10), "it doesn't get anywhere");
        match vcpu.run().context("run it")? {
            VcpuExit::MmioRead(address, data) => machine.bus.mmio_read(MmioAddress(address), data)?,
            VcpuExit::MmioWrite(address, data) => machine.bus.mmio_write(MmioAddress(address), data)?,
            VcpuExit::IoOut(PORT, data) => {
                let bytes = data.try_into().context("four bytes are expected")?;
                return Ok(u32::from_le_bytes(bytes));
            }
            other => bail!("it stopped: {other:?}"),
        }
    }
}

fn protected_mode(vcpu: &kvm_ioctls::VcpuFd) -> Result<()> {
    let mut special = vcpu.get_sregs()?;
    let flat = |code: bool| kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: if code { 8 } else { 16 },
        type_: if code { 11 } else { 3 },
        present: 1,
        dpl: 0,
        db: 1,
        s: 1,
        l: 0,
        g: 1,
        ..kvm_segment::default()
    };
    special.cs = flat(true);
    for segment in [&mut special.ds, &mut special.es, &mut special.ss, &mut special.fs, &mut special.gs] {
        *segment = flat(false);
    }
    special.cr0 |= 1;
    vcpu.set_sregs(&special)?;
    let mut registers = vcpu.get_regs()?;
    registers.rip = ENTRY;
    registers.rsp = 0x9000;
    registers.rflags = 2;
    vcpu.set_regs(&registers)?;
    Ok(())
}
