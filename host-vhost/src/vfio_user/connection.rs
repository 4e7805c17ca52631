//! One connection: messages and file descriptors over a UNIX stream, in both directions.
//!
//! One thread, the *reader*, receives: it polls [`Connection::as_fd`] together with whatever else it waits
//! for and takes messages with [`Connection::try_receive`]. Any thread may call the peer (DMA_READ, DMA_WRITE)
//! through [`Connection::call`]. The reader's own call reads the socket until its reply comes and queues the
//! requests that come in meanwhile; another thread's call sleeps until the reader has found its reply. So
//! nobody ever waits for a lock while the peer is being waited for, and the reader must only never wait for a
//! thread that is in a call.
//!
//! A peer that let a call time out isn't called again until it has answered: a stream of calls to a dead
//! peer costs one time-out, not many.
//!
//! A message is sent in one `sendmsg`, file descriptors included. What the socket doesn't take at once is kept
//! and sent by [`Connection::flush`]; a peer that leaves more than [`MAX_BACKLOG_BYTES`] unread is given up.

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use super::protocol::{Command, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MAX_SOCKET_FDS};

/// Bytes that may wait for a peer that doesn't read.
pub const MAX_BACKLOG_BYTES: usize = 1024 * 1024;

/// Requests that may wait while the reader is in a call of its own.
pub const MAX_QUEUED_REQUESTS: usize = 256;

/// Replies to memory changes and resets that may wait until the device is done. Memory that they take away stays
/// mapped until then, so their number bounds the mappings that a client can make us hold.
pub const MAX_PENDING_REPLIES: usize = 4096;

/// How long a call waits unless told otherwise. Below the 5 seconds after which QEMU gives up a message of
/// its own, which may be waiting for us to return from this very call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection ended. Losing a client is an ordinary event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The peer closed its end.
    #[error("the client closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(Errno),
    /// The peer doesn't read.
    #[error("the client left more than {MAX_BACKLOG_BYTES} bytes unread")]
    Backlog,
    /// The peer sent memory changes and resets without waiting for their replies.
    #[error("the client sent more than {MAX_PENDING_REPLIES} memory changes and resets without waiting")]
    Impatient,
    /// The peer sent requests without waiting while it was being asked something.
    #[error("the client sent more than {MAX_QUEUED_REQUESTS} requests while it owed an answer")]
    Flood,
}

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection is over.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The peer didn't answer in time, or still owes the answer to an earlier call.
    #[error("the peer doesn't answer")]
    TimedOut,
    /// The peer answered with an error.
    #[error("the peer refused: {0}")]
    Refused(Errno),
}

/// A message as it came, header and payload apart. Reused from one [`Connection::try_receive`] to the next.
#[derive(Debug, Default)]
pub struct Message {
    /// The header.
    pub header: Header,
    /// What follows it.
    pub payload: Vec<u8>,
    /// The file descriptors that came with it; those not taken out are closed.
    pub fds: Vec<OwnedFd>,
    /// The message can't be used, whatever it says: the errno to answer it with.
    pub fault: Option<Errno>,
}

/// A connection. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    max_fds: usize,
    /// Held for the length of a system call only.
    receiver: Mutex<Receiver>,
    /// Held for the length of a system call only.
    sender: Mutex<Sender>,
    calls: Mutex<Calls>,
    answered: Condvar,
}

/// What has been read of the message that is coming in, and what came in during a call.
#[derive(Debug, Default)]
struct Receiver {
    partial: Partial,
    queued: VecDeque<Message>,
}

#[derive(Debug, Default)]
struct Partial {
    header: [u8; HEADER_BYTES],
    /// Bytes read of the message, header included.
    read: usize,
    /// Bytes still to be passed over without being kept.
    skip: usize,
    message: Message,
}

#[derive(Debug, Default)]
struct Sender {
    backlog: VecDeque<Outgoing>,
    backlog_bytes: usize,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

#[derive(Debug, Default)]
struct Calls {
    reader: Option<ThreadId>,
    next_id: u16,
    waiting: HashMap<u16, Option<Answer>>,
    /// Calls that timed out, whose replies may still come.
    overdue: Vec<u16>,
    lost: Option<Lost>,
}

#[derive(Debug)]
struct Answer {
    result: Result<(), Errno>,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Connection {
    /// Takes over a connected stream, on which a message may bring `max_fds` file descriptors. The calling
    /// thread is the reader until [`Connection::set_reader`].
    ///
    /// # Errors
    /// The socket can't be made non-blocking.
    pub fn new(stream: UnixStream, max_fds: usize) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let connection = Self {
            shared: Arc::new(Shared {
                socket: stream.into(),
                max_fds,
                receiver: Mutex::default(),
                sender: Mutex::default(),
                calls: Mutex::default(),
                answered: Condvar::new(),
            }),
        };
        connection.set_reader();
        Ok(connection)
    }

