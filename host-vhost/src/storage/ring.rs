//! The io_uring of one poller: registered files, transfers that continue after a short result, and a
//! count of `io_uring_enter`.
//!
//! **Set-up flags.** None of the deferred task-run modes: with `DEFER_TASKRUN` (or `COOP_TASKRUN`) a
//! completion appears in the ring only after the poller enters the kernel, and the whole point of
//! [`Ring::reap`] is that it reads shared memory and nothing else. Not `SQPOLL`: it burns a core.
//! Not `IOPOLL`: few file systems and devices have poll queues, and buffered files never do.
//!
//! What must be slow (fallocate, compare, bounces) isn't here, worker threads do it.

#![expect(unsafe_code, reason = "hands addresses of guest memory to the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use super::file::FileShared;
use super::slots::{RingFile, RingKind, RingWork, Slots, Work};
use super::{StorageError, Token};

/// See the module.
pub(super) struct Ring {
    uring: IoUring,
    /// Entries that the kernel hasn't taken yet.
    queued: u32,
    enters: u64,
    files: Vec<Option<RingFile>>,
    /// Queues that were dropped since their files were last looked at.
    closed: Arc<AtomicU32>,
}

/// A queue's share of a registered file. Dropping it lets the ring forget the file.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) file: u32,
    /// Which context's ring.
    pub(super) context: u64,
    closed: Arc<AtomicU32>,
    _user: Arc<()>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.closed.fetch_add(1, Ordering::Release);
    }
}

/// Files of one ring, that is namespaces of one poller thread.
const MAX_FILES: u32 = 256;

/// User data of an entry whose completion nobody waits for.
const IGNORED: u64 = u64::MAX;

impl Ring {
    /// For as many transfers as there are slots, which signal `wake`.
    pub(super) fn new(slots: u32, wake: BorrowedFd<'_>) -> io::Result<Self> {
        // Each slot has at most one entry waiting for the kernel and one cancellation, so neither
        // queue can overflow.
        let entries = slots.saturating_mul(2).next_power_of_two();
        let uring = IoUring::builder().dontfork().setup_cqsize(entries * 2).build(entries)?;
        uring.submitter().register_files_sparse(MAX_FILES)?;
        uring.submitter().register_eventfd(wake.as_raw_fd())?;
        Ok(Self {
            uring,
            queued: 0,
            enters: 0,
            files: (0..MAX_FILES).map(|_| None).collect(),
            closed: Arc::new(AtomicU32::new(0)),
        })
    }

    /// Makes a file known to the ring, for one queue.
    pub(super) fn register(&mut self, context: u64, shared: &Arc<FileShared>) -> io::Result<Registration> {
        self.forget_closed();
        let known = self
            .files
            .iter()
            .position(|file| file.as_ref().is_some_and(|file| Arc::ptr_eq(&file.shared, shared)));
        let index = match known {
            Some(index) => index,
            None => {
                let free = self.files.iter().position(Option::is_none).ok_or(io::ErrorKind::QuotaExceeded)?;
                self.uring.submitter().register_files_update(free as u32, &[shared.as_raw_fd()])?;
                self.files[free] =
                    Some(RingFile { shared: Arc::clone(shared), users: Arc::new(()), in_flight: 0 });
                free
            }
        };
        let user = self.files[index].as_ref().map(|file| Arc::clone(&file.users)).unwrap_or_default();
        Ok(Registration { file: index as u32, context, closed: Arc::clone(&self.closed), _user: user })
    }

    /// Closes files whose queues are gone and that have nothing in flight.
    #[cold]
    fn forget_closed(&mut self) {
        self.closed.store(0, Ordering::Relaxed);
        for (index, entry) in self.files.iter_mut().enumerate() {
            let Some(file) = entry else { continue };
            if Arc::strong_count(&file.users) > 1 {
                continue;
            }
            if file.in_flight > 0 {
                self.closed.store(1, Ordering::Relaxed);
                continue;
            }
            let _ = self.uring.submitter().register_files_update(index as u32, &[-1]);
            *entry = None;
        }
    }

    /// Queues the work of a slot for the next batch.
    #[inline]
    pub(super) fn start(&mut self, slots: &mut Slots, index: u32) {
        if let Work::Ring(work) = slots.get(index).work {
            if let Some(Some(file)) = self.files.get_mut(work.file as usize) {
                file.in_flight += 1;
            }
            self.push_work(slots, index, work);
        }
    }

    #[inline]
    fn push_work(&mut self, slots: &mut Slots, index: u32, work: RingWork) {
        let file = Fixed(work.file);
        let segments = slots.segments(index);
        let entry = match (work.kind, &*segments) {
            (RingKind::Flush, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            (RingKind::Read, [one]) => opcode::Read::new(file, one.iov_base.cast(), clamp(one.iov_len))
                .offset(work.offset_bytes)
                .build(),
            (RingKind::Read, list) => {
                opcode::Readv::new(file, list.as_ptr(), list.len() as u32).offset(work.offset_bytes).build()
            }
            (RingKind::Write { fua }, [one]) => {
                opcode::Write::new(file, one.iov_base.cast(), clamp(one.iov_len))
                    .offset(work.offset_bytes)
                    .rw_flags(sync_flag(fua))
                    .build()
            }
            (RingKind::Write { fua }, list) => opcode::Writev::new(file, list.as_ptr(), list.len() as u32)
                .offset(work.offset_bytes)
                .rw_flags(sync_flag(fua))
                .build(),
        };
        self.push(&entry.user_data(u64::from(index)));
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry's list is in a slot that stays taken, and what it points at is guest
        // memory alive, until the completion is reaped (contract of `StorageCommand::new`, and
        // `IoContext` waits for completions before it goes).
        let full = unsafe { self.uring.submission().push(entry) }.is_err();
        if full {
            // Only if the kernel refused to take entries for a while: make room, at the price of one
            // more system call.
            self.enter();
            // SAFETY: as above.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                tracing::error!("io_uring submission queue stuck");
                return;
            }
        }
        self.queued += 1;
    }

