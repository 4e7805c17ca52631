//! What a person asks of a running disk at its control socket: counters, another size.

use std::fmt::{self, Debug, Formatter};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::disk::Disk;
use super::poller::{BlkPoller, PollerReport};
use crate::ctl::protocol::{
    Answer, Command, DiskQueueStatistics, DiskStatistics, NamespaceStatistics, PollerStatistics,
};
use crate::ctl::server::ControlSocket;
use crate::vfio_user::listener::ListenError;

/// The one namespace that a disk is.
const NSID: u32 = 1;
/// How long a poller may take to report.
const PATIENCE: Duration = Duration::from_secs(20);

/// The parts of a server that answer.
pub(super) struct Operator {
    pub(super) disk: Arc<Disk>,
    pub(super) pollers: Arc<[BlkPoller]>,
    /// Whether there is a frontend, and how many there were.
    pub(super) presence: Box<dyn Fn() -> (bool, u64) + Send>,
}

impl Debug for Operator {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("disk", &self.disk).finish_non_exhaustive()
    }
}

impl Operator {
    /// Answers at the control socket beside `path`.
    pub(super) fn listen(self, path: &Path) -> Result<ControlSocket, ListenError> {
        ControlSocket::listen(&crate::ctl::path_of(path), move |command| match command {
            Command::Stat => self.statistics().map(|statistics| Answer::Disk(Box::new(statistics))),
            Command::NamespaceResize { nsid: NSID, size_bytes } => self.resize(size_bytes),
            Command::NamespaceResize { nsid, .. } => {
                Err(format!("a vhost-user disk has one namespace, {NSID}; there is no namespace {nsid}"))
            }
            Command::Upgrade { .. } => {
                Err("a virtio disk can't be upgraded while it runs: restart its server; NVMe devices can"
                    .into())
            }
            Command::NamespaceAdd { .. } | Command::NamespaceRemove { .. } => {
                Err("a vhost-user disk has one namespace for good; serve another disk beside it".into())
            }
        })
    }

    /// Grows the disk and tells the frontend, which tells its guest. Never smaller: a guest may have requests under
    /// way behind the new end, and data there.
    fn resize(&self, size_bytes: u64) -> Result<Answer, String> {
        let (storage, block_bytes) = (&self.disk.storage, self.disk.block_bytes());
        let present = storage.size_bytes();
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(format!("{size_bytes} bytes is no whole number of blocks of {block_bytes}"));
        }
        if size_bytes < present {
            return Err(format!(
                "a virtio disk can't shrink while it is served: it has {present} bytes; stop the guest and this \
                 server, and serve a smaller image"
            ));
        }
        storage.resize(size_bytes).map_err(|error| error.to_string())?;
        if !self.disk.announce_capacity() {
            tracing::warn!(
                "the frontend takes no messages, so its guest sees the new size when it starts again"
            );
        }
        Ok(Answer::Namespace { nsid: NSID })
    }

    fn statistics(&self) -> Result<DiskStatistics, String> {
        // All are asked before any is waited for.
        let asked: Vec<_> = self.pollers.iter().map(BlkPoller::report).collect();
        let mut statistics = DiskStatistics { protocol: "vhost-user".into(), ..DiskStatistics::default() };
        for ((index, poller), asked) in (0..).zip(self.pollers.iter()).zip(asked) {
            let report = asked.recv_timeout(PATIENCE).map_err(|_| {
                format!("poller {index} didn't answer in {PATIENCE:?}: is its storage stuck?")
            })?;
            statistics.pollers.push(PollerStatistics {
                sleeps: report.sleeps,
                wakes: poller.wakes(),
                io_uring_enters: report.enters,
            });
            statistics.queues.extend(queues(index, &report));
        }
        statistics.queues.sort_by_key(|queue| queue.queue);
        (statistics.connected, statistics.connections) = (self.presence)();
        let storage = &self.disk.storage;
        statistics.disk = NamespaceStatistics {
            nsid: NSID,
            kind: storage.kind().to_owned(),
            size_bytes: storage.size_bytes(),
            block_bytes: self.disk.block_bytes(),
            read_only: storage.read_only(),
        };
        Ok(statistics)
    }
}

fn queues(poller: u16, report: &PollerReport) -> impl Iterator<Item = DiskQueueStatistics> {
    report.queues.iter().map(move |(&queue, counters)| {
        let nanoseconds = |quantile| counters.latency.quantile(quantile).map(|time| time.as_nanos() as u64);
        DiskQueueStatistics {
            queue,
            poller,
            running: report.running.contains(&queue),
            requests: counters.requests,
            errors: counters.errors,
            bytes_read: counters.bytes_read,
            bytes_written: counters.bytes_written,
            kicks: counters.kicks,
            notifications: counters.notifications,
            latency_ns_log2: counters.latency.buckets().to_vec(),
            latency_p50_ns: nanoseconds(0.5),
            latency_p99_ns: nanoseconds(0.99),
        }
    })
}
