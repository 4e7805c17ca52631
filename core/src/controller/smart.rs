//! SMART / Health Information: counters that outlive resets, and the host too where it keeps them
//! (NVM Express Base Specification 2.0, section 5.16.1.3).

use crate::message::GroupStatistics;
use crate::spec::log::SmartInformation;

/// Warning Composite Temperature Threshold (WCTEMP), in kelvins: 70 degrees Celsius.
pub(super) const WARNING_TEMPERATURE: u16 = 343;
/// Critical Composite Temperature Threshold (CCTEMP), in kelvins: 80 degrees Celsius.
pub(super) const CRITICAL_TEMPERATURE: u16 = 353;
/// What the composite temperature is unless the host knows better, in kelvins: 40 degrees Celsius.
const COMPOSITE_TEMPERATURE: u16 = 313;

/// Critical Warning bit 1: a temperature is past a threshold.
pub(super) const WARNING_BIT_TEMPERATURE: u8 = 1 << 1;

/// Counters over the life of the controller, for the host to keep and give back after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmartCounters {
    /// Bytes that Read, Compare and Verify commands read.
    pub bytes_read: u64,
    /// Bytes that Write commands wrote.
    pub bytes_written: u64,
    /// Completed Read, Compare and Verify commands.
    pub read_commands: u64,
    /// Completed Write commands.
    pub write_commands: u64,
    /// Nanoseconds with an I/O command in flight, as far as the host measured them.
    pub busy_ns: u64,
    /// Times the controller was powered on.
    pub power_cycles: u64,
    /// Nanoseconds powered on.
    pub power_on_ns: u64,
    /// Times the guest went away without a shutdown.
    pub unsafe_shutdowns: u64,
    /// Commands that ended with a media or data integrity error.
    pub media_errors: u64,
    /// Entries ever put into the Error Information log.
    pub error_log_entries: u64,
}

/// The counters of earlier lives and what this one adds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Smart {
    base: SmartCounters,
    started_ns: Option<u64>,
    now_ns: u64,
    temperature: u16,
}

impl Smart {
    /// Counters, time and temperature 0.
    pub(super) const fn blank() -> Self {
        let base = SmartCounters {
            bytes_read: 0,
            bytes_written: 0,
            read_commands: 0,
            write_commands: 0,
            busy_ns: 0,
            power_cycles: 0,
            power_on_ns: 0,
            unsafe_shutdowns: 0,
            media_errors: 0,
            error_log_entries: 0,
        };
        Self { base, started_ns: None, now_ns: 0, temperature: 0 }
    }

    /// The first life.
    pub(super) const fn new() -> Self {
        let mut smart = Self::blank();
        smart.base.power_cycles = 1;
        smart.temperature = COMPOSITE_TEMPERATURE;
        smart
    }

    pub(super) fn continue_from(&mut self, counters: SmartCounters) {
        self.base = SmartCounters {
            power_cycles: counters.power_cycles.saturating_add(1),
            error_log_entries: 0,
            ..counters
        };
    }

    pub(super) fn tick(&mut self, now_ns: u64) {
        if self.started_ns.is_none() {
            self.started_ns = Some(now_ns);
        }
        self.now_ns = now_ns;
    }

    pub(super) fn count_unsafe_shutdown(&mut self) {
        self.base.unsafe_shutdowns = self.base.unsafe_shutdowns.saturating_add(1);
    }

    pub(super) fn add_busy_time(&mut self, busy_ns: u64) {
        self.base.busy_ns = self.base.busy_ns.saturating_add(busy_ns);
    }

    pub(super) const fn temperature(&self) -> u16 {
        self.temperature
    }

    pub(super) fn set_temperature(&mut self, kelvins: u16) {
        self.temperature = kelvins;
    }

    /// The counters as of now.
    pub(super) fn counters(&self, groups: &[GroupStatistics], error_log_entries: u64) -> SmartCounters {
        let on_ns = self.started_ns.map_or(0, |started_ns| self.now_ns.saturating_sub(started_ns));
        let mut sum = SmartCounters {
            power_on_ns: self.base.power_on_ns.saturating_add(on_ns),
            error_log_entries,
            ..self.base
        };
        for group in groups {
            sum.bytes_read = sum.bytes_read.saturating_add(group.bytes_read);
            sum.bytes_written = sum.bytes_written.saturating_add(group.bytes_written);
            sum.read_commands = sum.read_commands.saturating_add(group.read_commands);
            sum.write_commands = sum.write_commands.saturating_add(group.write_commands);
            sum.media_errors = sum.media_errors.saturating_add(group.media_errors);
        }
        sum
    }

    /// The log page.
    pub(super) fn page(&self, counters: SmartCounters, critical_warning: u8) -> SmartInformation {
        const MINUTE_NS: u64 = 60_000_000_000;
        const HOUR_NS: u64 = 60 * MINUTE_NS;
        SmartInformation {
            critical_warning,
            composite_temperature: self.temperature.into(),
            available_spare: 100,
            available_spare_threshold: 10,
            data_units_read: data_units(counters.bytes_read).into(),
            data_units_written: data_units(counters.bytes_written).into(),
            host_read_commands: u128::from(counters.read_commands).into(),
            host_write_commands: u128::from(counters.write_commands).into(),
            controller_busy_time: u128::from(counters.busy_ns / MINUTE_NS).into(),
            power_cycles: u128::from(counters.power_cycles).into(),
            power_on_hours: u128::from(counters.power_on_ns / HOUR_NS).into(),
            unsafe_shutdowns: u128::from(counters.unsafe_shutdowns).into(),
            media_errors: u128::from(counters.media_errors).into(),
            error_log_entries: u128::from(counters.error_log_entries).into(),
            ..SmartInformation::default()
        }
    }
}

/// Thousands of 512-byte units, rounded up.
fn data_units(bytes: u64) -> u128 {
    u128::from(bytes.div_ceil(512_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_units_are_thousands_of_512_bytes_rounded_up() {
        assert_eq!([0, 1, 512_000, 512_001].map(data_units), [0, 1, 1, 2]);
    }

    #[test]
    fn counters_go_on_after_a_restart() {
        let mut smart = Smart::new();
        smart.continue_from(SmartCounters { power_cycles: 4, power_on_ns: 100, ..SmartCounters::default() });
        smart.tick(1_000);
        smart.tick(1_050);
        let counters = smart.counters(&[], 0);
        assert_eq!((counters.power_cycles, counters.power_on_ns), (5, 150));
    }
}
