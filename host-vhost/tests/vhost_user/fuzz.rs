//! A frontend and a driver that do anything: messages of wrong sizes, with wrong descriptors, in a wrong order, and
//! rings that change under the server's hands. By seeded chance and for a bounded time, three seconds each:
//! `DOORBELL_FUZZ_SECONDS` gives more, `DOORBELL_FUZZ_SEED` repeats a run.
//!
//! The server is a process of its own. It must not die, no thread of it may panic, it keeps no descriptor and no
//! thread, it answers the next frontend at once, and what isn't guest memory stays as it was: the regions end in the
//! middle of a page, and between them and around them lie guard bytes, in the same file.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::frontend::{Frontend, PROTOCOL, code, new_eventfd, state};
use super::process::Process;
use super::ring::descriptor;

/// Guest memory: two regions of one file, by guest address, length and offset. Both end inside a page.
const REGIONS: [(u64, u64, u64); 2] = [(0, 0x10_0000 - 256, 0), (0x10_0000, 0x4_0000 - 100, 0x11_0000)];
const FILE_BYTES: u64 = 0x20_0000;
const USER: u64 = 0x7F00_0000_0000;
const GUARD: u8 = 0xA5;
/// The log ends inside a page, too.
const LOG_BYTES: u64 = 39;
const QUEUES: usize = 2;
const SIZE: u16 = 32;

/// Where a queue's parts are in the first region.
fn ring_place(queue: usize) -> u64 {
    0x1_0000 * queue as u64
}
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;
/// Requests' headers and indirect tables.
const TABLES: u64 = 0x4_0000;

/// A generator that is the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A server, and what it must not lose.
struct Target {
    process: Process,
    socket: PathBuf,
    said: PathBuf,
    before: Option<(usize, usize)>,
    _folder: tempfile::TempDir,
}

impl Target {
    fn start(direct: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (image, said) = (folder.path().join("disk.img"), folder.path().join("said"));
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        // A socket's name may be no longer than 108 bytes.
        let socket = std::env::temp_dir().join(format!("doorbell-fuzz-{}-{direct}", std::process::id()));
        let image = image.to_str().unwrap();
        let arguments = ["--file", image, "--direct", direct, "--queues", "2", "--pollers", "2"];
        let process = Process::start_saying(&socket, &arguments, File::create(&said).unwrap().into());
        Self { process, socket, said, before: None, _folder: folder }
    }

