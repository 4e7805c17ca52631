//! Our driver against the core's controller, on one thread behind a real socket.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_core::command::{Operation, Transfer};
use doorbell_core::controller::{Controller, ControllerConfig, NamespaceConfig, ResetKind};
use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::GroupMessage;
use doorbell_core::pci::{ConfigSpace, PciConfig};
use doorbell_core::spec::status::Status;
use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::{DoorbellMode, DriverError, Nvme};
use doorbell_vhost::client::queue::{DataPointer, DriverCommand, QueuePair, ShadowRule};
use doorbell_vhost::doorbell_page::{DOORBELL_BYTES, DOORBELL_OFFSET, DoorbellPage};
use doorbell_vhost::interrupt::{InterruptView, Interrupts, drain_eventfd, new_eventfd};
use doorbell_vhost::memory::{MemoryView, SharedMap};
use doorbell_vhost::vfio_user::device::{
    Device, InterruptDescription, IoEventFdDescription, MemoryRange, Progress, RegionDescription,
    RegionMapping, Ticket,
};
use doorbell_vhost::vfio_user::request::SetIrqs;
use doorbell_vhost::vfio_user::server::Session;
use rustix::io::Errno;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 32 * 1024;
/// As SPDK's: the client's own addresses.
const IOVA: u64 = 1 << 45;

struct Host {
    controller: Box<Controller<1, 8, 1>>,
    group: Box<QueueGroup<8, 256, 1>>,
    pci: ConfigSpace,
    page: DoorbellPage,
    mapped: bool,
    interrupts: Arc<Interrupts>,
    interrupt_view: InterruptView,
    view: MemoryView,
    io_eventfds: Vec<OwnedFd>,
    /// `None`: commands move nothing.
    medium: Option<Vec<u8>>,
    commands: u64,
    /// Unmaps and resets that are answered when the controller has quiesced.
    tickets: Vec<Ticket>,
}

impl Host {
    fn new(memory: &Arc<SharedMap>, mapped: bool, medium: bool) -> Self {
        let config = ControllerConfig {
            groups: 1,
            io_queues: 8,
            max_queue_entries: 1024,
            ..ControllerConfig::DEFAULT
        };
        let mut controller = Box::new(Controller::new(config));
        let namespace = NamespaceConfig {
            size_blocks: BLOCKS,
            block_bytes: BLOCK as u32,
            read_only: false,
            deallocated_reads_zero: true,
            uuid: [1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        };
        controller.add_namespace(Some(1), namespace).unwrap();
        let interrupts = Interrupts::new(9);
        Self {
            controller,
            group: Box::new(QueueGroup::new(GroupConfig {
                posted_registers: !mapped,
                ..GroupConfig::DEFAULT
            })),
            pci: ConfigSpace::new(PciConfig { vectors: 9, ..PciConfig::DEFAULT }),
            page: DoorbellPage::new().unwrap(),
            mapped,
            interrupt_view: InterruptView::new(Arc::clone(&interrupts)),
            interrupts,
            view: MemoryView::new(Arc::clone(memory)),
            io_eventfds: (0..if mapped { 0 } else { 16 }).map(|_| new_eventfd().unwrap()).collect(),
            medium: medium.then(|| vec![0; (BLOCK * BLOCKS) as usize]),
            commands: 0,
            tickets: Vec::new(),
        }
    }

    /// What the controller and its group have to do, then a batch of commands.
    fn turn(&mut self) {
        self.view.update();
        self.view.release_retired();
        let registers = self.page.registers();
        let _ = self.controller.poll(&self.view, registers, 0);
        while let Some((_, request)) = self.controller.poll_group_request() {
            self.group.handle_request(&self.view, registers, request);
        }
        while let Some(message) = self.group.poll_message() {
            if let GroupMessage::Event(event) = &message {
                panic!("{event:?}");
            }
            self.controller.handle_group_message(0, message);
        }
        while self.controller.poll_namespace_change().is_some() {}
        while let Some(vector) = self.controller.poll_interrupt() {
            self.interrupt_view.raise(vector);
        }
        for eventfd in &self.io_eventfds {
            let _ = drain_eventfd(eventfd.as_fd());
        }
        self.batch();
        self.batch();
        self.batch();
    }

    fn batch(&mut self) {
        for _ in 0..64 {
            let Some(command) = self.group.poll_command(&self.view, self.page.registers()) else { break };
            self.commands += 1;
            let done = match (command.operation, &mut self.medium) {
                (Operation::Read(transfer), Some(medium)) => read(&self.view, transfer, medium),
                (Operation::Write { transfer, .. }, Some(medium)) => write(&self.view, transfer, medium),
                _ => Ok(()),
            };
            let _ = self.group.complete(&self.view, command.tag, done.err().unwrap_or(Status::SUCCESS));
        }
        while let Some(vector) = self.group.poll_interrupt(0) {
            self.interrupt_view.raise(vector);
        }
    }
}

fn read(view: &MemoryView, mut transfer: Transfer, medium: &[u8]) -> Result<(), Status> {
    let mut at = transfer.offset_bytes as usize;
    while let Some(segment) = transfer.segments.next_segment(view) {
        let segment = segment?;
        let len = segment.len_bytes as usize;
        view.write(segment.address, &medium[at..at + len])?;
        at += len;
    }
    Ok(())
}

fn write(view: &MemoryView, mut transfer: Transfer, medium: &mut [u8]) -> Result<(), Status> {
    let mut at = transfer.offset_bytes as usize;
    while let Some(segment) = transfer.segments.next_segment(view) {
        let segment = segment?;
        let len = segment.len_bytes as usize;
        view.read(segment.address, &mut medium[at..at + len])?;
        at += len;
    }
    Ok(())
}

impl Device for Host {
    fn region(&self, index: u32) -> RegionDescription<'_> {
        match index {
            0 => RegionDescription {
                size: self.pci.config().bar0_bytes,
                readable: true,
                writable: true,
                mapping: self.mapped.then(|| RegionMapping {
                    file: self.page.as_fd(),
                    file_offset: 0,
                    areas: self.page.areas(),
                }),
            },
            7 => RegionDescription { size: 4096, readable: true, writable: true, mapping: None },
            _ => RegionDescription::default(),
        }
    }

