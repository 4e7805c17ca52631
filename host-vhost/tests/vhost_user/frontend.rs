//! A frontend: a connection, guest memory, and rings with their eventfds.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use doorbell_vhost::endpoint::Endpoint;
use doorbell_vhost::vhost_user_blk::{BlkConfig, BlkServer, DataPath};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::memory::{GUEST, Memory, SIZE, USER};
use super::ring::{NEXT, Ring, WRITE};

pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

pub const F_EVENT_IDX: u64 = 1 << 29;
pub const F_INDIRECT: u64 = 1 << 28;
pub const F_FLUSH: u64 = 1 << 9;
pub const F_LOG_ALL: u64 = 1 << 26;
const F_VERSION_1: u64 = 1 << 32;
const F_PROTOCOL: u64 = 1 << 30;
/// MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE, CONFIGURE_MEM_SLOTS.
pub const PROTOCOL: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15;

/// Where rings are, one each 64 KiB.
pub const RINGS: u64 = 0;
/// Where headers and status bytes of requests are, 64 bytes a head.
pub const HEADERS: u64 = 0x10_0000;
/// Where data is, 64 KiB a head.
pub const DATA: u64 = 0x20_0000;

/// The data path that the tests are about: `DOORBELL_TEST_DATA_PATH`, `direct` where it isn't set.
fn data_path() -> DataPath {
    match std::env::var("DOORBELL_TEST_DATA_PATH").as_deref() {
        Err(_) | Ok("direct") => DataPath::Direct,
        Ok("queue-group") => DataPath::QueueGroup,
        Ok(other) => panic!("DOORBELL_TEST_DATA_PATH={other}: direct or queue-group"),
    }
}

/// A served disk in this process.
#[derive(Debug)]
pub struct Served {
    pub socket: PathBuf,
    _server: BlkServer,
    _directory: tempfile::TempDir,
}

impl Served {
    pub fn new(namespace: &str, queues: u16, pollers: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("blk");
        let server = BlkServer::start(BlkConfig {
            endpoint: Endpoint::Path(socket.clone()),
            namespace: namespace.parse().unwrap(),
            queues,
            pollers,
            cpus: Vec::new(),
            serial: Some("serial 7".into()),
            data_path: data_path(),
        });
        Self { socket, _server: server.unwrap(), _directory: directory }
    }

    /// A frontend with one queue of 64 entries that runs.
    pub fn frontend(&self) -> Frontend {
        let mut frontend = Frontend::connect(&self.socket);
        frontend.negotiate(0);
        frontend.add_ring(64);
        frontend.start(0, 0);
        frontend
    }
}

#[derive(Debug)]
pub struct Frontend {
    pub stream: UnixStream,
    pub memory: Memory,
    pub queues: Vec<Queue>,
    pub features: u64,
}

#[derive(Debug)]
pub struct Queue {
    pub ring: Ring,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
}

pub fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// How often an eventfd was written since the last look.
pub fn count(eventfd: &OwnedFd) -> u64 {
    let mut counter = [0; 8];
    match rustix::io::read(eventfd, &mut counter) {
        Ok(_) => u64::from_ne_bytes(counter),
        Err(_) => 0,
    }
}

