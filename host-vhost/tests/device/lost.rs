//! Clients that are lost: at every message boundary, with commands in flight, without reading.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::{DriverCommand, DriverDoorbell, QueueLayout, QueuePair, Register};
use doorbell_vhost::interrupt::{MSIX, new_eventfd};
use doorbell_vhost::storage::fault::{Fault, FaultRule};
use doorbell_vhost::vfio_user::protocol::{CONFIG_REGION, IrqSet};

use crate::child::in_child;
use crate::rig::{IOVA, LONG, READ, Rig, await_that, descriptors, prp, shadow, threads, transfer, verify};

/// A conversation message by message, with what it needs.
struct Conversation {
    client: Client,
    memory: Arc<ClientMemory>,
    other: Arc<ClientMemory>,
    admin: QueuePair,
    io: QueuePair,
}

fn pair(client: &Client, memory: &Arc<ClientMemory>, qid: u64, place: u64) -> QueuePair {
    let doorbell = |index: u64| DriverDoorbell {
        offset: 0x1000 + 4 * index,
        register: Register::Message(client.connection().clone()),
        shadow: None,
        value: 0,
        register_writes: 0,
    };
    let layout = QueueLayout { depth: 32, sq: place, cq: place + 4096, lists: place + 8192 };
    QueuePair::new(Arc::clone(memory), layout, 16, doorbell(2 * qid), doorbell(2 * qid + 1), None)
}

impl Conversation {
    fn start(socket: &std::path::Path) -> Self {
        let memory = ClientMemory::new(IOVA, 1 << 20, false).unwrap();
        let other = ClientMemory::new(0x10_0000, 1 << 20, false).unwrap();
        let client = Client::connect(socket).unwrap();
        let (admin, io) = (pair(&client, &memory, 0, 0), pair(&client, &memory, 1, 128 << 10));
        Self { client, memory, other, admin, io }
    }

    fn admin(&mut self, opcode: u8, cdw10: u32, cdw11: u32, prp1: u64, len_bytes: u32) {
        let data = prp(prp1, len_bytes);
        let command = DriverCommand { opcode, nsid: 0, cdw: [cdw10, cdw11, 0, 0, 0, 0], data };
        self.admin.submit(&command).unwrap();
        self.admin.ring().unwrap();
        // No message for the completion queue's head, which isn't needed so soon.
        let done = self.memory.qwords(4096, 32);
        let at = self.admin.doorbells_mut()[0].value as usize - 1;
        let deadline = Instant::now() + LONG;
        while done[2 * at + 1].load(Ordering::Acquire) >> 48 & 1 == 0 {
            // The server may ask what memory holds.
            self.client.serve().unwrap();
            assert!(Instant::now() < deadline, "no admin completion");
        }
        std::thread::sleep(Duration::from_millis(1));
        self.client.serve().unwrap();
    }

    fn write32(&mut self, offset: u64, value: u32) {
        self.client.region_write(0, offset, &value.to_le_bytes()).unwrap();
    }

    /// The step of that number; false after the last.
    fn step(&mut self, number: usize) -> bool {
        let io = 128 << 10;
        match number {
            0 => self.client.map(&self.memory.clone(), false).unwrap(),
            1 => self.client.map(&self.other.clone(), false).unwrap(),
            2 => drop(self.client.region(0).unwrap()),
            3 => drop(self.client.irq_info(MSIX).unwrap()),
            4 => {
                let eventfd = new_eventfd().unwrap();
                let flags = IrqSet::DATA_EVENTFD | IrqSet::ACTION_TRIGGER;
                self.client.set_irqs(MSIX, flags, 1, 1, &[eventfd.as_fd()]).unwrap();
            }
            5 => self.client.region_write(CONFIG_REGION, 4, &[6, 0]).unwrap(),
            6 => self.write32(0x24, 31 << 16 | 31),
            7 => self.client.region_write(0, 0x28, &IOVA.to_le_bytes()).unwrap(),
            8 => self.client.region_write(0, 0x30, &(IOVA + 4096).to_le_bytes()).unwrap(),
            9 => self.write32(0x14, 4 << 20 | 6 << 16 | 1),
            10 => await_that("CSTS.RDY", || {
                let mut csts = [0; 4];
                self.client.region_read(0, 0x1c, &mut csts).unwrap();
                csts[0] & 1 == 1
            }),
            11 => self.admin(0x05, 31 << 16 | 1, 1 << 16 | 3, IOVA + io + 4096, 1),
            12 => self.admin(0x01, 31 << 16 | 1, 1 << 16 | 1, IOVA + io, 1),
            13 => self.admin(0x7c, 0, 0, IOVA + (512 << 10), 8192),
            14 => drop(self.client.io_eventfds(0).unwrap()),
            15 => {
                for at in 0..16 {
                    self.io.submit(&transfer(READ, at * 8, 0x10_0000 + at * 4096, 4096)).unwrap();
                }
                self.io.ring().unwrap();
            }
            16 => {
                self.io.poll(16, &mut |_| {}).unwrap();
            }
            17 => self.client.unmap(&self.other.clone()).unwrap(),
            18 => self.client.reset().unwrap(),
            _ => return false,
        }
        true
    }
}

