//! A storage that misbehaves on request, for tests of everything above storage.
//!
//! [`FaultStorage`] wraps another storage and does its I/O in a thread of its own. A [`FaultControl`]
//! sets rules at any time: commands can fail, be delayed, be held until they are released, or never be
//! answered. A held command touches guest memory only when it is released, which is what makes it
//! good for tests of reset and unmap.

#![expect(unsafe_code, reason = "passes segments on to the storage it wraps")]

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::command::{Operation, StorageCommand, Submission};
use super::limits::Limits;
use super::worker::{Request, WorkerPool, WorkerQueue};
use super::{IoContext, IoContextConfig, OpenError, ResizeError, Storage, StorageError, StorageQueue};

/// See the module.
#[derive(Debug)]
pub struct FaultStorage {
    inner: Arc<dyn Storage>,
    limits: Arc<Limits>,
    pool: Arc<WorkerPool>,
}

/// What happens to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, without touching anything.
    Error(StorageError),
    /// It is carried out after this time.
    Delay(Duration),
    /// It is carried out when [`FaultControl::release`] is called. `cancellable` says whether a
    /// cancellation is heard before.
    Hold {
        /// A disk that hangs hears nothing.
        cancellable: bool,
    },
    /// It is answered only when its context is dropped.
    Never,
}

/// The commands a fault is for: those whose range meets `range_bytes` and whose operation `applies` to.
#[derive(Debug, Clone)]
pub struct FaultRule {
    /// Flush meets every range.
    pub range_bytes: Range<u64>,
    /// Which operations.
    pub applies: fn(Operation) -> bool,
    /// What happens.
    pub fault: Fault,
}

impl FaultRule {
    /// For every command.
    #[must_use]
    pub fn all(fault: Fault) -> Self {
        Self { range_bytes: 0..u64::MAX, applies: |_| true, fault }
    }
}

/// Sets what goes wrong. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FaultControl(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<FaultRule>,
    /// Commands held or never to be answered.
    waiting: usize,
    releases: u64,
}

impl FaultControl {
    /// Replaces the rules; the first that applies counts. Commands already held stay so.
    pub fn set(&self, rules: Vec<FaultRule>) {
        self.lock().rules = rules;
    }

    /// Everything works again; held commands stay held.
    pub fn clear(&self) {
        self.set(Vec::new());
    }

    /// Lets all commands go that are held now.
    pub fn release(&self) {
        self.lock().releases += 1;
    }