    /// Makes the calling thread the reader.
    pub fn set_reader(&self) {
        lock(&self.shared.calls).reader = Some(std::thread::current().id());
    }

    /// Takes the next command, if there is one. Replies to calls find their callers on the way. `message` is
    /// overwritten.
    ///
    /// # Errors
    /// The connection is over; every call ends with that.
    pub fn try_receive(&self, message: &mut Message) -> Result<bool, Lost> {
        let mut receiver = lock(&self.shared.receiver);
        if let Some(queued) = receiver.queued.pop_front() {
            *message = queued;
            return Ok(true);
        }
        loop {
            if !self.shared.receive_whole(&mut receiver, message)? {
                return Ok(false);
            }
            if !self.shared.is_reply(message) {
                return Ok(true);
            }
        }
    }

    /// Sends one message: `bytes` from the header on, and file descriptors with its first byte.
    ///
    /// # Errors
    /// The connection is over.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        self.shared.send(bytes, fds)
    }

    /// Sends what the socket didn't take earlier.
    ///
    /// # Errors
    /// The connection is over.
    pub fn flush(&self) -> Result<(), Lost> {
        let mut sender = lock(&self.shared.sender);
        self.shared.drain(&mut sender).inspect_err(|lost| self.shared.lose(*lost))
    }

    /// What to poll the socket for: something to read, or while the peer leaves messages unread, for room.
    #[must_use]
    pub fn interest(&self) -> PollFlags {
        if self.is_backlogged() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Whether commands came in during a call and wait for [`Connection::try_receive`], although the socket
    /// may have nothing to read.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        !lock(&self.shared.receiver).queued.is_empty()
    }

    /// Whether the peer leaves messages unread. Taking more of its commands would only make it worse.
    #[must_use]
    pub fn is_backlogged(&self) -> bool {
        !lock(&self.shared.sender).backlog.is_empty()
    }

    /// Ends the connection for both sides and for every call.
    pub fn shut_down(&self) {
        self.shared.lose(Lost::Closed);
        // It may have been shut down by the peer before.
        let _ = rustix::net::shutdown(&self.shared.socket, rustix::net::Shutdown::Both);
    }

    /// Sends a command and waits for its reply, whose payload is appended to `reply`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(
        &self,
        command: Command,
        parts: [&[u8]; 2],
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
        reply: &mut Vec<u8>,
    ) -> Result<Vec<OwnedFd>, CallError> {
        let deadline = Instant::now() + timeout;
        let (id, is_reader) = self.shared.start_call()?;
        let payload_bytes = parts[0].len() + parts[1].len();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload_bytes);
        bytes.extend_from_slice(Header::command(id, command, payload_bytes).as_bytes());
        bytes.extend_from_slice(parts[0]);
        bytes.extend_from_slice(parts[1]);
        if let Err(lost) = self.shared.send(&bytes, fds) {
            lock(&self.shared.calls).waiting.remove(&id);
            return Err(lost.into());
        }
        let answer = if is_reader {
            self.shared.read_answer(id, deadline)
        } else {
            self.shared.await_answer(id, deadline)
        }?;
        answer.result.map_err(CallError::Refused)?;
        reply.extend_from_slice(&answer.payload);
        Ok(answer.fds)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

impl Shared {
    /// Reads one message to its end, or as far as the socket has it.
    fn receive_whole(&self, receiver: &mut Receiver, message: &mut Message) -> Result<bool, Lost> {
        match self.advance(&mut receiver.partial) {
            Ok(false) => Ok(false),
            Ok(true) => {
                std::mem::swap(message, &mut receiver.partial.message);
                receiver.partial.reset();
                Ok(true)
            }
            Err(lost) => {
                self.lose(lost);
                Err(lost)
            }
        }
    }

