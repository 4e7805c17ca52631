//! The way from a virtqueue to its storage: straight, or through a queue group.

use super::controlled::ControlledQueue;
use crate::storage::{IoContext, StorageCommand, StorageError, StorageQueue, Submission, Token};

/// See the module.
#[derive(Debug)]
pub(super) enum Medium {
    /// Straight to the storage, which is fastest.
    Direct(StorageQueue),
    /// Through a queue group, which may run in a sandbox.
    Controlled(Box<ControlledQueue>),
}

impl Medium {
    /// As [`StorageQueue::submit`].
    #[inline]
    pub(super) fn submit(&mut self, context: &mut IoContext, command: &StorageCommand<'_>) -> Submission {
        match self {
            Self::Direct(storage) => storage.submit(context, command),
            Self::Controlled(queue) => queue.submit(context, command),
        }
    }

    /// What a token that was reaped means to the virtqueues: the end of a request of theirs, or `None` where that
    /// isn't over yet.
    #[inline]
    pub(super) fn reaped(
        &mut self,
        context: &mut IoContext,
        token: Token,
        result: Result<(), StorageError>,
    ) -> Option<(Token, Result<(), StorageError>)> {
        match self {
            Self::Direct(_) => Some((token, result)),
            Self::Controlled(queue) => queue.reaped(context, token, result),
        }
    }

    /// Tries again what the storage had no room for.
    #[inline]
    pub(super) fn retry(
        &mut self,
        context: &mut IoContext,
        ended: &mut Vec<(Token, Result<(), StorageError>)>,
    ) {
        if let Self::Controlled(queue) = self {
            queue.retry(context, ended);
        }
    }

    /// Whether something waits for [`Medium::retry`], so that its poller mustn't sleep for long.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        matches!(self, Self::Controlled(queue) if queue.has_waiting())
    }

    /// The driver begins anew, and nothing of it is in flight.
    pub(super) fn restart(&mut self) {
        if let Self::Controlled(queue) = self {
            queue.restart();
        }
    }
}