    fn interrupts(&self, index: u32) -> InterruptDescription {
        self.interrupts.describe(index)
    }

    fn io_eventfds(&self, region: u32) -> Vec<IoEventFdDescription<'_>> {
        let offsets = (DOORBELL_OFFSET + 8..).step_by(4);
        let all = self.io_eventfds.iter().zip(offsets).map(|(eventfd, offset)| IoEventFdDescription {
            offset,
            size: 4,
            eventfd: eventfd.as_fd(),
        });
        if region == 0 { all.collect() } else { Vec::new() }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        match region {
            0 => self.controller.read_register(offset as u32, data),
            _ => self.pci.read(offset as u32, data),
        }
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        if region == 7 {
            let _ = self.pci.write(offset as u32, data);
        } else if (DOORBELL_OFFSET..DOORBELL_OFFSET + DOORBELL_BYTES).contains(&offset) {
            self.controller.handle_doorbell_write(self.page.registers(), offset as u32, data);
        } else {
            self.controller.write_register(offset as u32, data);
        }
    }

    fn set_irqs(&mut self, request: &SetIrqs<'_>, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        self.interrupts.set(request, fds)
    }

    fn memory_removed(&mut self, ranges: &[MemoryRange], ticket: Ticket) -> Progress {
        for range in ranges {
            self.controller.handle_unmap(range.iova, range.size);
        }
        self.tickets.push(ticket);
        Progress::Later
    }

    fn reset(&mut self, ticket: Ticket) -> Progress {
        self.controller.reset(ResetKind::Flr);
        self.tickets.push(ticket);
        Progress::Later
    }
}

/// A driver, and the thread of the controller, which returns how many commands it carried out.
fn start(mapped: bool, medium: bool) -> (Nvme, JoinHandle<u64>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let memory = SharedMap::new();
        let mut host = Host::new(&memory, mapped, medium);
        let mut session = Session::new(ours, memory).unwrap();
        let mut turns = 0u32;
        loop {
            // The socket is looked at now and then, as nothing of speed comes by it unless the page isn't mapped.
            if (turns.is_multiple_of(64) || !mapped) && session.step(&mut host).is_err() {
                return host.commands;
            }
            turns = turns.wrapping_add(1);
            host.turn();
            if !host.tickets.is_empty() && host.controller.quiesced() {
                for ticket in std::mem::take(&mut host.tickets) {
                    // The next step says so if the client is gone.
                    let _ = session.finish(ticket);
                }
            }
        }
    });
    let memory = ClientMemory::new(IOVA, 64 << 20, false).unwrap();
    (Nvme::new(Client::new(theirs).unwrap(), memory).unwrap(), server)
}