#[test]
fn a_client_lost_at_any_message_leaves_nothing_behind() {
    if let Some(passed) = in_child("lost::a_client_lost_at_any_message_leaves_nothing_behind") {
        assert!(passed);
        return;
    }
    let mut rig = Rig::start(&["ram=16M"], |config| {
        shadow(config);
        config.pollers = 2;
    });
    let statistics = |rig: &Rig| {
        await_that("the client is gone", || !rig.stat().connected);
        // What the last client lent goes a moment later.
        std::thread::sleep(Duration::from_millis(20));
        (descriptors(), threads().len())
    };
    Conversation::start(&rig.socket);
    let before = statistics(&rig);
    let mut lives = 0;
    for _ in 0..16 {
        for last in 0.. {
            let mut conversation = Conversation::start(&rig.socket);
            if (0..last).any(|number| !conversation.step(number)) {
                break;
            }
            lives += 1;
        }
    }
    assert!(lives >= 300, "{lives}");
    assert_eq!(statistics(&rig), before);
    // And it serves as on the first day.
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Message, false).unwrap();
    verify(&mut nvme, &mut queue, buffer, &[5, 6000], 4096);
    rig.server = None;
}

#[test]
fn a_client_lost_in_the_middle_of_a_message_is_lost() {
    let rig = Rig::start(&["ram=16M"], |_| {});
    for cut in 0..40 {
        let mut stream = UnixStream::connect(&rig.socket).unwrap();
        let mut bytes = [0; 40];
        bytes[2] = 1;
        bytes[4] = 100;
        stream.write_all(&bytes[..cut]).unwrap();
    }
    let mut nvme = rig.driver();
    assert!(nvme.is_ready().unwrap());
}

#[test]
fn memory_of_a_lost_client_is_not_touched_by_a_late_storage() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    for _ in 0..5 {
        let mut nvme = rig.driver();
        let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
        let buffer = nvme.allocate(128 << 10).unwrap();
        let memory = Arc::clone(nvme.memory());
        memory.write(buffer, &[0x55; 65536]);
        faults.set(vec![FaultRule::all(Fault::Hold { cancellable: true })]);
        for at in 0..16 {
            queue.submit(&transfer(READ, at * 8, IOVA + buffer + at * 4096, 4096)).unwrap();
        }
        queue.ring().unwrap();
        assert!(faults.wait_for(16, LONG));
        drop((queue, nvme));
        await_that("the commands are given up", || faults.waiting() == 0);
        faults.clear();
        faults.release();
        let mut nvme = rig.driver();
        let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
        let other = nvme.allocate(4096).unwrap();
        verify(&mut nvme, &mut queue, other, &[1], 4096);
        let mut found = vec![0; 65536];
        memory.read(buffer, &mut found);
        assert!(found.iter().all(|byte| *byte == 0x55));
    }
}

/// The backlog of replies is bounded, and the next client is served.
#[test]
fn a_client_that_never_reads_is_given_up() {
    let rig = Rig::start(&["ram=16M"], |_| {});
    let client = Client::connect(&rig.socket).unwrap();
    let connection = client.connection().clone();
    // REGION_READ of the configuration space, 4,096 bytes a reply.
    let mut message = Vec::new();
    message.extend_from_slice(&[0, 0, 9, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&0u64.to_le_bytes());
    message.extend_from_slice(&CONFIG_REGION.to_le_bytes());
    message.extend_from_slice(&4096u32.to_le_bytes());
    for _ in 0..2000 {
        if connection.send(&message, &[]).is_err() {
            break;
        }
    }
    assert!(rig.stat().connected, "a client that owes nothing but reading is only not asked for more");
    drop((client, connection));
    let mut nvme = rig.driver();
    assert!(nvme.is_ready().unwrap());
}

/// A server out of descriptors neither spins nor ends, and takes clients again afterwards.
#[test]
fn a_server_out_of_descriptors_waits() {
    if let Some(passed) = in_child("lost::a_server_out_of_descriptors_waits") {
        assert!(passed);
        return;
    }
    let rig = Rig::start(&["ram=16M"], |_| {});
    // A thread takes its name itself.
    await_that("it runs", || threads().iter().any(|(_, name)| name == "control"));
    let (control, _) = threads().into_iter().find(|(_, name)| name == "control").unwrap();
    let clock = std::fs::File::open(format!("/proc/self/task/{control}/schedstat")).unwrap();
    let ran = || {
        let mut text = [0; 128];
        let len = std::os::unix::fs::FileExt::read_at(&clock, &mut text, 0).unwrap();
        String::from_utf8_lossy(&text[..len]).split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let limit = descriptors() as u64 + 8;
    let limits = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limits).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = clock.try_clone() {
        taken.push(file);
    }
    // One for the client's socket, none for the server's.
    taken.pop();
    let waiting = UnixStream::connect(&rig.socket).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = ran();
    std::thread::sleep(Duration::from_millis(500));
    let spent = Duration::from_nanos(ran() - before);
    assert!(spent < Duration::from_millis(50), "the control thread spins: {spent:?}");
    taken.clear();
    drop(waiting);
    let mut nvme = rig.driver();
    assert!(nvme.is_ready().unwrap());
}