    /// After a session: all is as before, and an honest frontend is served.
    fn check(&mut self, seed: u64) {
        assert!(self.process.child.try_wait().unwrap().is_none(), "seed {seed}: the server has died");
        let said = std::fs::read_to_string(&self.said).unwrap();
        assert!(!said.contains("panicked"), "seed {seed}: {said}");
        let mut frontend = Frontend::connect(&self.socket);
        frontend.negotiate(0);
        frontend.add_ring(64);
        frontend.start(0, 0);
        assert_eq!(frontend.request(4, 0, 0), (0, 1), "seed {seed}");
        let now = (self.process.count("fd"), self.process.count("task"));
        assert_eq!(now, *self.before.get_or_insert(now), "seed {seed}: descriptors, threads");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// One frontend and its driver.
struct Session {
    stream: UnixStream,
    random: Random,
    memory: File,
    log: File,
    inflight: File,
    eventfds: Vec<OwnedFd>,
    /// Messages that lay claim to memory are true, so guard bytes must stay.
    honest: bool,
    replies: usize,
    /// Requests that were completed, as far as the used rings tell.
    used: u64,
    /// The queue that messages are about; by chance if it isn't set.
    queue: Option<usize>,
}

/// Request, payload, descriptors.
type Message = (u32, Vec<u8>, Vec<OwnedFd>);

fn memfd(len_bytes: u64) -> File {
    let file = File::from(rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(len_bytes).unwrap();
    file
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn own(file: impl AsFd) -> OwnedFd {
    file.as_fd().try_clone_to_owned().unwrap()
}

impl Session {
    fn new(target: &Target, seed: u64, honest: bool) -> Self {
        let stream = UnixStream::connect(&target.socket).unwrap();
        stream.set_nonblocking(true).unwrap();
        let memory = memfd(FILE_BYTES);
        memory.write_all_at(&vec![GUARD; FILE_BYTES as usize], 0).unwrap();
        for (_, len, offset) in REGIONS {
            memory.write_all_at(&vec![0; len as usize], offset).unwrap();
        }
        Self {
            stream,
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            memory,
            log: memfd(0x1_0000),
            inflight: memfd(0x1_0000),
            eventfds: (0..3).map(|_| new_eventfd()).collect(),
            honest,
            replies: 0,
            used: 0,
            queue: None,
        }
    }

    /// A descriptor of any kind.
    fn any_fd(&mut self) -> OwnedFd {
        match self.random.below(8) {
            0 => memfd(self.random.pick(&[0, 1, 4096, 0x1_0000])).into(),
            1 => File::open("/dev/null").unwrap().into(),
            2 => File::open("/").unwrap().into(),
            3 => UnixStream::pair().unwrap().0.into(),
            4 => rustix::pipe::pipe().unwrap().1,
            5 => File::open("/proc/self/exe").unwrap().into(),
            6 if !self.honest => own(&self.memory),
            _ => new_eventfd(),
        }
    }

    fn eventfd(&mut self) -> OwnedFd {
        let index = self.random.below(self.eventfds.len() as u64) as usize;
        own(&self.eventfds[index])
    }

    /// A message as an honest frontend sends it.
    fn message(&mut self, request: u32) -> Message {
        let queue = self.queue.unwrap_or(self.random.below(QUEUES as u64) as usize);
        let number = (queue as u64).to_le_bytes().to_vec();
        let place = USER + ring_place(queue);
        let fds = |fds: Vec<OwnedFd>| fds;
        match request {
            code::SET_FEATURES => {
                let mut features: u64 = 1 << 32 | 1 << 30 | 1 << 9;
                for bit in [26, 28, 29] {
                    features |= self.random.below(2) << bit;
                }
                (request, words([features]), fds(vec![]))
            }
            code::SET_PROTOCOL_FEATURES => (request, words([PROTOCOL]), vec![]),
            code::SET_MEM_TABLE => {
                let mut payload = words([REGIONS.len() as u64]);
                for (guest, len, offset) in REGIONS {
                    payload.extend(words([guest, len, USER + guest, offset]));
                }
                (request, payload, REGIONS.iter().map(|_| own(&self.memory)).collect())
            }
            code::ADD_MEM_REG | code::REM_MEM_REG => {
                let (guest, len, offset) = REGIONS[1];
                let fds = if request == code::ADD_MEM_REG { vec![own(&self.memory)] } else { vec![] };
                (request, words([0, guest, len, USER + guest, offset]), fds)
            }
            code::SET_LOG_BASE => (request, words([LOG_BYTES, 0]), vec![own(&self.log)]),
            code::SET_LOG_FD => (request, vec![], vec![self.eventfd()]),
            code::SET_VRING_NUM => (request, state(queue, SIZE.into()), vec![]),
            code::SET_VRING_ADDR => {
                let log = self.random.below(2);
                let mut payload = state(queue, log as u32);
                payload.extend(words([
                    place,
                    place + USED,
                    place + AVAILABLE,
                    log * (ring_place(queue) + USED),
                ]));
                (request, payload, vec![])
            }
            code::SET_VRING_BASE => {
                let base = if self.random.one_in(8) { self.random.pick(&[1, 65_535]) } else { 0 };
                (request, state(queue, base), vec![])
            }
            code::GET_VRING_BASE => (request, state(queue, 0), vec![]),
            code::SET_VRING_ENABLE => (request, state(queue, u32::from(!self.random.one_in(4))), vec![]),
            code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
                (request, number, vec![self.eventfd()])
            }
            code::GET_CONFIG | code::SET_CONFIG => {
                let (offset, len) = self.random.pick(&[(0_u32, 60_u32), (32, 1), (0, 256), (255, 1)]);
                let mut payload: Vec<u8> =
                    [offset, len, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
                payload.resize(12 + len as usize, 0);
                (request, payload, vec![])
            }
            code::GET_INFLIGHT_FD | code::SET_INFLIGHT_FD => {
                let mut payload = words([0x1_0000, 0]);
                payload.extend([QUEUES as u8, 0, SIZE as u8, 0, 0, 0, 0, 0]);
                let fds = if request == code::SET_INFLIGHT_FD { vec![own(&self.inflight)] } else { vec![] };
                (request, payload, fds)
            }
            _ => (request, vec![], vec![]),
        }
    }

    /// Whether a changed message of that kind would make other memory the guest's.
    fn claims_memory(request: u32) -> bool {
        matches!(
            request,
            code::SET_MEM_TABLE | code::ADD_MEM_REG | code::SET_LOG_BASE | code::SET_INFLIGHT_FD
        )
    }

    /// Changes a message.
    fn change(&mut self, (request, payload, fds): &mut Message, size: &mut u32, flags: &mut u32) {
        for _ in 0..=self.random.below(2) {
            match self.random.below(9) {
                0..=3 if !payload.is_empty() => {
                    let at = self.random.below(payload.len() as u64) as usize;
                    payload[at] = self.random.pick(&[0, 1, 0x7F, 0x80, 0xFF, payload[at] ^ 1]);
                }
                4 => {
                    let len = self.random.pick(&[0, 1, 7, 8, 9, 40, 300]);
                    payload.resize(len, 0xFF);
                    *size = len as u32;
                }
                5 => *size = self.random.pick(&[0, 1, 4096, 4097, u32::MAX, payload.len() as u32 + 1]),
                6 => *flags = self.random.next() as u32 & 0xF,
                7 => *request = self.random.below(48) as u32,
                _ => {
                    fds.clear();
                    for _ in 0..self.random.pick(&[0_u64, 1, 2, 8, 9, 33]) {
                        fds.push(self.any_fd());
                    }
                }
            }
        }
    }

    fn send(&mut self, request: u32, changed: bool) {
        let mut message = self.message(request);
        let mut size = message.1.len() as u32;
        let mut flags = 1 | (8 * self.random.below(2) as u32);
        if changed && !(self.honest && Self::claims_memory(request)) {
            self.change(&mut message, &mut size, &mut flags);
            if self.honest && Self::claims_memory(message.0) {
                return;
            }
        }
        let (request, payload, fds) = message;
        let mut bytes: Vec<u8> = [request, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&payload);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        // A server that has closed already, or is slow, is judged at the end.
        let _ = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        self.drain();
    }

    fn drain(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = self.stream.read(&mut buffer) {
            self.replies += len;
        }
    }

    /// An address that is of interest: inside, at the edges, outside.
    fn address(&mut self) -> u64 {
        let (guest, len, _) = self.random.pick(&REGIONS);
        match self.random.below(60) {
            0 => guest + len,
            1 => guest + len - 1,
            2 => guest + len - self.random.below(5000),
            3 => self.random.next(),
            4 => u64::MAX - self.random.below(5000),
            5 => ring_place(self.random.below(QUEUES as u64) as usize) + self.random.below(0x9000),
            6 => guest,
            // Data has room up to the end.
            _ => guest + self.random.below(len - 8192) / 512 * 512,
        }
    }

    fn entry(&mut self, entries: u64) -> Vec<u8> {
        let len = match self.random.below(8) {
            0 => self.random.next() as u32,
            1 => self.random.below(20) as u32,
            2 => 1 << 20,
            _ => self.random.pick(&[1, 16, 512, 512, 512, 4096, 8192, 65_536]),
        };
        let flags = match self.random.below(16) {
            0 => self.random.next() as u16,
            1 => 4,
            _ => self.random.pick(&[0, 1, 1, 1, 2, 3, 3]),
        };
        let next = if self.random.one_in(30) { self.random.next() } else { self.random.below(entries) };
        descriptor(self.address(), len, flags, next as u16)
    }

    /// Writes a request that could be one.
    fn request(&mut self, queue: usize, head: u64) {
        let header = TABLES + 0x1_0000 * queue as u64 + 64 * head;
        let mut bytes = self.random.pick(&[0_u32, 1, 4, 8, 11, 13, 99]).to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(self.random.below(2100).to_le_bytes());
        let writes = u16::from(!bytes[0].is_multiple_of(2)) ^ 1;
        let (data, len) = (self.address(), self.random.pick(&[512, 4096, 20, 16]));
        let chain = [
            descriptor(header, 16, 1, head as u16 + 1),
            descriptor(data, len, 1 | (2 * writes), head as u16 + 2),
            descriptor(header + 32, 1, 2, 0),
        ];
        self.memory.write_all_at(&bytes, header).unwrap();
        if self.random.one_in(3) {
            // The same in an indirect table, now and then with a fault.
            let table = header + 0x8000;
            let mut entries = chain.concat();
            for (at, next) in [(14, 1), (30, 2)] {
                entries[at] = next;
            }
            if self.random.one_in(10) {
                let at = self.random.below(48) as usize;
                entries[at] = self.random.next() as u8;
            }
            self.memory.write_all_at(&entries, table).unwrap();
            let len = if self.random.one_in(20) { self.random.below(100) as u32 } else { 48 };
            self.write_entry(queue, head, &descriptor(table, len, 4, 0));
        } else {
            (head..).zip(&chain).for_each(|(index, entry)| self.write_entry(queue, index, entry));
        }
    }

    fn write_entry(&self, queue: usize, index: u64, entry: &[u8]) {
        self.memory.write_all_at(entry, ring_place(queue) + 16 * index).unwrap();
    }

    /// Changes a ring, which may run.
    fn disturb(&mut self, queue: usize) {
        let place = ring_place(queue);
        for _ in 0..self.random.below(8) {
            let head = 3 * self.random.below(10);
            if self.random.one_in(15) {
                let entry = self.entry(SIZE.into());
                let index = self.random.below(SIZE.into());
                self.write_entry(queue, index, &entry);
            } else {
                self.request(queue, head);
            }
        }
        let available = place + AVAILABLE;
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, available + 2).unwrap();
        let mut index = u16::from_le_bytes(index);
        for _ in 0..self.random.below(12) {
            let head = match self.random.below(40) {
                0 => self.random.next() as u16,
                1 => self.random.below(SIZE.into()) as u16,
                _ => 3 * self.random.below(10) as u16,
            };
            let slot = available + 4 + 2 * u64::from(index % SIZE);
            self.memory.write_all_at(&head.to_le_bytes(), slot).unwrap();
            index = index.wrapping_add(1);
        }
        match self.random.below(40) {
            0 => index = index.wrapping_add(self.random.next() as u16),
            1 => index = index.wrapping_sub(3),
            _ => {}
        }
        self.memory.write_all_at(&index.to_le_bytes(), available + 2).unwrap();
        if self.random.one_in(10) {
            // What only the device writes, and the event index.
            let at = place + USED + self.random.below(6 + 8 * u64::from(SIZE));
            self.memory.write_all_at(&[self.random.next() as u8], at).unwrap();
            self.memory.write_all_at(&self.random.next().to_le_bytes()[..2], available + 4 + 64).unwrap();
            let at = self.random.below(0x1000);
            self.inflight.write_all_at(&[self.random.next() as u8], at).unwrap();
        }
        for eventfd in &self.eventfds {
            let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
        }
    }

    /// The messages that set everything up and start the queues, of which one in so many is changed.
    fn set_up(&mut self, changed_one_in: u64) {
        let mut requests = vec![
            code::GET_FEATURES,
            code::GET_PROTOCOL_FEATURES,
            code::SET_PROTOCOL_FEATURES,
            code::GET_QUEUE_NUM,
            code::SET_OWNER,
            code::SET_FEATURES,
            code::GET_CONFIG,
            code::SET_MEM_TABLE,
        ];
        let optional = [code::SET_LOG_BASE, code::SET_LOG_FD, code::SET_INFLIGHT_FD, code::GET_INFLIGHT_FD];
        requests.extend(optional.into_iter().filter(|_| self.random.one_in(2)));
        // The queue of each is chosen by chance, so twice as often as needed.
        for request in [code::SET_VRING_NUM, code::SET_VRING_BASE, code::SET_VRING_ADDR, code::SET_VRING_CALL]
        {
            requests.extend([request; 3]);
        }
        requests.extend([
            code::SET_VRING_ERR,
            code::SET_VRING_KICK,
            code::SET_VRING_KICK,
            code::SET_VRING_KICK,
        ]);
        requests.extend([code::SET_VRING_ENABLE; 4]);
        for request in requests {
            let changed = self.random.one_in(changed_one_in);
            self.send(request, changed);
        }
    }

    /// Stops a queue, which may be broken, and starts it from the beginning.
    fn restart(&mut self, queue: usize) {
        self.queue = Some(queue);
        self.send(code::GET_VRING_BASE, false);
        // It runs as long as the message is on its way; never mind.
        self.take_used(queue);
        for index in [AVAILABLE + 2, USED + 2] {
            self.memory.write_all_at(&[0; 2], ring_place(queue) + index).unwrap();
        }
        for request in [code::SET_VRING_BASE, code::SET_VRING_KICK, code::SET_VRING_ENABLE] {
            self.send(request, false);
        }
        self.queue = None;
    }

    /// Counts what was completed. Chance may have written there, so a large number counts as none.
    fn take_used(&mut self, queue: usize) {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, ring_place(queue) + USED + 2).unwrap();
        self.used += u64::from(Some(u16::from_le_bytes(index)).filter(|used| *used < 500).unwrap_or(0));
    }

    /// Ends the connection and waits until the server has: nothing is touched after that.
    fn finish(mut self, seed: u64) -> (usize, u64) {
        let _ = self.stream.shutdown(Shutdown::Write);
        self.stream.set_nonblocking(false).unwrap();
        self.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => self.replies += len,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("seed {seed}: the server doesn't end the session: {error}"),
            }
        }
        if self.honest {
            let mut bytes = vec![0; FILE_BYTES as usize];
            self.memory.read_exact_at(&mut bytes, 0).unwrap();
            let mut from = 0;
            for (start, end) in
                REGIONS.map(|(_, len, offset)| (offset, offset + len)).into_iter().chain([(FILE_BYTES, 0)])
            {
                let changed = bytes[from as usize..start as usize].iter().position(|byte| *byte != GUARD);
                assert_eq!(changed, None, "seed {seed}: written outside guest memory, behind {from:#x}");
                from = end;
            }
            let mut log = vec![0; 0x1_0000 - LOG_BYTES as usize];
            self.log.read_exact_at(&mut log, LOG_BYTES).unwrap();
            assert!(log.iter().all(|byte| *byte == 0), "seed {seed}: written behind the log");
        }
        (0..QUEUES).for_each(|queue| self.take_used(queue));
        (self.replies, self.used)
    }
}

