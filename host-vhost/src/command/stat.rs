//! `doorbell stat`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use doorbell_vhost::ctl::client::ask;
use doorbell_vhost::ctl::protocol::{
    Answer, Command, DiskStatistics, NamespaceStatistics, PollerStatistics, Statistics,
};

#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// The device's socket, as given to `doorbell serve`.
    socket: PathBuf,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

impl Stat {
    pub(crate) fn run(self) -> Result<()> {
        match ask(&self.socket, Command::Stat)? {
            Answer::Stat(statistics) if self.json => {
                println!("{}", serde_json::to_string_pretty(&statistics)?)
            }
            Answer::Disk(statistics) if self.json => {
                println!("{}", serde_json::to_string_pretty(&statistics)?)
            }
            Answer::Stat(statistics) => print(&statistics),
            Answer::Disk(statistics) => print_disk(&statistics),
            Answer::Namespace { .. } | Answer::Upgraded { .. } => {
                bail!("the server answered another question; is it of another version?")
            }
        }
        Ok(())
    }
}

/// Nanoseconds as microseconds.
fn micros(ns: Option<u64>) -> String {
    ns.map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1000.0))
}

fn print(statistics: &Statistics) {
    let Statistics { connected, connections, ready, shadow_doorbells, doorbells, engine, .. } = statistics;
    println!(
        "client {} ({connections} so far), controller {} ({engine}), doorbells {doorbells}{}",
        if *connected { "attached" } else { "absent" },
        if *ready { "ready" } else { "not ready" },
        if *shadow_doorbells { ", shadow doorbells active" } else { "" },
    );
    println!(
        "doorbell messages {} (I/O queues {}), ioeventfds {}, interrupts {}",
        statistics.doorbell_messages,
        statistics.io_doorbell_messages,
        statistics.ioeventfds,
        statistics.interrupts
    );
    println!(
        "reads {}, writes {} since the server started",
        statistics.read_commands, statistics.write_commands
    );
    statistics.namespaces.iter().for_each(print_namespace);
    println!(
        "{:>4} {:>4} {:>5} {:>12} {:>7} {:>15} {:>15} {:>9} {:>12} {:>9} {:>9} {:>8} {:>10} {:>9} {:>9}",
        "SQ",
        "CQ",
        "group",
        "commands",
        "errors",
        "read B",
        "written B",
        "messages",
        "db reads",
        "armed",
        "rearmed",
        "CQ full",
        "interrupts",
        "p50 us",
        "p99 us"
    );
    for queue in &statistics.queues {
        println!(
            "{:>4} {:>4} {:>5} {:>12} {:>7} {:>15} {:>15} {:>9} {:>12} {:>9} {:>9} {:>8} {:>10} {:>9} {:>9}",
            queue.sqid,
            queue.cqid,
            queue.group,
            queue.commands,
            queue.errors,
            queue.bytes_read,
            queue.bytes_written,
            queue.doorbell_messages,
            queue.doorbell_reads,
            queue.rearms_won,
            queue.rearms_lost,
            queue.cq_full,
            queue.interrupts,
            micros(queue.latency_p50_ns),
            micros(queue.latency_p99_ns)
        );
    }
    print_pollers(&statistics.pollers);
}

fn print_disk(statistics: &DiskStatistics) {
    let DiskStatistics { protocol, connected, connections, disk, queues, pollers } = statistics;
    let client = if *connected { "attached" } else { "absent" };
    println!("{protocol} frontend {client} ({connections} so far)");
    print_namespace(disk);
    println!(
        "{:>5} {:>6} {:>7} {:>12} {:>7} {:>15} {:>15} {:>10} {:>13} {:>9} {:>9}",
        "queue",
        "poller",
        "state",
        "requests",
        "errors",
        "read B",
        "written B",
        "kicks",
        "notifications",
        "p50 us",
        "p99 us"
    );
    for queue in queues {
        println!(
            "{:>5} {:>6} {:>7} {:>12} {:>7} {:>15} {:>15} {:>10} {:>13} {:>9} {:>9}",
            queue.queue,
            queue.poller,
            if queue.running { "runs" } else { "stopped" },
            queue.requests,
            queue.errors,
            queue.bytes_read,
            queue.bytes_written,
            queue.kicks,
            queue.notifications,
            micros(queue.latency_p50_ns),
            micros(queue.latency_p99_ns)
        );
    }
    print_pollers(pollers);
}

fn print_namespace(namespace: &NamespaceStatistics) {
    let access = if namespace.read_only { "read-only" } else { "read-write" };
    println!(
        "namespace {}: {} of {} bytes, blocks of {}, {access}",
        namespace.nsid, namespace.kind, namespace.size_bytes, namespace.block_bytes
    );
}

fn print_pollers(pollers: &[PollerStatistics]) {
    for (index, poller) in pollers.iter().enumerate() {
        println!(
            "poller {index}: rests {}, woken {}, io_uring enters {}",
            poller.sleeps, poller.wakes, poller.io_uring_enters
        );
    }
}
