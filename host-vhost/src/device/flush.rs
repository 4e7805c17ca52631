//! Making everything durable, off the I/O path: at a guest's shutdown and at the end of the process.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::storage::{
    IoContext, IoContextConfig, Operation, Storage, StorageCommand, StorageError, Submission,
};

/// Flushes each storage and waits for it. The calling thread sleeps meanwhile.
///
/// # Errors
/// The first error; the other storages are flushed all the same.
pub fn flush_all(storages: &[Arc<dyn Storage>]) -> Result<(), StorageError> {
    let mut outcome = Ok(());
    for storage in storages.iter().filter(|storage| storage.volatile_cache()) {
        outcome = outcome.and(flush(storage));
    }
    outcome
}

fn flush(storage: &Arc<dyn Storage>) -> Result<(), StorageError> {
    let mut context = IoContext::new(IoContextConfig { slots: 4, max_segments: 4 })
        .map_err(|_| StorageError::Io(libc::ENOMEM))?;
    let mut queue = storage.open_queue(&mut context).map_err(|_| StorageError::Io(libc::ENOMEM))?;
    let command = StorageCommand::without_data(0, Operation::Flush, 0, 0);
    match queue.submit(&mut context, &command) {
        Submission::Complete(result) => return result,
        Submission::Busy => return Err(StorageError::Io(libc::EAGAIN)),
        Submission::Queued => {}
    }
    let mut outcome = None;
    while outcome.is_none() {
        context.submit_batch();
        context.reap(&mut |_, result| outcome = Some(result));
        if outcome.is_none() && context.prepare_sleep() {
            let timeout = Timespec::try_from(Duration::from_millis(100)).ok();
            // Whatever ends the wait, the completion is looked for again.
            let _ = poll(&mut [PollFd::from_borrowed_fd(context.wake_fd(), PollFlags::IN)], timeout.as_ref());
        }
        context.finish_sleep();
    }
    outcome.unwrap_or(Ok(()))
}
