//! Latency histograms that cost a few nanoseconds a command.

use std::time::Duration;

/// Buckets: bucket `i` counts latencies of `[2^i, 2^(i+1))` nanoseconds, the last one everything above.
pub const BUCKETS: usize = 36;

/// A histogram with a bucket for each power of two of nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    buckets: [u64; BUCKETS],
}

impl Latency {
    /// An empty histogram.
    #[must_use]
    pub const fn new() -> Self {
        Self { buckets: [0; BUCKETS] }
    }

    /// Counts `count` commands that took `elapsed_ns` each.
    #[inline]
    pub fn record(&mut self, elapsed_ns: u64, count: u64) {
        let bucket = (63 - (elapsed_ns | 1).leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += count;
    }

    /// Counts what `other` has counted.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, count)| *sum += count);
    }

    /// Counts by bucket.
    #[must_use]
    pub fn buckets(&self) -> &[u64; BUCKETS] {
        &self.buckets
    }

    /// The upper end of the bucket that `quantile` (0 to 1) of the commands fall into or below, or `None`
    /// where nothing was counted.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let total: u64 = self.buckets.iter().sum();
        if total == 0 {
            return None;
        }
        let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Some(Duration::from_nanos(2u64 << bucket));
            }
        }
        None
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        let mut latency = Latency::new();
        assert_eq!(latency.quantile(0.5), None);
        latency.record(0, 1);
        latency.record(1000, 98);
        latency.record(u64::MAX, 1);
        assert_eq!(latency.quantile(0.5), Some(Duration::from_nanos(1024)));
        assert_eq!(latency.quantile(0.01), Some(Duration::from_nanos(2)));
        assert_eq!(latency.buckets()[BUCKETS - 1], 1);
    }
}