    fn advance(&self, partial: &mut Partial) -> Result<bool, Lost> {
        loop {
            if partial.read < HEADER_BYTES {
                let Some(count) = self.receive_some(partial, Part::Header)? else { return Ok(false) };
                partial.read += count;
                if partial.read == HEADER_BYTES {
                    partial.take_header();
                }
            } else if partial.skip > 0 {
                let Some(count) = self.receive_some(partial, Part::Skip)? else { return Ok(false) };
                partial.skip -= count;
            } else if partial.read < HEADER_BYTES + partial.message.payload.len() {
                let Some(count) = self.receive_some(partial, Part::Payload)? else { return Ok(false) };
                partial.read += count;
            } else {
                return Ok(true);
            }
        }
    }

    /// Reads at most to the end of that part, so file descriptors always belong to the message at hand.
    fn receive_some(&self, partial: &mut Partial, part: Part) -> Result<Option<usize>, Lost> {
        let mut skipped = [0; 4096];
        let target = match part {
            Part::Header => &mut partial.header[partial.read..],
            Part::Payload => &mut partial.message.payload[partial.read - HEADER_BYTES..],
            Part::Skip => {
                let len = partial.skip.min(skipped.len());
                &mut skipped[..len]
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKET_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(target)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(Lost::Closed),
                Err(errno) => return Err(Lost::Socket(errno)),
                Ok(received) => break received,
            }
        };
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = ancillary {
                partial.message.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || partial.message.fds.len() > self.max_fds {
            partial.message.fault = Some(Errno::INVAL);
            partial.message.fds.clear();
        }
        if received.bytes == 0 { Err(Lost::Closed) } else { Ok(Some(received.bytes)) }
    }

    /// Gives a reply to its caller. Returns whether the message was a reply that needs no answer.
    fn is_reply(&self, message: &mut Message) -> bool {
        if message.header.message_type() != Header::TYPE_REPLY {
            return false;
        }
        let id = message.header.message_id.get();
        let mut calls = lock(&self.calls);
        if let Some(slot @ None) = calls.waiting.get_mut(&id) {
            let result = match message.fault {
                Some(errno) => Err(errno),
                None => message.header.result(),
            };
            let payload = std::mem::take(&mut message.payload);
            *slot = Some(Answer { result, payload, fds: std::mem::take(&mut message.fds) });
            self.answered.notify_all();
            return true;
        }
        if let Some(place) = calls.overdue.iter().position(|overdue| *overdue == id) {
            calls.overdue.swap_remove(place);
            return true;
        }
        // Nobody asked. To one of our own commands it isn't answered, for the answer could be taken for the
        // answer to a command of the peer; anything else is a command with the wrong type.
        matches!(message.header.command_code(), Command::DMA_READ | Command::DMA_WRITE)
    }

    fn start_call(&self) -> Result<(u16, bool), CallError> {
        let mut calls = lock(&self.calls);
        if let Some(lost) = calls.lost {
            return Err(lost.into());
        }
        if !calls.overdue.is_empty() {
            return Err(CallError::TimedOut);
        }
        let id = calls.next_id;
        if calls.waiting.contains_key(&id) {
            return Err(CallError::TimedOut);
        }
        calls.next_id = id.wrapping_add(1);
        calls.waiting.insert(id, None);
        Ok((id, calls.reader == Some(std::thread::current().id())))
    }

    /// The reader's wait: reads until the answer is there and queues commands.
    fn read_answer(&self, id: u16, deadline: Instant) -> Result<Answer, CallError> {
        loop {
            {
                let mut receiver = lock(&self.receiver);
                let mut message = Message::default();
                while self.receive_whole(&mut receiver, &mut message)? {
                    let message = std::mem::take(&mut message);
                    self.queue(&mut receiver, message)?;
                }
            }
            if let Some(answer) = self.take_answer(id)? {
                return Ok(answer);
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return self.give_up(id);
            };
            let mut flags = PollFlags::IN;
            {
                let mut sender = lock(&self.sender);
                self.drain(&mut sender)?;
                if !sender.backlog.is_empty() {
                    flags |= PollFlags::OUT;
                }
            }
            wait(self.socket.as_fd(), flags, left)?;
        }
    }

    fn queue(&self, receiver: &mut Receiver, mut message: Message) -> Result<(), Lost> {
        if self.is_reply(&mut message) {
            return Ok(());
        }
        if receiver.queued.len() >= MAX_QUEUED_REQUESTS {
            self.lose(Lost::Flood);
            return Err(Lost::Flood);
        }
        receiver.queued.push_back(message);
        Ok(())
    }

    /// Another thread's wait: the reader finds the answer.
    fn await_answer(&self, id: u16, deadline: Instant) -> Result<Answer, CallError> {
        let mut calls = lock(&self.calls);
        loop {
            if let Some(Some(_)) = calls.waiting.get(&id) {
                break;
            }
            if calls.lost.is_some() {
                break;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                break;
            };
            calls = self.answered.wait_timeout(calls, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(calls);
        match self.take_answer(id)? {
            Some(answer) => Ok(answer),
            None => self.give_up(id),
        }
    }

    fn take_answer(&self, id: u16) -> Result<Option<Answer>, CallError> {
        let mut calls = lock(&self.calls);
        if let Some(Some(_)) = calls.waiting.get(&id) {
            return Ok(calls.waiting.remove(&id).flatten());
        }
        match calls.lost {
            Some(lost) => {
                calls.waiting.remove(&id);
                Err(lost.into())
            }
            None => Ok(None),
        }
    }

    fn give_up(&self, id: u16) -> Result<Answer, CallError> {
        let mut calls = lock(&self.calls);
        if let Some(Some(answer)) = calls.waiting.remove(&id) {
            return Ok(answer);
        }
        calls.overdue.push(id);
        Err(CallError::TimedOut)
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        let mut sender = lock(&self.sender);
        self.send_or_keep(&mut sender, bytes, fds).inspect_err(|lost| self.lose(*lost))
    }

    fn send_or_keep(&self, sender: &mut Sender, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        let mut sent = 0;
        if sender.backlog.is_empty() {
            sent = send_some(self.socket.as_fd(), bytes, fds)?;
            if sent == bytes.len() {
                return Ok(());
            }
        }
        if sender.backlog_bytes + bytes.len() > MAX_BACKLOG_BYTES {
            return Err(Lost::Backlog);
        }
        let kept = if sent > 0 { &[][..] } else { fds };
        let fds = kept
            .iter()
            .map(|fd| rustix::io::fcntl_dupfd_cloexec(*fd, 0))
            .collect::<Result<_, _>>()
            .map_err(Lost::Socket)?;
        sender.backlog_bytes += bytes.len();
        sender.backlog.push_back(Outgoing { bytes: bytes.to_vec(), sent, fds });
        Ok(())
    }

    fn drain(&self, sender: &mut Sender) -> Result<(), Lost> {
        while let Some(front) = sender.backlog.front_mut() {
            let fds: Vec<_> = front.fds.iter().map(AsFd::as_fd).collect();
            let count = send_some(self.socket.as_fd(), &front.bytes[front.sent..], &fds)?;
            if count > 0 {
                front.fds.clear();
            }
            front.sent += count;
            if front.sent < front.bytes.len() {
                return Ok(());
            }
            sender.backlog_bytes -= front.bytes.len();
            sender.backlog.pop_front();
        }
        Ok(())
    }

    fn lose(&self, lost: Lost) {
        lock(&self.calls).lost.get_or_insert(lost);
        self.answered.notify_all();
    }
}

#[derive(Clone, Copy)]
enum Part {
    Header,
    Payload,
    Skip,
}

impl Partial {
    /// Decides what to do with what follows the header. A size below the header's own can't be true; then
    /// nothing follows, as far as one can say.
    fn take_header(&mut self) {
        let header = Header::read_from_bytes(&self.header).unwrap_or_default();
        self.message.header = header;
        let payload = (header.message_size.get() as usize).checked_sub(HEADER_BYTES);
        match payload {
            None => self.message.fault = Some(Errno::INVAL),
            Some(bytes) if bytes > MAX_MESSAGE_BYTES - HEADER_BYTES => {
                self.message.fault = Some(Errno::MSGSIZE);
                self.skip = bytes;
            }
            Some(bytes) => self.message.payload.resize(bytes, 0),
        }
    }

    /// Makes ready for the next message; the buffers that were swapped in are kept.
    fn reset(&mut self) {
        self.read = 0;
        self.skip = 0;
        self.message.payload.clear();
        self.message.fds.clear();
        self.message.fault = None;
    }
}

/// One `sendmsg`; how many bytes the socket took.
fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Lost> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKET_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Lost::Socket(Errno::INVAL));
    }
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Lost::Closed),
            Err(errno) => return Err(Lost::Socket(errno)),
        }
    }
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> Result<(), Lost> {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Lost::Socket(errno)),
    }
}

/// A panic of another thread leaves these values whole, so a poisoned lock is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
