//! I/O: every byte is made from its place and the number of the write that put it there.

use doorbell_core::memory::DmaMemory;
use doorbell_core::spec::admin::AdminOpcode;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::queue_entry::{CommandFlags, SubmissionQueueEntry};

use super::admin::{entry, succeeded};
use super::buffer::{Buffer, Pool};
use super::host::{BLOCKS, Bench, DATA_PAGES, Failure, Host, LISTS, same};
use super::queue::ENTRIES;
use super::ram::PAGE;
use crate::device::NSID;
use crate::media::Media;

/// Status: Command Abort Requested, LBA Out of Range, Compare Failure, PRP Offset Invalid, Data Transfer
/// Error, SGL Descriptor Type Invalid, Invalid Field.
const ABORTED: u16 = 0x07;
const OUT_OF_RANGE: u16 = 0x80;
const COMPARE_FAILURE: u16 = 0x285;
const PRP_OFFSET_INVALID: u16 = 0x13;
const DATA_TRANSFER_ERROR: u16 = 0x04;
const SGL_TYPE_INVALID: u16 = 0x11;
const INVALID_FIELD: u16 = 0x02;

/// Force Unit Access.
const FUA: u32 = 1 << 30;

/// How a buffer is named.
#[derive(Clone, Copy)]
enum Shape {
    /// By PRP entries, from this offset of a page on.
    Prp(u64),
    Sgl,
    SglWithBuckets,
}

/// A command on blocks.
pub(super) fn on_blocks(opcode: NvmOpcode, slba: u64, count: u32, buffer: &Buffer) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        opcode: opcode.0,
        flags: CommandFlags::new().with_psdt(u8::from(buffer.is_sgl)),
        nsid: NSID.into(),
        prp1: buffer.low.into(),
        prp2: buffer.high.into(),
        cdw10: (slba as u32).into(),
        cdw11: ((slba >> 32) as u32).into(),
        cdw12: (count - 1).into(),
        ..SubmissionQueueEntry::default()
    }
}

/// The byte at `offset` of a block after write number `generation`.
fn byte_of(block: u64, offset: u32, generation: u8) -> u8 {
    if generation == 0 {
        return 0;
    }
    let mixed = (block as u32).wrapping_mul(0x9e37_79b1) ^ offset.wrapping_mul(0x85eb_ca6b);
    ((mixed ^ mixed >> 15) >> 8) as u8 ^ generation
}

