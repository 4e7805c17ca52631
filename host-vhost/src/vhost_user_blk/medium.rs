//! The way from a virtqueue to its storage: straight, or through a queue group.

use doorbell_core::controller::{Ascii, ControllerConfig};

use super::controlled::{ControlledQueue, MDTS_BYTES};
use crate::engine::{EngineSource, Hosting, HostingError};
use crate::storage::{IoContext, StorageCommand, StorageError, StorageQueue, Submission, Token};

/// What a disk is served with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataPath {
    /// Straight.
    #[default]
    Direct,
    /// As NVMe commands through a queue group that runs there.
    QueueGroup(Hosting),
}

impl DataPath {
    /// Straight, unless a sandbox is asked for.
    #[must_use]
    pub fn for_hosting(hosting: Hosting) -> Self {
        match hosting {
            Hosting::Native => Self::Direct,
            Hosting::Sandbox(_) => Self::QueueGroup(hosting),
        }
    }

    /// Where the queue groups of a disk's pollers come from, if it has any.
    ///
    /// # Errors
    /// See [`HostingError`].
    pub(super) fn groups(&self, serial: &str) -> Result<Option<EngineSource>, HostingError> {
        let Self::QueueGroup(hosting) = self else { return Ok(None) };
        let config = ControllerConfig {
            mdts_bytes: MDTS_BYTES,
            serial: Ascii::lossy(serial),
            ..ControllerConfig::DEFAULT
        };
        EngineSource::new(hosting, config, false).map(Some)
    }
}

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
