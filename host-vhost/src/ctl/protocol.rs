//! What the control socket speaks, version 1.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// What to do.
    #[serde(flatten)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// Report the counters.
    Stat,
    /// Add a namespace.
    NamespaceAdd {
        /// As on the command line: `ram=1G`.
        spec: String,
    },
    /// Go on in another engine.
    Upgrade {
        /// The file of the module that a sandbox is to run; without it the controller runs in the server itself.
        module: Option<PathBuf>,
    },
    /// Remove a namespace.
    NamespaceRemove {
        /// Its identifier.
        nsid: u32,
    },
    /// Change the size of a namespace.
    NamespaceResize {
        /// Its identifier.
        nsid: u32,
        /// The new size in bytes.
        size_bytes: u64,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub version: u32,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was done.
    Ok(Answer),
    /// It wasn't; the text says why and what to do.
    Error(String),
}

/// The answer to a request that was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Command::Stat`], by an NVMe controller.
    Stat(Box<Statistics>),
    /// To [`Command::Stat`], by a virtio disk.
    Disk(Box<DiskStatistics>),
    /// To [`Command::Upgrade`].
    Upgraded {
        /// Where the controller runs now.
        engine: String,
        /// The longest time that the controller or one of its queue groups stood still, in nanoseconds.
        pause_ns: u64,
    },
    /// To a change of namespaces.
    Namespace {
        /// Its identifier.
        nsid: u32,
    },
}

/// Counters of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// A client is attached.
    pub connected: bool,
    /// Clients attached so far.
    pub connections: u64,
    /// Where the controller runs: `native`, or `sandbox` and the module's file.
    #[serde(default)]
    pub engine: String,
    /// CSTS.RDY.
    pub ready: bool,
    /// Shadow doorbells are active.
    pub shadow_doorbells: bool,
    /// `mapped` or `shadow`.
    pub doorbells: String,
    /// Doorbell writes that came as messages, admin queue included.
    pub doorbell_messages: u64,
    /// Those for I/O queues.
    pub io_doorbell_messages: u64,
    /// Open ioeventfds.
    pub ioeventfds: u64,
    /// Interrupts raised, over all vectors.
    pub interrupts: u64,
    /// Completed Read, Compare and Verify commands since the server started, over all queues that ever were.
    pub read_commands: u64,
    /// Completed Write commands since the server started.
    pub write_commands: u64,
    /// Namespaces.
    pub namespaces: Vec<NamespaceStatistics>,
    /// Queues.
    pub queues: Vec<QueueStatistics>,
    /// Pollers.
    pub pollers: Vec<PollerStatistics>,
}

/// Counters of a virtio disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStatistics {
    /// `vhost-user`.
    pub protocol: String,
    /// A frontend is attached.
    pub connected: bool,
    /// Frontends attached so far.
    pub connections: u64,
    /// The disk.
    pub disk: NamespaceStatistics,
    /// Queues that run or ever ran.
    pub queues: Vec<DiskQueueStatistics>,
    /// Pollers.
    pub pollers: Vec<PollerStatistics>,
}

/// A request queue of a virtio disk, since the server started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskQueueStatistics {
    /// Its index.
    pub queue: u16,
    /// The poller that serves it.
    pub poller: u16,
    /// It runs now.
    pub running: bool,
    /// Completed requests.
    pub requests: u64,
    /// Those that failed.
    pub errors: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Times the driver kicked.
    pub kicks: u64,
    /// Times the driver was notified of completions.
    pub notifications: u64,
    /// Requests in the latency sample by power of two of nanoseconds.
    pub latency_ns_log2: Vec<u64>,
    /// Median of the sample, in nanoseconds (the upper end of its bucket).
    pub latency_p50_ns: Option<u64>,
    /// 99th percentile of the sample, in nanoseconds.
    pub latency_p99_ns: Option<u64>,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceStatistics {
    /// Namespace identifier.
    pub nsid: u32,
    /// The kind of its storage.
    pub kind: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its logical block size in bytes.
    pub block_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
}

/// A submission queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueStatistics {
    /// Submission queue identifier.
    pub sqid: u16,
    /// Its completion queue.
    pub cqid: u16,
    /// The queue group, and so the poller, that serves it.
    pub group: u16,
    /// Completed commands.
    pub commands: u64,
    /// Those that failed.
    pub errors: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Doorbell writes for this queue's tail and its completion queue's head that came as messages.
    pub doorbell_messages: u64,
    /// Times the tail doorbell, register or shadow, was looked at.
    pub doorbell_reads: u64,
    /// Times the poller armed EventIdx and could sleep.
    pub rearms_won: u64,
    /// Times the guest was faster.
    pub rearms_lost: u64,
    /// Times a command waited for an entry of the completion queue.
    pub cq_full: u64,
    /// Interrupts of the completion queue.
    pub interrupts: u64,
    /// Commands in the latency sample by power of two of nanoseconds.
    pub latency_ns_log2: Vec<u64>,
    /// Median of the sample, in nanoseconds (the upper end of its bucket).
    pub latency_p50_ns: Option<u64>,
    /// 99th percentile of the sample, in nanoseconds.
    pub latency_p99_ns: Option<u64>,
}

/// A poller thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PollerStatistics {
    /// Times it napped or slept.
    pub sleeps: u64,
    /// Times another thread had to wake it.
    pub wakes: u64,
    /// Calls of `io_uring_enter`.
    pub io_uring_enters: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_plain_json_objects() {
        let request = Request { version: 1, command: Command::NamespaceResize { nsid: 2, size_bytes: 4096 } };
        let text = r#"{"version":1,"command":"namespace-resize","nsid":2,"size_bytes":4096}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let reply = Reply { version: 1, outcome: Outcome::Ok(Answer::Namespace { nsid: 3 }) };
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), reply);
    }
}
