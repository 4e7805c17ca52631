//! The model host itself: its state, and how it makes the device run.

use doorbell_core::doorbell::{Registers, head_index, tail_index};
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::DoorbellBuffer;
use doorbell_core::spec::queue_entry::SubmissionQueueEntry;
use doorbell_core::spec::register::DOORBELLS;

use super::endpoint::ModelEndpoint;
use super::gate::Gate;
use super::queue::{Completion, Pair};
use super::ram::{BASE, GuestRam, PAGE};
use crate::device::Device;
use crate::endpoint::EndpointEvent;
use crate::media::Media;

/// What surrounds every turn of the device: an image measures there.
pub trait Bench {
    /// Runs one turn.
    fn turn(&mut self, turn: impl FnOnce() -> bool) -> bool {
        turn()
    }

    /// Instructions executed so far, or anything that grows with them.
    fn instructions(&mut self) -> u64 {
        0
    }
}

/// Measures nothing.
#[derive(Debug)]
pub struct NoBench;

impl Bench for NoBench {}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Failure {
    /// What was looked at.
    pub what: &'static str,
    /// What it was.
    pub found: u64,
    /// What it should have been.
    pub wanted: u64,
}

/// What a whole run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Report {
    /// Admin commands.
    pub admin_commands: u32,
    /// I/O commands.
    pub io_commands: u32,
    /// Bytes of user data that were verified.
    pub verified_bytes: u64,
    /// Doorbell registers written.
    pub doorbell_writes: u32,
    /// Doorbells that moved by shadow alone.
    pub shadow_moves: u32,
    /// MSI-X messages.
    pub interrupts: u32,
    /// Times the device went to sleep.
    pub sleeps: u32,
    /// Resets of any kind.
    pub resets: u32,
}

/// Blocks of the namespace that the model host uses, at most.
pub(super) const BLOCKS: usize = 256;

/// Pages: admin queues, replies, shadow doorbells and EventIdx, lists.
const ADMIN_SQ: u64 = BASE;
const ADMIN_CQ: u64 = BASE + PAGE;
pub(super) const REPLY: u64 = BASE + 2 * PAGE;
pub(super) const SHADOWS: DoorbellBuffer =
    DoorbellBuffer { shadow: BASE + 3 * PAGE, event_idx: BASE + 4 * PAGE };
pub(super) const LISTS: u64 = BASE + 5 * PAGE;
pub(super) const FIRST_QUEUE_PAGE: u64 = 6;
/// Pages for data.
pub(super) const DATA_PAGES: u64 = 32;

/// Entries of the admin queues.
const ADMIN_ENTRIES: u32 = 8;

/// Turns of the device within which whatever was asked must have happened.
const PATIENCE: u32 = 20_000;

/// A machine with a Doorbell device in it.
#[derive(Debug)]
pub struct Host<'a, B, M, const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize> {
    device: &'a mut Device<QUEUES, COMMANDS, ERRORS>,
    registers: &'a Registers,
    pub(super) endpoint: ModelEndpoint<'a>,
    pub(super) media: Gate<M>,
    pub(super) bench: B,
    pub(super) admin: Pair,
    pub(super) io: [Pair; QUEUES],
    pub(super) shadow: bool,
    device_sleeps: bool,
    next_cid: u16,
    /// What each block holds: the number of its last write, 0 for zeroes.
    pub(super) generations: [u8; BLOCKS],
    pub(super) last_generation: u8,
    pub(super) report: Report,
}

