//! The device: a sandboxed controller and group, a RAM disk, interrupts, on an MMIO bus.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use anyhow::Result;
use doorbell_core::command::{IoCommand, Operation, Transfer};
use doorbell_core::controller::{HostReply, NamespaceConfig};
use doorbell_core::engine::{ControllerEngine as _, GroupEngine as _};
use doorbell_core::group::Armed;
use doorbell_core::memory::DmaMemory as _;
use doorbell_core::spec::status::Status;
use doorbell_wasm::{GuestRam, Sandbox, SandboxedController, SandboxedGroup};
use vm_device::MutDeviceMmio;
use vm_device::bus::{MmioAddress, MmioAddressOffset};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// First byte of the doorbells.
const DOORBELLS: u64 = 0x1000;

/// How the device's interrupts reach the guest.
pub(crate) trait Interrupts: Send {
    /// Raises a vector.
    fn raise(&self, vector: u16);
}

/// An eventfd for each vector, for KVM's irqfd or whoever else waits.
#[derive(Debug)]
pub(crate) struct EventFdInterrupts(Vec<EventFd>);

impl EventFdInterrupts {
    pub(crate) fn new(vectors: usize) -> io::Result<Self> {
        Ok(Self((0..vectors).map(|_| EventFd::new(EFD_NONBLOCK)).collect::<io::Result<_>>()?))
    }

    /// Takes what has been raised since the last time.
    pub(crate) fn take(&self, vector: usize) -> u64 {
        self.0[vector].read().unwrap_or(0)
    }
}

impl Interrupts for Arc<EventFdInterrupts> {
    fn raise(&self, vector: u16) {
        if let Some(eventfd) = self.0.get(usize::from(vector)) {
            // A counter that is full has been raised.
            let _ = eventfd.write(1);
        }
    }
}

/// See the module.
pub(crate) struct NvmeDevice {
    controller: SandboxedController,
    group: SandboxedGroup,
    memory: GuestRam<GuestMemoryMmap<()>>,
    registers: Vec<AtomicU32>,
    interrupts: Box<dyn Interrupts>,
    disk: Vec<u8>,
    started: Instant,
}

impl NvmeDevice {
    pub(crate) fn new(
        sandbox: &Sandbox,
        memory: GuestRam<GuestMemoryMmap<()>>,
        interrupts: Box<dyn Interrupts>,
        disk: Vec<u8>,
    ) -> Result<Self> {
        let mut controller = sandbox.controller()?;
        controller.add_namespace(
            None,
            NamespaceConfig {
                size_blocks: disk.len() as u64 / 512,
                block_bytes: 512,
                read_only: false,
                deallocated_reads_zero: true,
                uuid: *b"a small VMM disk",
                nguid: [0; 16],
                eui64: [0; 8],
            },
        )?;
        Ok(Self {
            controller,
            group: sandbox.group()?,
            memory,
            registers: (0..1024).map(|_| AtomicU32::new(0)).collect(),
            interrupts,
            disk,
            started: Instant::now(),
        })
    }

    /// Carries on whatever can be carried on, until the device may sleep.
    pub(crate) fn run(&mut self) {
        loop {
            let now_ns = self.started.elapsed().as_nanos() as u64;
            let more = self.controller.poll(&self.memory, &self.registers, now_ns);
            while let Some((_, request)) = self.controller.poll_group_request() {
                self.group.handle_request(&self.memory, &self.registers, request);
            }
            while let Some(request) = self.controller.poll_host_request() {
                tracing::debug!(?request, "shutdown: RAM needs no flush");
                self.controller.handle_host_reply(HostReply::FlushAll(Ok(())));
            }
            while self.controller.poll_namespace_change().is_some() {}
            while let Some(vector) = self.controller.poll_interrupt() {
                self.interrupts.raise(vector);
            }
            while let Some(command) = self.group.poll_command(&self.memory, &self.registers) {
                let status = self.carry_out(&command).map_or_else(|status| status, |()| Status::SUCCESS);
                let _ = self.group.complete(&self.memory, command.tag, status);
            }
            self.group.flush(&self.memory, &self.registers);
            while let Some(vector) = self.group.poll_interrupt(now_ns) {
                self.interrupts.raise(vector);
            }
            let mut told = false;
            while let Some(message) = self.group.poll_message() {
                self.controller.handle_group_message(0, message);
                told = true;
            }
            if !more && !told && self.group.arm(&self.memory, &self.registers, false) == Armed::Sleep {
                return;
            }
        }
    }

    /// A command on the RAM disk. The host moves the data; the range has been checked.
    fn carry_out(&mut self, command: &IoCommand) -> Result<(), Status> {
        match command.operation {
            Operation::Flush | Operation::FlushAll | Operation::Verify(_) => Ok(()),
            Operation::Read(transfer) => self.each_piece(transfer, |memory, address, disk| {
                address.map_or(Ok(()), |address| Ok(memory.write(address, disk)?))
            }),
            Operation::Write { transfer, .. } => self.each_piece(transfer, |memory, address, disk| {
                Ok(memory.read(address.ok_or(Status::INTERNAL_ERROR)?, disk)?)
            }),
            Operation::Compare(transfer) => self.each_piece(transfer, |memory, address, disk| {
                let mut bytes = vec![0; disk.len()];
                memory.read(address.ok_or(Status::INTERNAL_ERROR)?, &mut bytes)?;
                if bytes == disk { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
            }),
            Operation::WriteZeroes { range, .. } => self.zero(range.offset_bytes, range.len_bytes),
            Operation::Deallocate(mut ranges) => {
                while let Some(range) = ranges.next_range(&self.memory) {
                    let range = range?;
                    self.zero(range.offset_bytes, range.len_bytes)?;
                }
                Ok(())
            }
        }
    }

    fn each_piece(
        &mut self,
        mut transfer: Transfer,
        mut piece: impl FnMut(&GuestRam<GuestMemoryMmap<()>>, Option<u64>, &mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let mut at = transfer.offset_bytes as usize;
        while let Some(segment) = transfer.segments.next_segment(&self.memory) {
            let segment = segment?;
            let end = at + segment.len_bytes as usize;
            let disk = self.disk.get_mut(at..end).ok_or(Status::INTERNAL_ERROR)?;
            piece(&self.memory, (!segment.bit_bucket).then_some(segment.address), disk)?;
            at = end;
        }
        Ok(())
    }

    fn zero(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<(), Status> {
        let (start, len) = (offset_bytes as usize, len_bytes as usize);
        self.disk.get_mut(start..start + len).ok_or(Status::INTERNAL_ERROR)?.fill(0);
        Ok(())
    }
}

impl MutDeviceMmio for NvmeDevice {
    fn mmio_read(&mut self, _base: MmioAddress, offset: MmioAddressOffset, data: &mut [u8]) {
        if offset < DOORBELLS {
            self.controller.read_register(offset as u32, data);
        } else {
            data.fill(0);
        }
    }

    fn mmio_write(&mut self, _base: MmioAddress, offset: MmioAddressOffset, data: &[u8]) {
        if offset < DOORBELLS {
            self.controller.write_register(offset as u32, data);
        } else {
            self.controller.handle_doorbell_write(&self.registers, offset as u32, data);
        }
        self.run();
    }
}