    /// One system call, or none.
    #[inline]
    pub(super) fn submit_batch(&mut self) {
        if self.queued > 0 {
            self.enter();
        }
        if self.closed.load(Ordering::Acquire) > 0 {
            self.forget_closed();
        }
    }

    fn enter(&mut self) {
        self.enters += 1;
        // EINTR, EAGAIN and EBUSY leave entries in the queue; the next batch takes them along.
        let result = self.uring.submit();
        self.queued = self.uring.submission().len() as u32;
        match result.as_ref().map_err(io::Error::raw_os_error) {
            Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(errno) => tracing::error!(?errno, "io_uring_enter failed"),
        }
    }

    /// Sleeps until at least one completion is there. Only for the end of a context.
    pub(super) fn wait(&mut self) {
        self.enters += 1;
        let _ = self.uring.submit_and_wait(1);
        self.queued = self.uring.submission().len() as u32;
    }

    /// Takes completions from the shared ring; no system call.
    #[inline]
    pub(super) fn reap(
        &mut self,
        slots: &mut Slots,
        sink: &mut impl FnMut(Token, Result<(), StorageError>),
    ) -> u32 {
        let mut reaped = 0;
        loop {
            // One at a time: what follows may need the ring for the rest of a short transfer.
            let Some(completion) = self.uring.completion().next() else { return reaped };
            let user_data = completion.user_data();
            if user_data == IGNORED {
                continue;
            }
            let index = user_data as u32;
            let Work::Ring(work) = slots.get(index).work else { continue };
            let Some(result) = self.complete(slots, index, work, completion.result()) else { continue };
            if let Some(Some(file)) = self.files.get_mut(work.file as usize) {
                file.in_flight -= 1;
                if matches!(work.kind, RingKind::Write { .. }) {
                    file.shared.gate.leave();
                }
                if matches!(work.kind, RingKind::Flush | RingKind::Write { fua: true }) {
                    let _ = file.shared.lost_flush.note(result, &file.shared.path);
                }
            }
            reaped += 1;
            sink(slots.release(index), result);
        }
    }

    #[inline]
    fn complete(
        &mut self,
        slots: &mut Slots,
        index: u32,
        work: RingWork,
        result: i32,
    ) -> Option<Result<(), StorageError>> {
        let Ok(done) = u64::try_from(result) else {
            let errno = -result;
            if matches!(errno, libc::EINTR | libc::EAGAIN) {
                if slots.get(index).cancelled {
                    return Some(Err(StorageError::Cancelled));
                }
                self.push_work(slots, index, work);
                return None;
            }
            return Some(Err(StorageError::from_errno(errno)));
        };
        if matches!(work.kind, RingKind::Flush) || done == work.len_bytes {
            return Some(Ok(()));
        }
        self.carry_on(slots, index, work, done)
    }

    /// After a short transfer: the rest again, unless the file ends here.
    #[cold]
    fn carry_on(
        &mut self,
        slots: &mut Slots,
        index: u32,
        work: RingWork,
        done: u64,
    ) -> Option<Result<(), StorageError>> {
        let left = RingWork {
            offset_bytes: work.offset_bytes + done,
            len_bytes: work.len_bytes.saturating_sub(done),
            ..work
        };
        slots.advance(index, done as usize);
        slots.get(index).work = Work::Ring(left);
        if slots.get(index).cancelled {
            return Some(Err(StorageError::Cancelled));
        }
        let Some(Some(file)) = self.files.get(work.file as usize) else {
            return Some(Err(StorageError::Io(libc::EBADF)));
        };
        let aligned = left.offset_bytes.is_multiple_of(u64::from(file.shared.alignment.offset_bytes));
        if done > 0 && aligned {
            self.push_work(slots, index, left);
            return None;
        }
        if matches!(work.kind, RingKind::Write { .. }) {
            return Some(Err(StorageError::Io(libc::EIO)));
        }
        if !file.shared.ends_within(left.offset_bytes, left.len_bytes) {
            return Some(Err(StorageError::Io(libc::EIO)));
        }
        for segment in slots.segments(index) {
            // SAFETY: a segment of a read: writable and alive until the command completes.
            unsafe { std::ptr::write_bytes(segment.iov_base.cast::<u8>(), 0, segment.iov_len) };
        }
        Some(Ok(()))
    }

    /// Asks the kernel to give up on a slot.
    pub(super) fn cancel(&mut self, index: u32) {
        self.push(&opcode::AsyncCancel::new(u64::from(index)).build().user_data(IGNORED));
    }

    /// Whether a completion waits to be reaped.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    pub(super) fn enters(&self) -> u64 {
        self.enters
    }
}

impl Drop for Ring {
    /// Lets go of the files now; closing the ring itself would do so later, in the background.
    fn drop(&mut self) {
        let _ = self.uring.submitter().unregister_files();
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("queued", &self.queued)
            .field("enters", &self.enters)
            .finish_non_exhaustive()
    }
}

fn sync_flag(fua: bool) -> i32 {
    if fua { libc::RWF_DSYNC } else { 0 }
}

/// More than the kernel moves in one go anyway; the rest is carried on.
fn clamp(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
