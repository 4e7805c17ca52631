//! The demo's tables.

use std::time::Duration;

use super::silence::{SILENCE, Silence};

/// Depths of the first table.
pub(super) const DEPTHS: [u32; 4] = [1, 4, 16, 64];

/// Depths of the table without data.
pub(super) const NULL_DEPTHS: [u32; 5] = [1, 4, 16, 64, 128];

/// One way to ring doorbells, measured.
#[derive(Clone, Debug)]
pub(super) struct MethodRow {
    pub(super) name: &'static str,
    /// Commands a second by depth, for reads and writes.
    pub(super) reads: Vec<f64>,
    pub(super) writes: Vec<f64>,
    /// Register writes per 1,000 commands over the whole row.
    pub(super) register_writes: f64,
}

/// One transfer size, measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeRow {
    pub(super) len_bytes: u32,
    pub(super) prp: Duration,
    pub(super) sgl: Duration,
    pub(super) memcpy: Duration,
    pub(super) memcpy_pages: Duration,
}

/// Prints commands a second and mean latency by doorbell method and depth.
pub(super) fn print_methods(rows: &[MethodRow]) {
    println!("\n4 KiB random I/O, thousand commands a second (mean latency in us = depth / rate):");
    print!("{:34}", "");
    for operation in ["read", "write"] {
        for depth in DEPTHS {
            print!("{:>15}", format!("{operation} qd {depth}"));
        }
    }
    println!("{:>18}", "doorbell writes");
    for row in rows {
        print!("{:34}", row.name);
        for rates in [&row.reads, &row.writes] {
            for (rate, depth) in rates.iter().zip(DEPTHS) {
                let latency_us = f64::from(depth) / rate * 1e6;
                print!("{:>15}", format!("{:.0} ({latency_us:.1})", rate / 1e3));
            }
        }
        println!("{:>18}", format!("{:.1} per 1000", row.register_writes));
    }
}

/// Prints what silence costs by doorbell method.
pub(super) fn print_silences(rows: &[(&str, Silence)]) {
    println!("\nAfter {} ms of silence:", SILENCE.as_millis());
    for (name, silence) in rows {
        println!(
            "{name:34}the first 4 KiB read takes {:.0} us; meanwhile the poller used {:.2} % of a processor",
            silence.first_command.as_secs_f64() * 1e6,
            silence.poller_share * 100.0
        );
    }
}

/// Prints commands a second of a namespace that moves no data.
pub(super) fn print_null(rates: &[f64]) {
    println!("\nThe protocol alone (a null namespace, mapped doorbells), thousand commands a second:");
    for (rate, depth) in rates.iter().zip(NULL_DEPTHS) {
        print!("   qd {depth}: {:.0}", rate / 1e3);
    }
    println!();
}

/// Prints the time of one large read by PRP and by SGL beside the machine's own copy.
pub(super) fn print_sizes(rows: &[SizeRow]) {
    println!("\nLarge reads, us each at depth 1 (GiB/s):");
    println!(
        "{:>10}{:>20}{:>20}{:>24}{:>26}",
        "size", "PRP", "SGL", "memcpy, one piece", "memcpy, pages apart"
    );
    for row in rows {
        let cell = |time: Duration| {
            let gib = f64::from(row.len_bytes) / (1u64 << 30) as f64 / time.as_secs_f64();
            format!("{:.1} ({gib:.1})", time.as_secs_f64() * 1e6)
        };
        println!(
            "{:>10}{:>20}{:>20}{:>24}{:>26}",
            format!("{} KiB", row.len_bytes >> 10),
            cell(row.prp),
            cell(row.sgl),
            cell(row.memcpy),
            cell(row.memcpy_pages)
        );
    }
}