impl<'a, B: Bench, M: Media, const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize>
    Host<'a, B, M, QUEUES, COMMANDS, ERRORS>
{
    /// A machine whose device has been started on `media`. The blocks hold zeroes.
    #[must_use]
    pub fn new(
        device: &'a mut Device<QUEUES, COMMANDS, ERRORS>,
        registers: &'a Registers,
        endpoint: ModelEndpoint<'a>,
        media: Gate<M>,
        bench: B,
    ) -> Self {
        Self {
            device,
            registers,
            endpoint,
            media,
            bench,
            admin: Pair::default(),
            io: [Pair::default(); QUEUES],
            shadow: false,
            device_sleeps: false,
            next_cid: 0,
            generations: [0; BLOCKS],
            last_generation: 0,
            report: Report::default(),
        }
    }

    /// The whole story, once.
    ///
    /// # Errors
    /// The first thing that isn't as it should be.
    pub fn run(&mut self) -> Result<Report, Failure> {
        self.bring_up(false)?;
        self.identify()?;
        self.features()?;
        self.exercise_io()?;
        self.aborts()?;
        self.logs()?;
        self.reset_with_commands_in_flight()?;
        self.bring_up(true)?;
        self.exercise_io()?;
        self.function_level_reset()?;
        self.bring_up(true)?;
        self.queues_come_and_go()?;
        self.verify_everything()?;
        self.shut_down()?;
        self.report.interrupts = self.endpoint.interrupts.iter().sum();
        Ok(self.report)
    }

    /// The measuring instrument.
    pub const fn bench(&mut self) -> &mut B {
        &mut self.bench
    }

    pub(super) const fn ram(&self) -> GuestRam<'a> {
        self.endpoint.ram()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    /// One turn of the device, unless it sleeps. It may go to sleep where it had nothing to do.
    pub(super) fn turn(&mut self) {
        if self.device_sleeps && self.endpoint.is_silent() {
            return;
        }
        self.device_sleeps = false;
        let Self { device, registers, endpoint, media, bench, .. } = self;
        let busy = bench.turn(|| device.poll(registers, endpoint, media));
        if !busy && self.endpoint.is_silent() && self.device.arm(self.registers, &mut self.endpoint) {
            self.device_sleeps = true;
            self.report.sleeps += 1;
        }
    }

    /// Turns until `done` has something.
    pub(super) fn until<T>(
        &mut self,
        what: &'static str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Failure> {
        for _ in 0..PATIENCE {
            if let Some(found) = done(self) {
                return Ok(found);
            }
            self.turn();
        }
        Err(Failure { what, found: u64::from(PATIENCE), wanted: 0 })
    }

    fn send(&mut self, event: EndpointEvent) -> Result<(), Failure> {
        self.until("room on the bus", |host| host.endpoint.send(event).then_some(()))
    }

    pub(super) fn send_reset(&mut self, kind: doorbell_core::controller::ResetKind) -> Result<(), Failure> {
        self.send(EndpointEvent::Reset(kind))
    }

    pub(super) fn write_register(&mut self, offset: u32, value: u64, len_bytes: u8) -> Result<(), Failure> {
        self.send(EndpointEvent::Write { offset, len_bytes, value })
    }

    pub(super) fn read_register(&mut self, offset: u32, len_bytes: u8) -> Result<u64, Failure> {
        self.send(EndpointEvent::Read { offset, len_bytes, tag: 0 })?;
        self.until("a register's value", |host| host.endpoint.take_answer()).map(u64::from_le_bytes)
    }

    /// Moves a doorbell as Linux does: by shadow, and by register where EventIdx asks for it.
    fn ring(&mut self, index: u32, value: u32) -> Result<(), Failure> {
        let offset = u64::from(index) * 4;
        if self.shadow {
            let ram = self.ram();
            let old = ram.load_u32(SHADOWS.shadow + offset).unwrap_or(0);
            let _ = ram.store_u32(SHADOWS.shadow + offset, value);
            let event_idx = ram.load_u32(SHADOWS.event_idx + offset).unwrap_or(0);
            // Linux: nvme_dbbuf_need_event, in 16 bits.
            let (event_idx, new, old) = (event_idx as u16, value as u16, old as u16);
            let asked = new.wrapping_sub(event_idx).wrapping_sub(1) < new.wrapping_sub(old);
            if !asked {
                self.report.shadow_moves += 1;
                return Ok(());
            }
        }
        self.report.doorbell_writes += 1;
        self.write_register(DOORBELLS + index * 4, u64::from(value), 4)
    }

    pub(super) fn ring_admin(&mut self) -> Result<(), Failure> {
        self.ring(tail_index(0), self.admin.tail)
    }

    pub(super) fn make_admin_queue(&mut self) {
        self.admin = Pair::new(self.ram(), 0, ADMIN_SQ, ADMIN_CQ, ADMIN_ENTRIES);
    }

    pub(super) const fn next_cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Puts an admin command into its queue and rings; its identifier.
    pub(super) fn submit_admin(&mut self, mut entry: SubmissionQueueEntry) -> Result<u16, Failure> {
        let cid = self.next_cid();
        entry.cid = cid.into();
        self.report.admin_commands += 1;
        let ram = self.ram();
        self.admin.put(ram, &entry);
        self.ring_admin()?;
        Ok(cid)
    }

    pub(super) fn take_admin(&mut self) -> Result<Completion, Failure> {
        let completion = self.until("an admin completion", |host| {
            let ram = host.ram();
            host.admin.take(ram)
        })?;
        self.ring(head_index(0), self.admin.head)?;
        Ok(completion)
    }

    /// Submits an admin command and waits for it.
    pub(super) fn admin(&mut self, entry: SubmissionQueueEntry) -> Result<Completion, Failure> {
        let cid = self.submit_admin(entry)?;
        let completion = self.take_admin()?;
        same("the admin completion's CID", completion.cid, cid)?;
        Ok(completion)
    }

    /// Puts a command into I/O queue `index`; nothing is rung. Its identifier.
    pub(super) fn put_io(&mut self, index: usize, mut entry: SubmissionQueueEntry) -> u16 {
        let cid = self.next_cid();
        entry.cid = cid.into();
        self.report.io_commands += 1;
        let ram = self.ram();
        if let Some(pair) = self.io.get_mut(index) {
            pair.put(ram, &entry);
        }
        cid
    }

    pub(super) fn ring_io(&mut self, index: usize) -> Result<(), Failure> {
        let pair = self.pair(index);
        self.ring(tail_index(pair.qid), pair.tail)
    }

    pub(super) fn ring_head(&mut self, index: usize) -> Result<(), Failure> {
        let pair = self.pair(index);
        self.ring(head_index(pair.qid), pair.head)
    }

    pub(super) fn pair(&self, index: usize) -> Pair {
        self.io.get(index).copied().unwrap_or_default()
    }

    /// The next completion of I/O queue `index`.
    pub(super) fn take_io(&mut self, index: usize) -> Result<Completion, Failure> {
        let completion = self.until("an I/O completion", |host| {
            let ram = host.ram();
            host.io.get_mut(index)?.take(ram)
        })?;
        self.ring_head(index)?;
        same("the completion's SQID", completion.sqid, self.pair(index).qid)?;
        Ok(completion)
    }

    /// Submits one I/O command and waits for it.
    pub(super) fn io(&mut self, index: usize, entry: SubmissionQueueEntry) -> Result<Completion, Failure> {
        let cid = self.put_io(index, entry);
        self.ring_io(index)?;
        let completion = self.take_io(index)?;
        same("the I/O completion's CID", completion.cid, cid)?;
        Ok(completion)
    }

    /// The guest addresses of I/O queue `index`.
    pub(super) fn make_io_queue(&mut self, index: usize) -> Pair {
        let sq = BASE + (FIRST_QUEUE_PAGE + 2 * index as u64) * PAGE;
        let qid = u16::try_from(index + 1).unwrap_or(u16::MAX);
        let pair = Pair::new(self.ram(), qid, sq, sq + PAGE, super::queue::ENTRIES);
        if let Some(place) = self.io.get_mut(index) {
            *place = pair;
        }
        pair
    }

    /// The first page for data.
    pub(super) const fn data(&self) -> u64 {
        BASE + (FIRST_QUEUE_PAGE + 2 * QUEUES as u64) * PAGE
    }
}

/// Fails unless the two are the same.
pub(super) fn same(what: &'static str, found: impl Into<u64>, wanted: impl Into<u64>) -> Result<(), Failure> {
    let (found, wanted) = (found.into(), wanted.into());
    if found == wanted { Ok(()) } else { Err(Failure { what, found, wanted }) }
}
