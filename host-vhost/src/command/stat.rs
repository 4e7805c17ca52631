//! `doorbell stat`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use doorbell_vhost::ctl::client::ask;
use doorbell_vhost::ctl::protocol::{Answer, Command, Statistics};

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
        let Answer::Stat(statistics) = ask(&self.socket, Command::Stat)? else {
            bail!("the server answered another question; is it of another version?");
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&statistics)?);
        } else {
            print(&statistics);
        }
        Ok(())
    }
}

fn print(statistics: &Statistics) {
    let Statistics { connected, connections, ready, shadow_doorbells, doorbells, .. } = statistics;
    println!(
        "client {} ({connections} so far), controller {}, doorbells {doorbells}{}",
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
    for namespace in &statistics.namespaces {
        let access = if namespace.read_only { "read-only" } else { "read-write" };
        println!(
            "namespace {}: {} of {} bytes, blocks of {}, {access}",
            namespace.nsid, namespace.kind, namespace.size_bytes, namespace.block_bytes
        );
    }
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
        let micros = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1000.0));
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
    for (index, poller) in statistics.pollers.iter().enumerate() {
        println!(
            "poller {index}: rests {}, woken {}, io_uring enters {}",
            poller.sleeps, poller.wakes, poller.io_uring_enters
        );
    }
}
