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

mod call;
mod receive;
mod send;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::protocol::{Command, HEADER_BYTES, Header};
use call::Calls;
use receive::Receiver;
use send::Sender;

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
    fn lose(&self, lost: Lost) {
        lock(&self.calls).lost.get_or_insert(lost);
        self.answered.notify_all();
    }
}

/// A panic of another thread leaves these values whole, so a poisoned lock is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
