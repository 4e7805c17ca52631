//! The driver.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::data::{PAGE_BYTES, prp_entries, prp_lists};
use super::{Command, Completion, CompletionQueue, Rule, SubmissionQueue};
use crate::pci::Function;
use crate::process::wait_for;
use crate::qemu::{Device, MEMORY_MIB};
use crate::qtest::Qtest;

/// Controller registers (Base 1.4, 3.1).
pub mod register {
    /// Controller Capabilities, 64 bits.
    pub const CAP: u64 = 0x00;
    /// Version.
    pub const VS: u64 = 0x08;
    /// Interrupt Mask Set.
    pub const INTMS: u64 = 0x0c;
    /// Interrupt Mask Clear.
    pub const INTMC: u64 = 0x10;
    /// Controller Configuration.
    pub const CC: u64 = 0x14;
    /// Controller Status.
    pub const CSTS: u64 = 0x1c;
    /// NVM Subsystem Reset.
    pub const NSSR: u64 = 0x20;
    /// Admin Queue Attributes.
    pub const AQA: u64 = 0x24;
    /// Admin Submission Queue Base Address, 64 bits.
    pub const ASQ: u64 = 0x28;
    /// Admin Completion Queue Base Address, 64 bits.
    pub const ACQ: u64 = 0x30;
    /// The first doorbell.
    pub const DOORBELLS: u64 = 0x1000;
}

/// CC of a driver: I/O completion queue entries of 16 bytes, submission of 64, 4 KiB pages, NVM command set.
const CC_DRIVER: u32 = 4 << 20 | 6 << 16;

/// How long the driver waits for the controller. Long enough for a busy machine, short enough for a test.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory below stays free for firmware's data structures.
const FIRST_FREE: u64 = 16 << 20;

#[derive(Clone, Copy, Debug)]
struct Shadow {
    rule: Rule,
    doorbells: u64,
    event_indexes: u64,
}

/// A controller, and everything that the driver knows about it.
#[derive(Debug)]
pub struct Controller {
    /// The machine.
    pub qtest: Qtest,
    /// Its place on the PCI bus.
    pub function: Function,
    /// Live submission queues; 0 is the admin queue.
    pub submission: BTreeMap<u16, SubmissionQueue>,
    /// Live completion queues; 0 is the admin queue.
    pub completion: BTreeMap<u16, CompletionQueue>,
    /// How often a doorbell register was written.
    pub doorbell_writes: u64,
    shadow: Option<Shadow>,
    free: u64,
    early: Vec<Completion>,
}

impl Controller {
    /// Starts a machine with this device and finds the controller. It isn't enabled yet.
    pub fn start(device: &Device) -> Result<Self> {
        let mut qtest = Qtest::start(std::slice::from_ref(device))?;
        let function = Function::find_nvme(&mut qtest, 0)?;
        Ok(Self {
            qtest,
            function,
            submission: BTreeMap::new(),
            completion: BTreeMap::new(),
            doorbell_writes: 0,
            shadow: None,
            free: FIRST_FREE,
            early: Vec::new(),
        })
    }

    /// Starts a machine and enables the controller with admin queues of 32 entries.
    pub fn start_enabled(device: &Device) -> Result<Self> {
        let mut controller = Self::start(device)?;
        controller.enable(32)?;
        Ok(controller)
    }

    /// The address of a register.
    pub fn at(&self, offset: u64) -> Result<u64> {
        Ok(self.function.bars[0].context("the controller has no BAR 0")?.address + offset)
    }

    /// Reads a 32-bit register.
    pub fn read(&mut self, offset: u64) -> Result<u32> {
        let address = self.at(offset)?;
        self.qtest.readl(address)
    }

    /// Writes a 32-bit register.
    pub fn write(&mut self, offset: u64, value: u32) -> Result<()> {
        let address = self.at(offset)?;
        self.qtest.writel(address, value)
    }

    /// Reads a 64-bit register as two 32-bit ones, lower half first.
    pub fn read_wide(&mut self, offset: u64) -> Result<u64> {
        Ok(u64::from(self.read(offset)?) | u64::from(self.read(offset + 4)?) << 32)
    }