const MODES: [(DoorbellMode, bool); 7] = [
    (DoorbellMode::Message, true),
    (DoorbellMode::Posted, false),
    (DoorbellMode::Mapped, true),
    (DoorbellMode::Shadow(ShadowRule::Linux), true),
    (DoorbellMode::Shadow(ShadowRule::Spdk), false),
    (DoorbellMode::ShadowEventFd(ShadowRule::Linux), false),
    (DoorbellMode::ShadowEventFd(ShadowRule::Spdk), false),
];

fn finish(queue: &mut QueuePair, wanted: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while queue.completed() < wanted {
        queue.poll(64, &mut |entry| assert!(entry.status.is_success(), "{entry:?}")).unwrap();
        assert!(Instant::now() < deadline, "{} of {wanted}", queue.completed());
        std::thread::yield_now();
    }
}

fn command(opcode: u8, slba: u64, len_bytes: u32, iova: u64, sgl: bool) -> DriverCommand {
    let data = if sgl { DataPointer::Sgl { iova, len_bytes } } else { DataPointer::Prp { iova, len_bytes } };
    DriverCommand::transfer(opcode, 1, slba, len_bytes / BLOCK as u32, data)
}

#[test]
fn data_survives_in_every_doorbell_mode_by_prp_and_by_sgl() {
    for (mode, mapped) in MODES {
        let (mut nvme, server) = start(mapped, true);
        assert_eq!(nvme.has_doorbell_map(), mapped);
        let identity = nvme.identify().unwrap();
        assert_eq!((identity.blocks, identity.block_bytes, identity.sgl), (BLOCKS, 512, true));
        assert_eq!(identity.model, "Doorbell NVMe Controller");
        if matches!(mode, DoorbellMode::Shadow(_) | DoorbellMode::ShadowEventFd(_)) {
            nvme.enable_shadow().unwrap();
        }
        let mut queues: Vec<_> =
            (0..2).map(|_| nvme.create_queue_pair(16, 8, mode, false).unwrap()).collect();
        let from = nvme.allocate(4 << 20).unwrap();
        let to = nvme.allocate(4 << 20).unwrap();
        let memory = Arc::clone(nvme.memory());
        let mut wanted = [0; 2];
        for (round, len) in [512u32, 4096, 8192, 12288, 131_072, 1 << 20].into_iter().enumerate() {
            for sgl in [false, true] {
                // Not page aligned, as PRP1 may be.
                let at = if len < 1 << 20 { 512 * round as u64 } else { 0 };
                let pattern: Vec<u8> =
                    (0..len).map(|index| (index * 7 + len + u32::from(sgl)) as u8).collect();
                memory.write(from + at, &pattern);
                for (index, queue) in queues.iter_mut().enumerate() {
                    let slba = 8192 * index as u64 + round as u64;
                    let out = IOVA + from + at;
                    assert!(queue.submit(&command(1, slba, len, out, sgl)).is_some());
                    queue.ring().unwrap();
                    wanted[index] += 1;
                    finish(queue, wanted[index]);
                    assert!(queue.submit(&command(2, slba, len, IOVA + to, !sgl)).is_some());
                    queue.ring().unwrap();
                    wanted[index] += 1;
                    finish(queue, wanted[index]);
                    let mut back = vec![0; len as usize];
                    memory.read(to, &mut back);
                    assert!(back == pattern, "{mode:?} {len} {sgl}");
                    memory.zero(to, len.into());
                }
            }
        }
        drop((queues, nvme));
        assert_eq!(server.join().unwrap(), wanted.iter().sum::<u64>());
    }
}

#[test]
fn deep_queues_wrap_in_every_doorbell_mode() {
    for (mode, mapped) in MODES {
        let (mut nvme, server) = start(mapped, false);
        if matches!(mode, DoorbellMode::Shadow(_) | DoorbellMode::ShadowEventFd(_)) {
            nvme.enable_shadow().unwrap();
        }
        let buffer = nvme.allocate(4096).unwrap();
        for (depth, slots, count) in [(2, 1, 20), (3, 8, 80), (64, 63, 1000), (1024, 200, 2900)] {
            let mut queue = nvme.create_queue_pair(depth, slots, mode, false).unwrap();
            run(&mut queue, IOVA + buffer, count, slots as usize);
            assert!(queue.in_flight() == 0 && queue.completed() == count);
        }
        drop(nvme);
        assert_eq!(server.join().unwrap(), 4000, "{mode:?}");
    }
}