impl Frontend {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, memory: Memory::new(), queues: Vec::new(), features: 0 }
    }

    /// Connects again with the same memory and rings, as after the backend has died.
    pub fn reconnect(&mut self, socket: &Path) {
        let start = std::time::Instant::now();
        self.stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(30), "no server: {error}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        self.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }

    /// Features, with those of `extra`, and the memory.
    pub fn negotiate(&mut self, extra: u64) {
        let offered = self.ask_u64(code::GET_FEATURES);
        self.features = F_VERSION_1 | F_PROTOCOL | F_FLUSH | extra;
        assert_eq!(self.features & !offered, 0, "{offered:#x}");
        assert_eq!(self.ask_u64(code::GET_PROTOCOL_FEATURES), PROTOCOL);
        self.send(code::SET_PROTOCOL_FEATURES, &PROTOCOL.to_le_bytes(), &[]);
        self.send(code::SET_OWNER, &[], &[]);
        self.command(code::SET_FEATURES, &self.features.to_le_bytes(), &[]);
        self.set_memory();
    }

    pub fn set_memory(&mut self) {
        let mut table = 1_u64.to_le_bytes().to_vec();
        table.extend([GUEST, SIZE, USER, 0].iter().flat_map(|value| value.to_le_bytes()));
        let file = self.memory.file.try_clone().unwrap();
        self.command(code::SET_MEM_TABLE, &table, &[file.as_fd()]);
    }

    pub fn add_ring(&mut self, size: u16) {
        let ring = Ring::new(RINGS + 0x1_0000 * self.queues.len() as u64, size);
        let (kick, call, err) = (new_eventfd(), new_eventfd(), new_eventfd());
        self.queues.push(Queue { ring, kick, call, err });
    }

    /// All messages that start a queue.
    pub fn start(&mut self, index: usize, base: u16) {
        self.set_up(index, base);
        self.command(code::SET_VRING_ENABLE, &state(index, 1), &[]);
    }

    /// The same without the last one.
    pub fn set_up(&mut self, index: usize, base: u16) {
        let ring = self.queues[index].ring.clone();
        self.command(code::SET_VRING_NUM, &state(index, ring.size.into()), &[]);
        self.command(code::SET_VRING_BASE, &state(index, base.into()), &[]);
        self.set_addresses(index, None);
        let Queue { kick, call, err, .. } = &self.queues[index];
        let fds = [kick, call, err].map(|fd| fd.try_clone().unwrap());
        let number = (index as u64).to_le_bytes();
        self.command(code::SET_VRING_ERR, &number, &[fds[2].as_fd()]);
        self.command(code::SET_VRING_CALL, &number, &[fds[1].as_fd()]);
        self.command(code::SET_VRING_KICK, &number, &[fds[0].as_fd()]);
    }

    /// SET_VRING_ADDR, with where writes to the used ring are logged.
    pub fn set_addresses(&mut self, index: usize, log: Option<u64>) {
        let ring = &self.queues[index].ring;
        let mut addresses = state(index, u32::from(log.is_some()));
        for offset in [ring.descriptors, ring.used, ring.available] {
            addresses.extend((USER + offset).to_le_bytes());
        }
        addresses.extend(log.unwrap_or(0).to_le_bytes());
        self.command(code::SET_VRING_ADDR, &addresses, &[]);
    }

    /// GET_VRING_BASE.
    pub fn stop(&mut self, index: usize) -> u16 {
        self.send(code::GET_VRING_BASE, &state(index, 0), &[]);
        let (answer, _) = self.receive(code::GET_VRING_BASE);
        assert_eq!(answer[..4], (index as u32).to_le_bytes());
        u16::try_from(u32::from_le_bytes(answer[4..8].try_into().unwrap())).unwrap()
    }

    pub fn config(&mut self, offset: u32, size: u32) -> Vec<u8> {
        let mut payload = [offset, size, 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        payload.resize(12 + size as usize, 0);
        self.send(code::GET_CONFIG, &payload, &[]);
        self.receive(code::GET_CONFIG).0[12..].to_vec()
    }

    /// Sends a message.
    pub fn send(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send_raw(code, 1, payload.len() as u32, payload, fds);
    }

    pub fn send_raw(&mut self, code: u32, flags: u32, size: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut bytes: Vec<u8> = [code, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // A server that has closed already is judged by what comes back.
        let _ = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// Sends a message with NEED_REPLY; true for success.
    pub fn try_command(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.send_raw(code, 1 | 1 << 3, payload.len() as u32, payload, fds);
        self.receive(code).0 == 0_u64.to_le_bytes()
    }

    pub fn command(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(self.try_command(code, payload, fds), "message {code} was refused");
    }

    pub fn ask_u64(&mut self, code: u32) -> u64 {
        self.send(code, &[], &[]);
        u64::from_le_bytes(self.receive(code).0.try_into().unwrap())
    }

    /// A reply and what came with it.
    pub fn receive(&mut self, code: u32) -> (Vec<u8>, Option<File>) {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut header)];
        let got = recvmsg(&self.stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert_eq!(got.bytes, 12, "the server closed the connection");
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next().map(File::from),
            _ => None,
        });
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4) & 7), (code, 5), "a reply to that message");
        let mut payload = vec![0; word(8) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        (payload, file)
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    pub fn kick(&self, index: usize) {
        rustix::io::write(&self.queues[index].kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Writes a request of three descriptors, header, data, status, that begins at descriptor `3 * place`.
    pub fn prepare(&self, index: usize, place: u16, kind: u32, sector: u64, len: u32) -> u16 {
        let (ring, memory) = (&self.queues[index].ring, &self.memory);
        let head = 3 * place;
        let header = header_place(index, place);
        memory.write(header, &header_bytes(kind, sector));
        memory.write(header + 32, &[0xEE]);
        let writes = if matches!(kind, 0 | 8) { WRITE } else { 0 };
        ring.describe(memory, head, header, 16, NEXT, head + 1);
        ring.describe(memory, head + 1, data_place(index, place), len, NEXT | writes, head + 2);
        ring.describe(memory, head + 2, header + 32, 1, WRITE, 0);
        head
    }

    pub fn status(&self, index: usize, place: u16) -> u8 {
        self.memory.read(header_place(index, place) + 32, 1)[0]
    }

    /// One request of that kind from start to end: its status and `used.len`.
    pub fn request(&mut self, kind: u32, sector: u64, len: u32) -> (u8, u32) {
        let head = self.prepare(0, 0, kind, sector, len);
        self.run(head)
    }

    /// Offers a chain that is there and waits for it.
    pub fn run(&mut self, head: u16) -> (u8, u32) {
        self.queues[0].ring.offer(&self.memory, head);
        self.kick(0);
        let (id, len) = self.queues[0].ring.used(&self.memory);
        assert_eq!(id, u32::from(head));
        (self.status(0, 0), len)
    }

    pub fn write_blocks(&mut self, sector: u64, data: &[u8]) -> (u8, u32) {
        self.memory.write(data_place(0, 0), data);
        self.request(1, sector, data.len() as u32)
    }

    pub fn read_blocks(&mut self, sector: u64, len: usize) -> Vec<u8> {
        self.memory.write(data_place(0, 0), &vec![0xCC; len]);
        assert_eq!(self.request(0, sector, len as u32), (0, len as u32 + 1));
        self.memory.read(data_place(0, 0), len)
    }
}

pub fn header_place(index: usize, place: u16) -> u64 {
    HEADERS + 0x4000 * index as u64 + 64 * u64::from(place)
}

pub fn data_place(index: usize, place: u16) -> u64 {
    DATA + 0x20_0000 * index as u64 + 0x1_0000 * u64::from(place)
}

pub fn header_bytes(kind: u32, sector: u64) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(sector.to_le_bytes());
    bytes
}

/// A queue's index and a number.
pub fn state(index: usize, number: u32) -> Vec<u8> {
    [index as u32, number].iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed ^ (at as u8) ^ (at >> 8) as u8).collect()
}
