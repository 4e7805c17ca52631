//! What the threads that poll have in common, whatever they poll: how one starts, where it runs, what wakes it, and
//! its loop of turns and rest.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::idle::{Idle, Rest};
use crate::mailbox::Waker;
use crate::storage::{IoContext, OpenError};

/// The thread's own side of a poller.
pub(crate) trait Turns: Sized + 'static {
    /// One look at everything. Returns whether there was anything.
    fn turn(&mut self) -> bool;

    /// Naps for about so long, or sleeps, after one last look.
    fn rest(&mut self, nap: Duration);

    /// Whether the thread is to end.
    fn is_over(&self) -> bool;

    /// How idle it was lately.
    fn idle(&mut self) -> &mut Idle;
}

/// Starts a thread that makes its side of a poller by `make` and takes turns until it is over. Waits until it is made,
/// and returns what `show` shows of it.
///
/// # Errors
/// That of `make`, or where the system gives no thread.
pub(crate) fn start<T: Turns, R: Send + 'static>(
    name: String,
    make: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
    show: impl FnOnce(&T) -> R + Send + 'static,
) -> Result<(JoinHandle<()>, R), OpenError> {
    let failed = |source| OpenError::System { what: "start a poller thread", source };
    let (ready, started) = std::sync::mpsc::channel();
    let thread = crate::device_thread::spawn(name, move || match make() {
        Ok(mut made) => {
            let _ = ready.send(Ok(show(&made)));
            run(&mut made);
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    });
    let thread = thread.map_err(failed)?;
    let ended = |_| Err(failed(std::io::Error::other("it ended before it was ready")));
    Ok((thread, started.recv().unwrap_or_else(ended)?))
}

/// Waits for a thread that has been told to end.
pub(crate) fn join(thread: &mut Option<JoinHandle<()>>) {
    if let Some(thread) = thread.take()
        && thread.join().is_err()
    {
        tracing::error!("a poller thread ended by a panic");
    }
}

fn run(thread: &mut impl Turns) {
    while !thread.is_over() {
        if thread.turn() {
            thread.idle().worked();
            continue;
        }
        match thread.idle().idle() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Nap(nap) => thread.rest(nap),
        }
    }
}

/// Makes the calling thread run on that processor, if one is named.
///
/// # Errors
/// Where there is no such processor for us.
pub(crate) fn pin(cpu: Option<usize>) -> Result<(), OpenError> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(system("run a poller on that processor (see --cpu)"))
}

/// An epoll that mail and completions of storages wake.
///
/// # Errors
/// Where the system gives none.
pub(crate) fn new_epoll(waker: &Waker, context: &IoContext) -> Result<OwnedFd, OpenError> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll"))?;
    for fd in [waker.as_fd(), context.wake_fd()] {
        watch(&epoll, fd).map_err(system("fill an epoll"))?;
    }
    Ok(epoll)
}

/// Makes `fd` wake the owner of `epoll`. It is watched for edges: nothing has to be read, so a nap is one system call.
///
/// # Errors
/// That of `epoll_ctl`.
pub(crate) fn watch(epoll: &OwnedFd, fd: impl AsFd) -> Result<(), Errno> {
    let data = epoll::EventData::new_u64(u64::from(fd.as_fd().as_raw_fd().unsigned_abs()));
    epoll::add(epoll, fd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
}

/// Sleeps until something wakes the thread, but at most so long. Whatever ends the wait, the next turn looks at
/// everything. Taking the events makes what is watched for edges ready for the next.
pub(crate) fn wait(epoll: &OwnedFd, timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
    let _ = epoll::wait(epoll, &mut events, timeout.as_ref());
}

fn system(what: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { what, source: errno.into() }
}