/// Linux's order: queues first, Doorbell Buffer Config later.
#[test]
fn shadow_doorbells_take_over_a_queue_in_use() {
    for mapped in [true, false] {
        let (mut nvme, server) = start(mapped, false);
        let mode = if mapped { DoorbellMode::Mapped } else { DoorbellMode::Posted };
        let buffer = nvme.allocate(4096).unwrap();
        let mut queue = nvme.create_queue_pair(32, 20, mode, false).unwrap();
        run(&mut queue, IOVA + buffer, 105, 20);
        nvme.enable_shadow().unwrap();
        nvme.attach_shadow(&mut queue, ShadowRule::Linux).unwrap();
        let before = queue.register_writes();
        run(&mut queue, IOVA + buffer, 2000, 20);
        let writes = queue.register_writes() - before;
        assert!(writes < 100, "{writes} register writes although the controller polls");
        drop((queue, nvme));
        server.join().unwrap();
    }
}

fn run(queue: &mut QueuePair, iova: u64, count: u64, batch: usize) -> Duration {
    let read = command(2, 8, 4096, iova, false);
    let start = Instant::now();
    let mut turns = 0;
    let mut submitted = queue.completed();
    while queue.completed() < count {
        for _ in 0..batch {
            if submitted == count || queue.submit(&read).is_none() {
                break;
            }
            submitted += 1;
        }
        queue.ring().unwrap();
        let found = queue.poll(batch, &mut |entry| assert!(entry.status.is_success(), "{entry:?}")).unwrap();
        if found == 0 {
            // A processor that the controller may need, on a machine with few.
            idle(&mut turns);
            assert!(start.elapsed() < Duration::from_secs(60), "{} of {count}", queue.completed());
        }
    }
    start.elapsed()
}

fn idle(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(1000) {
        std::thread::yield_now();
    }
    std::hint::spin_loop();
}

#[test]
fn interrupts_wake_a_sleeping_driver() {
    let (mut nvme, server) = start(true, false);
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 8, DoorbellMode::Mapped, true).unwrap();
    for done in 1..=100 {
        queue.submit(&command(2, 0, 512, IOVA + buffer, false)).unwrap();
        queue.ring().unwrap();
        assert!(queue.wait(Duration::from_secs(60)).unwrap(), "{done}");
        finish(&mut queue, done);
    }
    drop((queue, nvme));
    server.join().unwrap();
}

#[test]
fn queue_pairs_come_and_go_and_a_reset_forgets_them() {
    let (mut nvme, server) = start(true, false);
    for _ in 0..50 {
        let queue = nvme.create_queue_pair(4, 3, DoorbellMode::Mapped, false).unwrap();
        drop(queue);
        nvme.delete_queue_pair(1).unwrap();
    }
    assert!(nvme.is_ready().unwrap());
    let error = nvme.create_queue_pair(4, 3, DoorbellMode::Shadow(ShadowRule::Linux), false).unwrap_err();
    assert!(matches!(error, DriverError::Missing(_)), "{error}");
    nvme.client().reset().unwrap();
    assert!(!nvme.is_ready().unwrap(), "DEVICE_RESET is answered when it is over");
    let memory = Arc::clone(nvme.memory());
    nvme.client().unmap(&memory).unwrap();
    drop(nvme);
    server.join().unwrap();
}

/// What the load generator can do; run by hand, in release:
/// `cargo test --release --test vfio_user -- --ignored --nocapture null_controller`.
#[test]
#[ignore = "a measurement"]
fn null_controller_speed() {
    for (mode, mapped) in [
        (DoorbellMode::Mapped, true),
        (DoorbellMode::Shadow(ShadowRule::Linux), true),
        (DoorbellMode::Message, true),
        (DoorbellMode::Posted, false),
        (DoorbellMode::ShadowEventFd(ShadowRule::Linux), false),
    ] {
        let (mut nvme, server) = start(mapped, false);
        if matches!(mode, DoorbellMode::Shadow(_) | DoorbellMode::ShadowEventFd(_)) {
            nvme.enable_shadow().unwrap();
        }
        let buffer = nvme.allocate(4096).unwrap();
        for depth in [1u16, 4, 16, 64, 128] {
            let mut queue = nvme.create_queue_pair(256, depth, mode, false).unwrap();
            // The best of many short looks: the machine may have other things to do.
            let start = Instant::now();
            let mut best = Duration::MAX;
            while start.elapsed() < Duration::from_secs(2) {
                let end = queue.completed() + 2000;
                best = best.min(run(&mut queue, IOVA + buffer, end, depth.into()));
            }
            let rate = 2000.0 / best.as_secs_f64() / 1e6;
            let (done, writes) = (queue.completed(), queue.register_writes());
            eprintln!("{mode:?} depth {depth}: {rate:.2} M/s, {writes} register writes in {done} commands");
        }
        drop(nvme);
        server.join().unwrap();
    }
}