    /// Writes a 64-bit register as two 32-bit ones, lower half first.
    pub fn write_wide(&mut self, offset: u64, value: u64) -> Result<()> {
        self.write(offset, value as u32)?;
        self.write(offset + 4, (value >> 32) as u32)
    }

    /// Memory for the test, zeroed, page aligned. It is never given back.
    pub fn allocate(&mut self, len_bytes: u64) -> Result<u64> {
        let address = self.free;
        self.free = (address + len_bytes).next_multiple_of(PAGE_BYTES);
        ensure!(self.free <= MEMORY_MIB << 20, "the test needs more than the machine's {MEMORY_MIB} MiB");
        if len_bytes > 0 {
            self.qtest.fill_memory(address, len_bytes, 0)?;
        }
        Ok(address)
    }

    /// Disables the controller and enables it with fresh admin queues.
    pub fn enable(&mut self, entries: u32) -> Result<()> {
        self.disable()?;
        let sq = self.allocate(u64::from(entries) * 64)?;
        let cq = self.allocate(u64::from(entries) * 16)?;
        self.write(register::AQA, (entries - 1) << 16 | (entries - 1))?;
        self.write_wide(register::ASQ, sq)?;
        self.write_wide(register::ACQ, cq)?;
        self.submission.insert(0, SubmissionQueue::fresh(0, sq, entries, 0));
        self.completion.insert(0, CompletionQueue::fresh(0, cq, entries));
        self.write(register::CC, CC_DRIVER | 1)?;
        self.wait_ready(true)
    }

    /// Clears CC.EN and waits until the controller has stopped. Forgets every queue.
    pub fn disable(&mut self) -> Result<()> {
        let cc = self.read(register::CC)?;
        if cc & 1 != 0 {
            self.write(register::CC, cc & !1)?;
        }
        self.wait_ready(false)?;
        self.forget();
        Ok(())
    }

    /// Waits for CSTS.RDY; a fatal status is an error.
    pub fn wait_ready(&mut self, ready: bool) -> Result<()> {
        wait_for(if ready { "CSTS.RDY becomes 1" } else { "CSTS.RDY becomes 0" }, LIMIT, || {
            let csts = self.read(register::CSTS)?;
            ensure!(csts != u32::MAX, "CSTS reads as all ones: the device is gone");
            ensure!(!ready || csts & 2 == 0, "CSTS is {csts:#x}: Controller Fatal Status");
            Ok((csts & 1 == u32::from(ready)).then_some(()))
        })
    }

    /// Forgets every queue and the shadow doorbells, as after a reset that happened on another way.
    pub fn forget(&mut self) {
        self.submission.clear();
        self.completion.clear();
        self.shadow = None;
        self.early.clear();
    }

    /// Writes an entry; the doorbell isn't rung. Returns the command identifier.
    pub fn submit(&mut self, sqid: u16, command: &Command) -> Result<u16> {
        let queue = self.submission.get_mut(&sqid).context("no such submission queue")?;
        let cid = queue.take_cid();
        let address = queue.base + u64::from(queue.tail) * 64;
        queue.tail = (queue.tail + 1) % queue.entries;
        self.qtest.write_memory(address, &command.bytes(cid))?;
        Ok(cid)
    }

    /// Tells the controller about everything submitted.
    pub fn ring(&mut self, sqid: u16) -> Result<()> {
        let queue = self.submission.get_mut(&sqid).context("no such submission queue")?;
        let (old, new) = (queue.rung, queue.tail);
        queue.rung = new;
        self.doorbell(2 * u64::from(sqid), sqid != 0, old, new)
    }