impl<B: Bench, M: Media, const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize>
    Host<'_, B, M, QUEUES, COMMANDS, ERRORS>
{
    /// Every way to move data, on every queue.
    pub(super) fn exercise_io(&mut self) -> Result<(), Failure> {
        for index in 0..QUEUES {
            for shape in [Shape::Prp(0), Shape::Prp(2048), Shape::Prp(4), Shape::Sgl, Shape::SglWithBuckets] {
                for count in [1, self.most_blocks() / 2, self.most_blocks()] {
                    self.write_and_read(index, shape, count.max(1))?;
                }
            }
        }
        for turn in 0..12 {
            self.burst(turn)?;
        }
        self.other_commands(0)?;
        self.refusals(0)?;
        self.verify_everything()
    }

    const fn blocks(&self, media_blocks: u64) -> u64 {
        if media_blocks > BLOCKS as u64 { BLOCKS as u64 } else { media_blocks }
    }

    pub(super) fn used_blocks(&self) -> u64 {
        self.blocks(self.media.size_blocks())
    }

    /// Blocks of the largest transfer.
    fn most_blocks(&self) -> u32 {
        let blocks = u32::try_from(self.used_blocks()).unwrap_or(u32::MAX);
        (32_768 / self.media.block_bytes()).min(blocks)
    }

    fn whole_pool(&self) -> Pool {
        Pool { data: self.data(), pages: DATA_PAGES, list: LISTS }
    }

    fn buffer(&self, shape: Shape, len: u32) -> Buffer {
        let pool = self.whole_pool();
        match shape {
            Shape::Prp(offset) => Buffer::prp(self.ram(), pool, offset, len),
            Shape::Sgl => Buffer::sgl(self.ram(), pool, len, false),
            Shape::SglWithBuckets => Buffer::sgl(self.ram(), pool, len, true),
        }
    }

    const fn next_generation(&mut self) -> u8 {
        self.last_generation = if self.last_generation == u8::MAX { 1 } else { self.last_generation + 1 };
        self.last_generation
    }

    fn set_generation(&mut self, slba: u64, count: u32, generation: u8) {
        let places = self.generations.iter_mut().skip(slba as usize).take(count as usize);
        places.for_each(|place| *place = generation);
    }

    /// What the byte at `position` of a transfer from `slba` should be.
    fn expected(&self, slba: u64, position: u32) -> u8 {
        let block_bytes = self.media.block_bytes();
        let block = slba + u64::from(position / block_bytes);
        let generation = self.generations.get(block as usize).copied().unwrap_or(0);
        byte_of(block, position % block_bytes, generation)
    }

    fn place_for(&mut self, count: u32) -> u64 {
        let room = self.used_blocks() - u64::from(count);
        u64::from(self.next_cid()).wrapping_mul(13) % (room + 1)
    }

    fn write_and_read(&mut self, index: usize, shape: Shape, count: u32) -> Result<(), Failure> {
        let len = count * self.media.block_bytes();
        let slba = self.place_for(count);
        // A bit bucket is for reads; the same bytes are written without.
        let to_write = match shape {
            Shape::SglWithBuckets => Shape::Sgl,
            other => other,
        };
        let buffer = self.buffer(to_write, len);
        let generation = self.next_generation();
        self.set_generation(slba, count, generation);
        buffer.fill(self.ram(), |position| self.expected(slba, position));
        let mut write = on_blocks(NvmOpcode::WRITE, slba, count, &buffer);
        if generation.is_multiple_of(4) {
            write.cdw12 = (write.cdw12.get() | FUA).into();
        }
        succeeded("Write", &self.io(index, write)?)?;
        self.read_and_verify(index, shape, slba, count)
    }

    fn read_and_verify(&mut self, index: usize, shape: Shape, slba: u64, count: u32) -> Result<(), Failure> {
        let len = count * self.media.block_bytes();
        let buffer = self.buffer(shape, len);
        buffer.fill(self.ram(), |_| 0xee);
        succeeded("Read", &self.io(index, on_blocks(NvmOpcode::READ, slba, count, &buffer))?)?;
        self.verify(&buffer, slba, len)
    }

    fn verify(&mut self, buffer: &Buffer, slba: u64, len: u32) -> Result<(), Failure> {
        self.report.verified_bytes += u64::from(len);
        match buffer.first_wrong(self.ram(), |position| self.expected(slba, position)) {
            None => Ok(()),
            Some((position, found)) => {
                let wanted = u64::from(self.expected(slba, position));
                let what = "a byte of user data";
                Err(Failure { what, found: u64::from(position) << 8 | u64::from(found), wanted })
            }
        }
    }

    /// As many commands at once as the device takes and the rings hold, over all queues.
    fn burst(&mut self, turn: u32) -> Result<(), Failure> {
        let block_bytes = self.media.block_bytes();
        let count = (PAGE as u32 / block_bytes).min(u32::try_from(self.used_blocks()).unwrap_or(1));
        let slots = self.used_blocks() / u64::from(count);
        let many = (COMMANDS + 2).min((ENTRIES as usize - 1) * QUEUES).min(DATA_PAGES as usize);
        let many = many.min(slots as usize);
        let writes = turn.is_multiple_of(2);
        let generation = if writes { self.next_generation() } else { 0 };
        let ram = self.ram();
        let buffer = |host: &Self, slot: usize| {
            let pool = Pool { data: host.data() + slot as u64 * PAGE, pages: 1, list: LISTS };
            Buffer::prp(ram, pool, 0, count * block_bytes)
        };
        for slot in 0..many {
            let slba = (slot as u64 + u64::from(turn / 2)) % slots * u64::from(count);
            let made = buffer(self, slot);
            let opcode = if writes {
                self.set_generation(slba, count, generation);
                made.fill(ram, |position| self.expected(slba, position));
                NvmOpcode::WRITE
            } else {
                made.fill(ram, |_| 0xee);
                NvmOpcode::READ
            };
            let _ = self.put_io(slot % QUEUES, on_blocks(opcode, slba, count, &made));
        }
        for index in 0..QUEUES.min(many) {
            self.ring_io(index)?;
        }
        for slot in 0..many {
            succeeded("a command of a burst", &self.take_io(slot % QUEUES)?)?;
        }
        for slot in (0..many).filter(|_| !writes) {
            let slba = (slot as u64 + u64::from(turn / 2)) % slots * u64::from(count);
            let made = buffer(self, slot);
            self.verify(&made, slba, count * block_bytes)?;
        }
        same("commands left over", self.in_flight() as u64, 0_u64)
    }

    /// Compare, Verify, Write Zeroes, Dataset Management, Flush.
    fn other_commands(&mut self, index: usize) -> Result<(), Failure> {
        let count = self.most_blocks().min(4);
        let len = count * self.media.block_bytes();
        let slba = self.place_for(count);
        self.write_and_read(index, Shape::Prp(0), count)?;
        for shape in [Shape::Prp(0), Shape::Sgl] {
            let buffer = self.buffer(shape, len);
            buffer.fill(self.ram(), |position| self.expected(slba, position));
            let compare = on_blocks(NvmOpcode::COMPARE, slba, count, &buffer);
            succeeded("Compare of the same", &self.io(index, compare)?)?;
            buffer.fill(self.ram(), |position| self.expected(slba, position) ^ u8::from(position == len - 1));
            same("Compare of another byte", self.io(index, compare)?.code(), COMPARE_FAILURE)?;
        }
        let nothing = Buffer::default();
        succeeded("Verify", &self.io(index, on_blocks(NvmOpcode::VERIFY, slba, count, &nothing))?)?;
        let zeroes = on_blocks(NvmOpcode::WRITE_ZEROES, slba, count, &nothing);
        succeeded("Write Zeroes", &self.io(index, zeroes)?)?;
        self.set_generation(slba, count, 0);
        self.read_and_verify(index, Shape::Sgl, slba, count)?;
        let flush = SubmissionQueueEntry {
            opcode: NvmOpcode::FLUSH.0,
            nsid: NSID.into(),
            ..SubmissionQueueEntry::default()
        };
        succeeded("Flush", &self.io(index, flush)?)?;
        let all = SubmissionQueueEntry { nsid: u32::MAX.into(), ..flush };
        succeeded("Flush of all", &self.io(index, all)?)?;
        self.deallocate(index, slba, count)
    }

    /// Two ranges; what they read as afterwards is the medium's choice, so they are written again.
    fn deallocate(&mut self, index: usize, slba: u64, count: u32) -> Result<(), Failure> {
        let ram = self.ram();
        for (range, start) in [slba, slba + 1].into_iter().enumerate() {
            let at = LISTS + range as u64 * 16;
            let length = if range == 0 { 1 } else { count - 1 };
            let _ = ram.write(at, &[0; 4]);
            let _ = ram.store_u32(at + 4, length);
            let _ = ram.write(at + 8, &start.to_le_bytes());
        }
        let command = SubmissionQueueEntry {
            opcode: NvmOpcode::DATASET_MANAGEMENT.0,
            nsid: NSID.into(),
            prp1: LISTS.into(),
            cdw10: 1.into(),
            cdw11: 4.into(),
            ..SubmissionQueueEntry::default()
        };
        succeeded("Dataset Management", &self.io(index, command)?)?;
        let buffer = self.buffer(Shape::Prp(0), count * self.media.block_bytes());
        let generation = self.next_generation();
        self.set_generation(slba, count, generation);
        buffer.fill(ram, |position| self.expected(slba, position));
        succeeded("Write", &self.io(index, on_blocks(NvmOpcode::WRITE, slba, count, &buffer))?)?;
        self.read_and_verify(index, Shape::Prp(0), slba, count)
    }

    /// Commands that must fail, with the status that they must fail with, and change nothing.
    fn refusals(&mut self, index: usize) -> Result<(), Failure> {
        let block_bytes = self.media.block_bytes();
        let good = self.buffer(Shape::Prp(0), block_bytes);
        let past = on_blocks(NvmOpcode::READ, self.media.size_blocks(), 1, &good);
        same("a read past the end", self.io(index, past)?.code(), OUT_OF_RANGE)?;
        let wrapped = on_blocks(NvmOpcode::WRITE, u64::MAX, 2, &good);
        same("a write that wraps", self.io(index, wrapped)?.code(), OUT_OF_RANGE)?;
        let odd =
            SubmissionQueueEntry { prp1: (good.low + 2).into(), ..on_blocks(NvmOpcode::READ, 0, 1, &good) };
        same("a PRP with a wrong offset", self.io(index, odd)?.code(), PRP_OFFSET_INVALID)?;
        let nowhere = SubmissionQueueEntry { prp1: 0.into(), ..on_blocks(NvmOpcode::WRITE, 0, 1, &good) };
        same("data outside memory", self.io(index, nowhere)?.code(), DATA_TRANSFER_ERROR)?;
        let keyed = SubmissionQueueEntry {
            prp2: (u64::from(block_bytes) | 0x40 << 56).into(),
            flags: CommandFlags::new().with_psdt(1),
            ..on_blocks(NvmOpcode::READ, 0, 1, &good)
        };
        same("a keyed SGL descriptor", self.io(index, keyed)?.code(), SGL_TYPE_INVALID)?;
        let fused = SubmissionQueueEntry {
            flags: CommandFlags::new().with_fuse(1),
            ..on_blocks(NvmOpcode::READ, 0, 1, &good)
        };
        same("a fused command", self.io(index, fused)?.code(), INVALID_FIELD)?;
        // The block that "data outside memory" was to go to may hold anything now.
        let generation = self.next_generation();
        self.set_generation(0, 1, generation);
        good.fill(self.ram(), |position| self.expected(0, position));
        succeeded("Write", &self.io(index, on_blocks(NvmOpcode::WRITE, 0, 1, &good))?)
    }

    /// Reads the whole namespace and verifies it.
    pub(super) fn verify_everything(&mut self) -> Result<(), Failure> {
        let most = self.most_blocks();
        let mut slba = 0;
        while slba < self.used_blocks() {
            let count = u64::from(most).min(self.used_blocks() - slba) as u32;
            self.read_and_verify(0, Shape::Prp(0), slba, count)?;
            slba += u64::from(count);
        }
        Ok(())
    }

    /// Aborts: of a command that the medium has, of one behind it, of none.
    pub(super) fn aborts(&mut self) -> Result<(), Failure> {
        let buffer = self.buffer(Shape::Prp(0), self.media.block_bytes());
        self.media.shut();
        let many = COMMANDS.min(3);
        let mut cids = [0; 3];
        for place in cids.iter_mut().take(many) {
            *place = self.put_io(0, on_blocks(NvmOpcode::READ, 0, 1, &buffer));
        }
        self.ring_io(0)?;
        self.until("the commands are in flight", |host| (host.in_flight() == many).then_some(()))?;
        for place in (0..many.min(2)).rev() {
            let cid = cids.get(place).copied().unwrap_or(0);
            let abort = self.admin(entry(AdminOpcode::ABORT, 0, u32::from(cid) << 16 | 1, 0))?;
            succeeded("Abort", &abort)?;
            same("Abort: it was aborted", abort.result & 1, 0_u32)?;
            let aborted = self.take_io(0)?;
            same("the aborted command", aborted.cid, cid)?;
            same("its status", aborted.code(), ABORTED)?;
        }
        let unknown = self.admin(entry(AdminOpcode::ABORT, 0, 0xfff0 << 16 | 1, 0))?;
        same("Abort of nothing", unknown.result & 1, 1_u32)?;
        self.media.open();
        for _ in 2..many {
            succeeded("the command that wasn't aborted", &self.take_io(0)?)?;
        }
        same("commands left over", self.in_flight() as u64, 0_u64)
    }
}