/// Sessions until the time is over; says how many there were, how many bytes the server replied, and how many
/// requests it completed (as the used rings say, where chance hasn't written into them).
fn run(direct: &str, mut session: impl FnMut(&Target, u64) -> (usize, u64)) -> (u64, usize, u64) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let time = Duration::from_secs(number("DOORBELL_FUZZ_SECONDS").unwrap_or(3));
    let first = number("DOORBELL_FUZZ_SEED").unwrap_or(1);
    let mut target = Target::start(direct);
    // The first sessions may open something for good.
    for seed in 0..3 {
        session(&target, seed);
    }
    let start = Instant::now();
    let (mut sessions, mut replies, mut used) = (0, 0, 0);
    while start.elapsed() < time {
        let seed = first + sessions;
        let (more_replies, more_used) = session(&target, seed);
        replies += more_replies;
        used += more_used;
        sessions += 1;
        target.check(seed);
    }
    println!(
        "{sessions} sessions from seed {first}, {replies} bytes of replies, about {used} requests completed"
    );
    (sessions, replies, used)
}

#[test]
fn random_messages_leave_nothing_behind() {
    let (sessions, replies, used) = run("auto", |target, seed| {
        let honest = seed % 4 != 0;
        let mut session = Session::new(target, seed, honest);
        (0..QUEUES).for_each(|queue| session.disturb(queue));
        session.set_up(200);
        for _ in 0..session.random.below(40) {
            let request = session.random.below(44) as u32;
            let changed = session.random.one_in(8);
            session.send(request, changed);
            let queue = session.random.below(QUEUES as u64) as usize;
            session.disturb(queue);
        }
        session.finish(seed)
    });
    assert!(
        sessions >= 20 && replies as u64 > 20 * sessions && used > sessions / 4,
        "{sessions} {replies} {used}"
    );
}

#[test]
fn random_rings_leave_nothing_behind() {
    let (sessions, replies, used) = run("off", |target, seed| {
        let mut session = Session::new(target, seed, true);
        session.set_up(u64::MAX);
        for _ in 0..40 {
            for queue in 0..QUEUES {
                session.disturb(queue);
            }
            std::thread::sleep(Duration::from_micros(session.random.below(300)));
            if session.random.one_in(2) {
                let queue = session.random.below(QUEUES as u64) as usize;
                session.restart(queue);
            }
            if session.random.one_in(6) {
                session.send(code::SET_FEATURES, false);
            }
        }
        session.finish(seed)
    });
    assert!(
        sessions >= 20 && replies as u64 > 20 * sessions && used > 5 * sessions,
        "{sessions} {replies} {used}"
    );
}