    /// Takes the next entry of a completion queue if there is one, without telling the controller.
    pub fn peek(&mut self, cqid: u16) -> Result<Option<Completion>> {
        let queue = self.completion.get(&cqid).context("no such completion queue")?;
        let bytes = self.qtest.read_memory(queue.base + u64::from(queue.head) * 16, 16)?;
        let bytes: [u8; 16] = bytes.as_slice().try_into()?;
        let queue = self.completion.get_mut(&cqid).context("no such completion queue")?;
        if (bytes[14] & 1 != 0) != queue.phase {
            return Ok(None);
        }
        queue.head = (queue.head + 1) % queue.entries;
        if queue.head == 0 {
            queue.phase = !queue.phase;
        }
        let completion = Completion::parse(bytes);
        let owner = self.submission.get_mut(&completion.sqid);
        let owner = owner.with_context(|| format!("{completion:?} names no live submission queue"))?;
        ensure!(owner.cqid == cqid, "{completion:?} came to completion queue {cqid}");
        ensure!(owner.inflight.remove(&completion.cid), "{completion:?} answers no command in flight");
        ensure!(u32::from(completion.sqhd) < owner.entries, "SQHD of {completion:?} is outside the queue");
        Ok(Some(completion))
    }

    /// Tells the controller which completions were taken.
    pub fn ring_head(&mut self, cqid: u16) -> Result<()> {
        let queue = self.completion.get_mut(&cqid).context("no such completion queue")?;
        let (old, new) = (queue.rung, queue.head);
        queue.rung = new;
        if old == new {
            return Ok(());
        }
        self.doorbell(2 * u64::from(cqid) + 1, cqid != 0, old, new)
    }

    /// Takes the next completion and frees its entry.
    pub fn poll(&mut self, cqid: u16) -> Result<Option<Completion>> {
        let completion = self.peek(cqid)?;
        if completion.is_some() {
            self.ring_head(cqid)?;
        }
        Ok(completion)
    }

    /// Waits for the next completion on this queue.
    pub fn wait(&mut self, cqid: u16) -> Result<Completion> {
        wait_for(&format!("a completion on queue {cqid}"), LIMIT, || {
            let found = self.poll(cqid)?;
            if found.is_none() {
                // Timers of QEMU's own device; ours has a clock of its own.
                self.qtest.step_clock(100_000)?;
            }
            Ok(found)
        })
        .with_context(|| self.state())
    }

    /// Waits for the completion of this command; others that come first are kept for their waiters.
    pub fn wait_command(&mut self, sqid: u16, cid: u16) -> Result<Completion> {
        let cqid = self.submission.get(&sqid).context("no such submission queue")?.cqid;
        let wanted = |found: &Completion| found.sqid == sqid && found.cid == cid;
        if let Some(index) = self.early.iter().position(wanted) {
            return Ok(self.early.remove(index));
        }
        loop {
            let completion = self.wait(cqid)?;
            if wanted(&completion) {
                return Ok(completion);
            }
            self.early.push(completion);
        }
    }

    /// Submits, rings and waits.
    pub fn execute(&mut self, sqid: u16, command: &Command) -> Result<Completion> {
        let cid = self.submit(sqid, command)?;
        self.ring(sqid)?;
        self.wait_command(sqid, cid)
    }

    /// Executes and demands success.
    pub fn execute_ok(&mut self, sqid: u16, command: &Command) -> Result<Completion> {
        let completion = self.execute(sqid, command)?;
        ensure!(completion.status.ok(), "{command:02x?} ended with {:?}", completion.status);
        Ok(completion)
    }

    /// Executes an admin command and demands success.
    pub fn admin_ok(&mut self, command: &Command) -> Result<Completion> {
        self.execute_ok(0, command)
    }

    /// Executes an admin command that must end with this status code type and status code.
    pub fn admin_refused(&mut self, command: &Command, status: (u8, u8)) -> Result<()> {
        let completion = self.execute(0, command)?;
        ensure!(
            completion.status.pair() == status,
            "{command:02x?} ended with {:?} instead of SCT {:x} SC {:02x}",
            completion.status,
            status.0,
            status.1
        );
        Ok(())
    }

    /// Identify: 4096 bytes.
    pub fn identify(&mut self, cns: u32, nsid: u32) -> Result<Vec<u8>> {
        let buffer = self.allocate(4096)?;
        self.admin_ok(&Command::new(0x06).nsid(nsid).prp(buffer, 0).word(10, cns))?;
        self.qtest.read_memory(buffer, 4096)
    }

