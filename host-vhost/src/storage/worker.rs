//! Worker threads, for everything that would make a poller wait.
//!
//! A [`WorkerPool`] belongs to one storage and serves the queues of all pollers. A request travels in
//! a bounded channel, its answer in a channel of the context it came from; neither allocates. The
//! segment list stays in the context's slot, which is kept until the answer is reaped.
//!
//! A worker takes several requests at a time where the [`Backend`] has something to do once for all
//! of them before they may be acknowledged ([`Backend::settle`]).

#![expect(unsafe_code, reason = "reads segment lists that belong to another thread's slots")]

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::aligned::AlignedBuffer;
use super::command::{Operation, StorageCommand, Submission};
use super::limits::Limits;
use super::wake::Wake;
use super::{IoContext, OpenError, StorageError};

/// What worker threads do for a storage.
pub(super) trait Backend: Send + Sync + Debug + 'static {
    /// Carries out one request. May block.
    fn execute(&self, request: &Request, scratch: &mut AlignedBuffer) -> Result<(), StorageError>;

    /// Makes what was executed survive the end of the process. Called before acknowledging, once for
    /// several requests, if [`Self::SETTLES`].
    fn settle(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Whether [`Self::settle`] does anything.
    const SETTLES: bool = false;
}

/// A command on its way to a worker.
#[derive(Debug)]
pub(super) struct Request {
    slot: u32,
    pub(super) operation: Operation,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    segments: *const libc::iovec,
    count: usize,
    replies: Arc<Replies>,
}

// SAFETY: the list that `segments` points at is read only while its slot is taken, when its context
// leaves it alone.
unsafe impl Send for Request {}

impl Request {
    pub(super) fn new(
        slot: u32,
        command: &StorageCommand<'_>,
        segments: &[libc::iovec],
        replies: Arc<Replies>,
    ) -> Self {
        Self {
            slot,
            operation: command.operation,
            offset_bytes: command.offset_bytes,
            len_bytes: command.len_bytes,
            segments: segments.as_ptr(),
            count: segments.len(),
            replies,
        }
    }

    pub(super) fn segments(&self) -> &[libc::iovec] {
        // SAFETY: a list in a taken slot of a table that doesn't move; the context neither changes
        // nor drops it before it has reaped our answer.
        unsafe { std::slice::from_raw_parts(self.segments, self.count) }
    }

    /// Whether the poller has lost interest.
    pub(super) fn cancelled(&self) -> bool {
        self.replies.cancelled[self.slot as usize].load(Ordering::Relaxed)
    }

    /// Whether the context is going and waits for us.
    pub(super) fn closed(&self) -> bool {
        self.replies.closed.load(Ordering::Relaxed)
    }

    pub(super) fn answer(self, result: Result<(), StorageError>) {
        // One place for each slot, so that there is always room.
        let _ = self.replies.answers.try_send(Reply { slot: self.slot, result });
        self.replies.wake.notify();
    }
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Reply {
    pub(super) slot: u32,
    pub(super) result: Result<(), StorageError>,
}

/// A context as its workers see it.
#[derive(Debug)]
pub(super) struct Replies {
    pub(super) wake: Wake,
    answers: Sender<Reply>,
    cancelled: Box<[AtomicBool]>,
    closed: AtomicBool,
}

impl Replies {
    pub(super) fn new(slots: u32) -> Result<(Self, Receiver<Reply>), OpenError> {
        let (answers, answered) = bounded(slots as usize);
        let cancelled = (0..slots).map(|_| AtomicBool::new(false)).collect();
        Ok((Self { wake: Wake::new()?, answers, cancelled, closed: AtomicBool::new(false) }, answered))
    }

    pub(super) fn arm(&self, slot: u32) {
        self.cancelled[slot as usize].store(false, Ordering::Relaxed);
    }

    pub(super) fn cancel(&self, slot: u32) {
        self.cancelled[slot as usize].store(true, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct WorkerPool {
    /// Dropped first, which ends the threads.
    requests: Option<Sender<Request>>,
    threads: Vec<JoinHandle<()>>,
}

/// Requests that wait for a worker, over all contexts; one more is answered with `Busy`.
const WAITING: usize = 1024;

/// Requests acknowledged together.
const TOGETHER: usize = 64;

/// What a worker moves in one system call.
pub(super) const SCRATCH_BYTES: usize = 1 << 20;

impl WorkerPool {
    /// Threads that execute requests.
    pub(super) fn new<B: Backend>(name: &str, threads: usize, backend: &Arc<B>) -> Result<Self, OpenError> {
        let mut loops = Vec::new();
        for _ in 0..threads {
            let backend = Arc::clone(backend);
            let mut scratch = AlignedBuffer::new(SCRATCH_BYTES).map_err(system)?;
            loops.push(move |requests: Receiver<Request>| work(&*backend, &requests, &mut scratch));
        }
        Self::with_loops(name, loops)
    }

    /// Threads that each run a loop of their own.
    pub(super) fn with_loops<F>(name: &str, loops: Vec<F>) -> Result<Self, OpenError>
    where
        F: FnOnce(Receiver<Request>) + Send + 'static,
    {
        let (requests, received) = bounded(WAITING);
        let mut pool = Self { requests: Some(requests), threads: Vec::new() };
        for run in loops {
            let received = received.clone();
            let thread = crate::device_thread::spawn(name, move || run(received));
            pool.threads.push(thread.map_err(system)?);
        }
        Ok(pool)
    }

    /// False if too many wait.
    pub(super) fn send(&self, request: Request) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.try_send(request).is_ok())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn system(source: io::Error) -> OpenError {
    OpenError::System { what: "start worker threads", source }
}

fn work<B: Backend>(backend: &B, requests: &Receiver<Request>, scratch: &mut AlignedBuffer) {
    let mut done = Vec::with_capacity(TOGETHER);
    while let Ok(request) = requests.recv() {
        let mut next = Some(request);
        let mut taken = 0;
        while let Some(request) = next {
            taken += 1;
            let result = if request.cancelled() {
                Err(StorageError::Cancelled)
            } else {
                backend.execute(&request, scratch)
            };
            if !B::SETTLES || !request.operation.changes_medium() {
                request.answer(result);
            } else {
                done.push((request, result));
            }
            next = if B::SETTLES && taken < TOGETHER { requests.try_recv().ok() } else { None };
        }
        if !done.is_empty() {
            let settled = backend.settle();
            for (request, result) in done.drain(..) {
                request.answer(result.and(settled));
            }
        }
    }
}

/// A poller's queue of a storage that only worker threads serve.
#[derive(Debug)]
pub struct WorkerQueue {
    pool: Arc<WorkerPool>,
    limits: Arc<Limits>,
}

impl WorkerQueue {
    pub(super) fn new(pool: Arc<WorkerPool>, limits: Arc<Limits>) -> Self {
        Self { pool, limits }
    }

    pub(super) fn submit(&mut self, context: &mut IoContext, command: &StorageCommand<'_>) -> Submission {
        match self.limits.check(command) {
            Err(error) => Submission::Complete(Err(error)),
            Ok(()) if command.len_bytes == 0 && command.operation != Operation::Flush => {
                Submission::Complete(Ok(()))
            }
            Ok(()) => context.submit_to_worker(command, &self.pool),
        }
    }
}