    /// Commands held, delayed, or never to be answered.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Waits until that many commands are held. False if that takes longer than `timeout`.
    #[must_use]
    pub fn wait_for(&self, waiting: usize, timeout: Duration) -> bool {
        let state = self.lock();
        let late = |state: &mut State| state.waiting < waiting;
        match self.0.changed.wait_timeout_while(state, timeout, late) {
            Ok((_, result)) => !result.timed_out(),
            Err(_) => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn fault_of(&self, request: &Request) -> Option<Fault> {
        let end = request.offset_bytes.saturating_add(request.len_bytes);
        let meets = |range: &Range<u64>| {
            request.operation == Operation::Flush || (request.offset_bytes < range.end && range.start < end)
        };
        let state = self.lock();
        let rule =
            state.rules.iter().find(|rule| meets(&rule.range_bytes) && (rule.applies)(request.operation))?;
        Some(rule.fault)
    }
}

impl FaultStorage {
    /// Wraps `inner`.
    ///
    /// # Errors
    ///
    /// Whatever opening a queue of `inner` answers, or [`OpenError::System`].
    pub fn new(inner: Arc<dyn Storage>) -> Result<(Self, FaultControl), OpenError> {
        let control = FaultControl::default();
        let mut context = IoContext::new(IoContextConfig::default())?;
        let queue = inner.open_queue(&mut context)?;
        let worker = Worker { control: control.clone(), queue, context, waiting: Vec::new() };
        let pool = Arc::new(WorkerPool::with_loops("fault-worker", vec![|requests| worker.run(&requests)])?);
        let limits = Arc::new(Limits::new(inner.size_bytes(), inner.read_only()));
        Ok((Self { inner, limits, pool }, control))
    }
}

impl Storage for FaultStorage {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn size_bytes(&self) -> u64 {
        self.limits.size_bytes()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn volatile_cache(&self) -> bool {
        self.inner.volatile_cache()
    }

    fn preferred_alignment_bytes(&self) -> u32 {
        self.inner.preferred_alignment_bytes()
    }

    fn deallocate_reads_zero(&self) -> bool {
        self.inner.deallocate_reads_zero()
    }

    fn open_queue(&self, _context: &mut IoContext) -> Result<StorageQueue, OpenError> {
        Ok(StorageQueue::Worker(WorkerQueue::new(Arc::clone(&self.pool), Arc::clone(&self.limits))))
    }

    fn resize(&self, size_bytes: u64) -> Result<(), ResizeError> {
        self.inner.resize(size_bytes)?;
        self.limits.set_size_bytes(size_bytes);
        Ok(())
    }
}

/// The thread.
struct Worker {
    control: FaultControl,
    queue: StorageQueue,
    context: IoContext,
    waiting: Vec<(Request, Until)>,
}

#[derive(Debug, Clone, Copy)]
enum Until {
    Time(Instant),
    /// This many releases.
    Released {
        releases: u64,
        cancellable: bool,
    },
    Closed,
}

/// How often the thread looks at what is held.
const TICK: Duration = Duration::from_micros(500);

impl Worker {
    fn run(mut self, requests: &Receiver<Request>) {
        loop {
            let received = if self.waiting.is_empty() {
                requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                requests.recv_timeout(TICK)
            };
            match received {
                Ok(request) => self.take(request),
                Err(RecvTimeoutError::Timeout) => {}
                // Every queue is gone, so every context that waits for an answer is closing.
                Err(RecvTimeoutError::Disconnected) if self.waiting.is_empty() => return,
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.look_at_waiting();
        }
    }

    fn take(&mut self, request: Request) {
        let until = match self.control.fault_of(&request) {
            None => {
                let result = self.execute(&request);
                return request.answer(result);
            }
            Some(Fault::Error(error)) => return request.answer(Err(error)),
            Some(Fault::Delay(time)) => Until::Time(Instant::now() + time),
            Some(Fault::Hold { cancellable }) => {
                Until::Released { releases: self.control.lock().releases + 1, cancellable }
            }
            Some(Fault::Never) => Until::Closed,
        };
        self.waiting.push((request, until));
        self.publish();
    }

    fn look_at_waiting(&mut self) {
        let now = Instant::now();
        let released = self.control.lock().releases;
        let before = self.waiting.len();
        let mut at = 0;
        while let Some((request, until)) = self.waiting.get(at) {
            let cancelled = match until {
                Until::Time(_) | Until::Released { cancellable: true, .. } => request.cancelled(),
                Until::Released { .. } | Until::Closed => false,
            };
            let due = match until {
                Until::Time(time) => *time <= now,
                Until::Released { releases, .. } => *releases <= released,
                Until::Closed => false,
            };
            if cancelled || request.closed() {
                let (request, _) = self.waiting.remove(at);
                request.answer(Err(StorageError::Cancelled));
            } else if due {
                let (request, _) = self.waiting.remove(at);
                let result = self.execute(&request);
                request.answer(result);
            } else {
                at += 1;
            }
        }
        if self.waiting.len() != before {
            self.publish();
        }
    }

    fn publish(&self) {
        self.control.lock().waiting = self.waiting.len();
        self.control.0.changed.notify_all();
    }

    /// One command of the wrapped storage, from start to end.
    fn execute(&mut self, request: &Request) -> Result<(), StorageError> {
        // SAFETY: the segments are alive until we answer the request, which we do after this.
        let command = unsafe {
            StorageCommand::new(
                0,
                request.operation,
                request.offset_bytes,
                request.len_bytes,
                request.segments(),
            )
        };
        loop {
            match self.queue.submit(&mut self.context, &command) {
                Submission::Complete(result) => return result,
                Submission::Queued => break,
                Submission::Busy => std::thread::yield_now(),
            }
        }
        let mut answer = None;
        loop {
            self.context.submit_batch();
            self.context.reap(&mut |_, result| answer = Some(result));
            match answer {
                Some(result) => return result,
                None => std::thread::yield_now(),
            }
        }
    }
}
