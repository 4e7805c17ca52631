//! Messages between threads that mostly don't sleep.
//!
//! A poller looks at [`Mailbox::has_mail`] (one relaxed load) in each turn and takes the lock only when there
//! is something. A sender makes a system call only when the receiver sleeps.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes one thread that sleeps on an eventfd, without a system call when it doesn't sleep.
#[derive(Debug)]
pub struct Waker {
    sleeping: AtomicBool,
    wakes: AtomicU64,
    eventfd: OwnedFd,
}

impl Waker {
    /// A waker of a thread that is awake.
    ///
    /// # Errors
    /// Where the system gives no eventfd.
    pub fn new() -> std::io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sleeping: AtomicBool::new(false), wakes: AtomicU64::new(0), eventfd })
    }

    /// Makes the thread look again. What the caller stored before is visible to it when it does.
    pub fn wake(&self) {
        // Pairs with the fence in `prepare_sleep`: either we see `sleeping`, or the sleeper's last look sees
        // what the caller stored before.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            // Some readers watch for edges and never drain it; the counter lasts for 2^64 wake-ups.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// To be called by the thread before its last look for work; afterwards it may wait for the eventfd.
    pub fn prepare_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// To be called by the thread when it is awake again.
    pub fn finish_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Makes the eventfd unreadable again, for a thread that doesn't watch it for edges.
    pub fn drain(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.eventfd, &mut counter);
    }

    /// How often a sleeping thread was woken.
    #[must_use]
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Messages in a [`Mailbox`] from which on senders who can wait should.
const CROWD: usize = 256;

/// A queue of messages to one thread, which owns the [`Waker`].
#[derive(Debug)]
pub struct Mailbox<T> {
    /// Messages in the queue, for those who look without the lock.
    len: AtomicUsize,
    queue: Mutex<VecDeque<T>>,
    waker: Waker,
}

impl<T> Mailbox<T> {
    /// An empty mailbox.
    ///
    /// # Errors
    /// Where the system gives no eventfd.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { len: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()), waker: Waker::new()? })
    }

    /// Puts a message in and wakes the receiver if it sleeps.
    pub fn send(&self, message: T) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(message);
        self.len.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        self.waker.wake();
    }

    /// Whether there may be a message.
    #[inline]
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.len.load(Ordering::Relaxed) != 0
    }

    /// Whether so many messages wait that what a guest can cause without end should wait or be left out.
    #[inline]
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= CROWD
    }

    /// The oldest message.
    pub fn receive(&self) -> Option<T> {
        if !self.has_mail() {
            return None;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let message = queue.pop_front();
        self.len.store(queue.len(), Ordering::Relaxed);
        message
    }

    /// The receiver's waker, for those who wake it for another reason than mail.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}