    /// Get Log Page from `offset`.
    pub fn log_page(&mut self, lid: u32, nsid: u32, len_bytes: u64, offset: u64) -> Result<Vec<u8>> {
        let buffer = self.allocate(len_bytes)?;
        let command = self.log_command(lid, nsid, buffer, len_bytes, offset)?;
        self.admin_ok(&command)?;
        self.qtest.read_memory(buffer, len_bytes as usize)
    }

    /// The command of [`Controller::log_page`].
    pub fn log_command(
        &mut self,
        lid: u32,
        nsid: u32,
        buffer: u64,
        len_bytes: u64,
        offset: u64,
    ) -> Result<Command> {
        let (prp1, prp2) = self.prp(buffer, len_bytes)?;
        let numd_z = (len_bytes / 4 - 1) as u32;
        Ok(Command::new(0x02)
            .nsid(nsid)
            .prp(prp1, prp2)
            .word(10, lid | (numd_z & 0xffff) << 16)
            .word(11, numd_z >> 16)
            .word(12, offset as u32)
            .word(13, (offset >> 32) as u32))
    }

    /// Set Features without data; the result is dword 0.
    pub fn set_feature(&mut self, fid: u32, value: u32) -> Result<u32> {
        Ok(self.admin_ok(&Command::new(0x09).word(10, fid).word(11, value))?.result)
    }

    /// Get Features without data, the current value.
    pub fn get_feature(&mut self, fid: u32) -> Result<u32> {
        Ok(self.admin_ok(&Command::new(0x0a).word(10, fid))?.result)
    }

    /// The Create I/O Completion Queue command; a vector means interrupts.
    #[must_use]
    pub fn create_cq_command(id: u16, base: u64, entries: u32, vector: Option<u16>) -> Command {
        let flags = vector.map_or(1, |vector| u32::from(vector) << 16 | 0b11);
        Command::new(0x05).prp(base, 0).word(10, (entries - 1) << 16 | u32::from(id)).word(11, flags)
    }

    /// The Create I/O Submission Queue command.
    #[must_use]
    pub fn create_sq_command(id: u16, base: u64, entries: u32, cqid: u16) -> Command {
        Command::new(0x01)
            .prp(base, 0)
            .word(10, (entries - 1) << 16 | u32::from(id))
            .word(11, u32::from(cqid) << 16 | 1)
    }

    /// Creates a completion queue.
    pub fn create_cq(&mut self, id: u16, entries: u32, vector: Option<u16>) -> Result<()> {
        let base = self.allocate(u64::from(entries) * 16)?;
        self.clear_shadow(2 * u64::from(id) + 1)?;
        self.admin_ok(&Self::create_cq_command(id, base, entries, vector))?;
        self.completion.insert(id, CompletionQueue::fresh(id, base, entries));
        Ok(())
    }

    /// Creates a submission queue.
    pub fn create_sq(&mut self, id: u16, entries: u32, cqid: u16) -> Result<()> {
        let base = self.allocate(u64::from(entries) * 64)?;
        self.clear_shadow(2 * u64::from(id))?;
        self.admin_ok(&Self::create_sq_command(id, base, entries, cqid))?;
        self.submission.insert(id, SubmissionQueue::fresh(id, base, entries, cqid));
        Ok(())
    }

    /// Creates a completion queue and a submission queue with the same identifier.
    pub fn create_pair(&mut self, id: u16, entries: u32, vector: Option<u16>) -> Result<()> {
        self.create_cq(id, entries, vector)?;
        self.create_sq(id, entries, id)
    }

    /// Deletes a submission queue.
    pub fn delete_sq(&mut self, id: u16) -> Result<()> {
        self.admin_ok(&Command::new(0x00).word(10, id.into()))?;
        self.submission.remove(&id);
        Ok(())
    }

    /// Deletes a completion queue.
    pub fn delete_cq(&mut self, id: u16) -> Result<()> {
        self.admin_ok(&Command::new(0x04).word(10, id.into()))?;
        self.completion.remove(&id);
        Ok(())
    }

    /// PRP entries 1 and 2 for a piece of memory; lists are allocated and written.
    pub fn prp(&mut self, address: u64, len_bytes: u64) -> Result<(u64, u64)> {
        let entries = prp_entries(address, len_bytes);
        self.prp_of(&entries)
    }

