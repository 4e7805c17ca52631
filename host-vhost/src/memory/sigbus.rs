//! Surviving a client that truncates the file behind its memory.
//!
//! Touching a page past the end of a file raises SIGBUS, whose default ends the process and with it every
//! other device. The handler here puts zero pages in the place of the whole mapping, marks it poisoned and
//! returns, so the access goes on; the device of that client then fails ([`Mapping::is_poisoned`], or
//! [`poisoned_mappings`] as a cheap "anything new?"). A SIGBUS anywhere else goes where it went before.
//!
//! System calls on such memory return EFAULT and need none of this.
//!
//! [`Mapping::is_poisoned`]: super::Mapping::is_poisoned
#![expect(unsafe_code, reason = "installs a signal handler and replaces mappings")]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Mappings that were lost so far, in the whole process.
#[must_use]
pub fn poisoned_mappings() -> u64 {
    POISONED.load(Ordering::Relaxed)
}

static POISONED: AtomicU64 = AtomicU64::new(0);

/// The registered mappings. The handler walks them without a lock, so chunks are only ever added.
static FIRST: Chunk = Chunk::new();

/// Slots that are free.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

const CHUNK_SLOTS: usize = 256;

#[derive(Debug)]
struct Chunk {
    slots: [Slot; CHUNK_SLOTS],
    next: AtomicPtr<Chunk>,
}

/// One registered mapping; `start` is 0 while the slot is free.
#[derive(Debug)]
pub(super) struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    poisoned: AtomicBool,
}

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; CHUNK_SLOTS], next: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl Slot {
    const fn new() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0), poisoned: AtomicBool::new(false) }
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }
}

/// Registers a mapping, from now until [`unregister`].
pub(super) fn register(start: usize, len_bytes: usize) -> &'static Slot {
    install();
    let slot = {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.pop().unwrap_or_else(|| add_chunk(&mut free))
    };
    slot.poisoned.store(false, Ordering::Relaxed);
    slot.end.store(start + len_bytes, Ordering::Relaxed);
    // The handler's acquiring load of `start` makes `end` the right one.
    slot.start.store(start, Ordering::Release);
    slot
}

/// Forgets a mapping, before it is unmapped.
pub(super) fn unregister(slot: &'static Slot) {
    slot.start.store(0, Ordering::Release);
    slot.end.store(0, Ordering::Release);
    FREE.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
}

/// Called with the lock of `free` held, so one thread at a time.
fn add_chunk(free: &mut Vec<&'static Slot>) -> &'static Slot {
    static FIRST_USED: AtomicBool = AtomicBool::new(false);
    let chunk: &'static Chunk = if FIRST_USED.swap(true, Ordering::Relaxed) {
        let added = Box::leak(Box::new(Chunk::new()));
        added.next = AtomicPtr::new(FIRST.next.load(Ordering::Relaxed));
        let added: *mut Chunk = added;
        FIRST.next.store(added, Ordering::Release);
        // SAFETY: the chunk was leaked a moment ago and is never freed, and nobody holds a `&mut` to it.
        unsafe { &*added }
    } else {
        &FIRST
    };
    let [first, rest @ ..] = &chunk.slots;
    free.extend(rest);
    first
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all-zero is a valid `sigaction`: no flags, an empty mask, the default handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call; the handler does only what a handler may do.
        if unsafe { libc::sigaction(libc::SIGBUS, &action, &mut previous) } == 0 {
            // Set once, before any registered mapping exists.
            let _ = PREVIOUS.set(previous);
        }
    });
}

/// Only atomics and raw system calls, which are async-signal-safe and leave errno alone.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a SA_SIGINFO handler a valid `siginfo_t`.
    let info_ref = unsafe { &*info };
    // SAFETY: SIGBUS fills in the address; when sent by `kill` the field reads as some number, which isn't used.
    let address = unsafe { info_ref.si_addr() } as usize;
    // Codes above 0 are the kernel's own: an access that failed.
    if info_ref.si_code > 0 && replace(address) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: puts back what was there; the access faults again and meets it.
            unsafe { libc::sigaction(libc::SIGBUS, previous, std::ptr::null_mut()) };
        }
        handler => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the address of a handler that was installed as such; one without SA_SIGINFO ignores the
            // two further arguments.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Replaces the registered mapping around `address`, if there is one, by zero pages.
fn replace(address: usize) -> bool {
    let mut chunk = &FIRST;
    loop {
        for slot in &chunk.slots {
            let start = slot.start.load(Ordering::Acquire);
            let end = slot.end.load(Ordering::Relaxed);
            if start == 0 || !(start..end).contains(&address) {
                continue;
            }
            slot.poisoned.store(true, Ordering::Relaxed);
            POISONED.fetch_add(1, Ordering::Relaxed);
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the range is exactly one mapping of ours, which stays registered until just before it is
            // unmapped; whoever holds a pointer into it finds zeroes there instead.
            let replaced = unsafe {
                mmap_anonymous(
                    start as *mut core::ffi::c_void,
                    end - start,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                )
            };
            return replaced.is_ok();
        }
        let next = chunk.next.load(Ordering::Acquire);
        // SAFETY: null or a leaked chunk.
        match unsafe { next.as_ref() } {
            Some(next) => chunk = next,
            None => return false,
        }
    }
}
