//! A driver that knows the device by its registers and by guest memory only.

use anyhow::{Context, Result, ensure};
use vm_device::bus::MmioAddress;
use vm_device::device_manager::MmioManager as _;
use vm_memory::{Bytes as _, GuestAddress};

use crate::{BAR, Machine};

/// Guest addresses: queues, a PRP list, data to write, data that is read.
const ASQ: u64 = 0x1_0000;
const ACQ: u64 = 0x1_1000;
const SQ: u64 = 0x1_2000;
const CQ: u64 = 0x1_3000;
const LIST: u64 = 0x1_4000;
const FROM: u64 = 0x10_0000;
const TO: u64 = 0x20_0000;

/// Entries of every queue.
const ENTRIES: u16 = 16;

/// Bytes of a transfer: needs a PRP list.
const TRANSFER: usize = 64 << 10;

/// One queue pair.
struct Queue<'a> {
    machine: &'a Machine,
    qid: u16,
    sq: u64,
    cq: u64,
    tail: u16,
    head: u16,
    phase: u32,
    cid: u16,
}

impl<'a> Queue<'a> {
    fn new(machine: &'a Machine, qid: u16, sq: u64, cq: u64) -> Self {
        Self { machine, qid, sq, cq, tail: 0, head: 0, phase: 1, cid: 0 }
    }

    /// Submits a command, given as sixteen dwords, and waits for it.
    fn execute(&mut self, mut entry: [u32; 16]) -> Result<()> {
        self.cid += 1;
        entry[0] |= u32::from(self.cid) << 16;
        let bytes: Vec<u8> = entry.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        let memory = &self.machine.memory;
        memory.write_slice(&bytes, GuestAddress(self.sq + u64::from(self.tail) * 64))?;
        self.tail = (self.tail + 1) % ENTRIES;
        write(self.machine, 0x1000 + u64::from(self.qid) * 8, u32::from(self.tail))?;
        let at = self.cq + u64::from(self.head) * 16;
        let last: u32 = memory.read_obj(GuestAddress(at + 12))?;
        ensure!(last >> 16 & 1 == self.phase, "command {} hasn't completed", self.cid);
        ensure!(last as u16 == self.cid && last >> 17 == 0, "command {}: {last:x}", self.cid);
        self.head = (self.head + 1) % ENTRIES;
        if self.head == 0 {
            self.phase ^= 1;
        }
        write(self.machine, 0x1004 + u64::from(self.qid) * 8, u32::from(self.head))
    }
}

/// Brings the controller up, writes and reads back; how many bytes.
pub(crate) fn run(machine: &Machine) -> Result<usize> {
    let queue_entries = u32::from(ENTRIES - 1);
    write(machine, 0x24, queue_entries << 16 | queue_entries)?;
    for (offset, value) in [(0x28, ASQ), (0x30, ACQ)] {
        write(machine, offset, value as u32)?;
        write(machine, offset + 4, 0)?;
    }
    write(machine, 0x14, 0x0046_0001)?;
    ensure!(read(machine, 0x1c)? & 3 == 1, "the controller isn't ready");
    let mut admin = Queue::new(machine, 0, ASQ, ACQ);
    let create = |opcode: u32, base: u64, dword11: u32| {
        let mut entry = [0; 16];
        entry[0] = opcode;
        entry[6] = base as u32;
        entry[10] = queue_entries << 16 | 1;
        entry[11] = dword11;
        entry
    };
    admin.execute(create(5, CQ, 1 << 16 | 3)).context("create the completion queue")?;
    admin.execute(create(1, SQ, 1 << 16 | 1)).context("create the submission queue")?;

    // The pages of each buffer in reverse order, so that nothing comes out right by accident.
    let pages = TRANSFER as u64 / 4096;
    let mut queue = Queue::new(machine, 1, SQ, CQ);
    let mut moved = 0;
    for round in 0..100_u32 {
        let page = |buffer: u64, index: u64| buffer + (pages - 1 - index) * 4096;
        let pattern: Vec<u8> = (0..TRANSFER as u32).map(|at| (at ^ (at >> 8) ^ (round * 37)) as u8).collect();
        for (index, bytes) in (0..).zip(pattern.chunks(4096)) {
            machine.memory.write_slice(bytes, GuestAddress(page(FROM, index)))?;
        }
        for (opcode, buffer) in [(1, FROM), (2, TO)] {
            for index in 1..pages {
                let entry = page(buffer, index);
                machine.memory.write_slice(&entry.to_le_bytes(), GuestAddress(LIST + (index - 1) * 8))?;
            }
            let mut entry = [0; 16];
            entry[0] = opcode;
            entry[1] = 1;
            entry[6] = page(buffer, 0) as u32;
            entry[8] = LIST as u32;
            entry[10] = round * 128;
            entry[12] = TRANSFER as u32 / 512 - 1;
            queue.execute(entry).with_context(|| format!("opcode {opcode} of round {round}"))?;
        }
        for (index, bytes) in (0..).zip(pattern.chunks(4096)) {
            let mut found = [0; 4096];
            machine.memory.read_slice(&mut found, GuestAddress(page(TO, index)))?;
            ensure!(found == bytes, "round {round}: what was read isn't what was written");
        }
        ensure!(machine.interrupts.take(1) > 0, "round {round}: no interrupt");
        moved += TRANSFER;
    }
    Ok(moved)
}

fn write(machine: &Machine, offset: u64, value: u32) -> Result<()> {
    Ok(machine.bus.mmio_write(MmioAddress(BAR + offset), &value.to_le_bytes())?)
}

fn read(machine: &Machine, offset: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    machine.bus.mmio_read(MmioAddress(BAR + offset), &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}