    /// PRP entries 1 and 2 for these entries, which need not be neighbours.
    pub fn prp_of(&mut self, entries: &[u64]) -> Result<(u64, u64)> {
        let mut next = self.free;
        let (prp1, prp2, pages) = prp_lists(entries, || {
            next += PAGE_BYTES;
            next - PAGE_BYTES
        });
        self.allocate(next - self.free)?;
        for (address, bytes) in pages {
            self.qtest.write_memory(address, &bytes)?;
        }
        Ok((prp1, prp2))
    }

    /// Doorbell Buffer Config with two fresh pages; from then on I/O queues ring by `rule`. The positions
    /// of queues that exist already are the controller's to copy.
    pub fn enable_shadow(&mut self, rule: Rule) -> Result<()> {
        let doorbells = self.allocate(PAGE_BYTES)?;
        let event_indexes = self.allocate(PAGE_BYTES)?;
        self.admin_ok(&Command::new(0x7c).prp(doorbells, event_indexes))?;
        self.shadow = Some(Shadow { rule, doorbells, event_indexes });
        Ok(())
    }

    /// The addresses of the shadow doorbells and of the event indexes.
    #[must_use]
    pub fn shadow_pages(&self) -> Option<(u64, u64)> {
        self.shadow.map(|shadow| (shadow.doorbells, shadow.event_indexes))
    }

    /// Writes a doorbell register directly: SQ `n` is `2n`, CQ `n` is `2n + 1`.
    pub fn ring_register(&mut self, index: u64, value: u32) -> Result<()> {
        let stride = 4 << (self.read_wide(register::CAP)? >> 32 & 0xf);
        self.doorbell_writes += 1;
        self.write(register::DOORBELLS + index * stride, value)
    }

    fn doorbell(&mut self, index: u64, io: bool, old: u32, new: u32) -> Result<()> {
        if let Some(shadow) = self.shadow.filter(|_| io) {
            self.qtest.writel(shadow.doorbells + 4 * index, new)?;
            let event_index = self.qtest.readl(shadow.event_indexes + 4 * index)?;
            if !shadow.rule.rings(event_index as u16, old as u16, new as u16) {
                return Ok(());
            }
        }
        self.ring_register(index, new)
    }

    /// What a driver does to a doorbell before it creates the queue.
    fn clear_shadow(&mut self, index: u64) -> Result<()> {
        if let Some(shadow) = self.shadow {
            self.qtest.writel(shadow.doorbells + 4 * index, 0)?;
            self.qtest.writel(shadow.event_indexes + 4 * index, 0)?;
        }
        Ok(())
    }

    fn state(&mut self) -> String {
        let csts = self.read(register::CSTS);
        let inflight: Vec<_> = self
            .submission
            .values()
            .map(|queue| (queue.id, queue.inflight.len()))
            .filter(|q| q.1 > 0)
            .collect();
        format!("CSTS {csts:x?}; commands in flight (queue, count): {inflight:?}")
    }
    /// Writes a pattern to `blocks` blocks of 512 bytes at `lba` and compares what a read returns.
    pub fn write_and_compare(&mut self, sqid: u16, lba: u64, blocks: u32, seed: u64) -> Result<()> {
        let len_bytes = u64::from(blocks) * 512;
        let bytes = super::data::pattern(seed, len_bytes as usize);
        let out = self.allocate(len_bytes)?;
        let back = self.allocate(len_bytes)?;
        self.qtest.write_memory(out, &bytes)?;
        let (prp1, prp2) = self.prp(out, len_bytes)?;
        self.execute_ok(sqid, &Command::write(1, lba, blocks).prp(prp1, prp2))?;
        let (prp1, prp2) = self.prp(back, len_bytes)?;
        self.execute_ok(sqid, &Command::read(1, lba, blocks).prp(prp1, prp2))?;
        if self.qtest.read_memory(back, len_bytes as usize)? != bytes {
            bail!("{blocks} blocks at {lba} read back differently");
        }
        Ok(())
    }
}
