//! What a queue has done. One thread counts, so these are plain numbers; a poller hands out copies.

use crate::poller::idle::now_ns;
use crate::poller::latency::Latency;

/// Requests of which one's latency is measured: the clock costs more than a request's other counters together.
const LATENCY_SAMPLE: u32 = 32;

/// Counters of a queue since the server started.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueCounters {
    pub(super) requests: u64,
    /// Those whose status wasn't OK.
    pub(super) errors: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    /// Times the driver kicked.
    pub(super) kicks: u64,
    /// Times the driver was called.
    pub(super) notifications: u64,
    /// Of a sample, from the available ring to the used ring.
    pub(super) latency: Latency,
    /// Requests until the next one of the sample.
    until_sample: u32,
    /// The head of a request that is measured, and when it was taken.
    measured: Option<(u16, u64)>,
}

impl QueueCounters {
    /// A request was taken.
    #[inline]
    pub(super) fn took(&mut self, head: u16) {
        if self.until_sample > 0 {
            self.until_sample -= 1;
        } else if self.measured.is_none() {
            self.until_sample = LATENCY_SAMPLE - 1;
            self.measured = Some((head, now_ns()));
        }
    }

    /// A request has ended: `read` and `written` are the bytes that it moved.
    #[inline]
    pub(super) fn ended(&mut self, head: u16, ok: bool, read: u64, written: u64) {
        self.requests += 1;
        self.errors += u64::from(!ok);
        self.bytes_read += read;
        self.bytes_written += written;
        if let Some((measured, started_ns)) = self.measured
            && measured == head
        {
            self.latency.record(now_ns().saturating_sub(started_ns), 1);
            self.measured = None;
        }
    }

    /// A request won't end.
    pub(super) fn forgot(&mut self, head: u16) {
        self.measured = self.measured.filter(|(measured, _)| *measured != head);
    }

    /// The sum of both.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.kicks += other.kicks;
        self.notifications += other.notifications;
        self.latency.add(&other.latency);
    }
}
