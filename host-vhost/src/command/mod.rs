//! The subcommands.

mod demo;
mod namespace;
mod namespace_args;
mod serve;
mod stat;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// One NVMe controller for stock QEMU and other VMMs, over vfio-user; or a virtio disk, over vhost-user.
///
/// Logs go to stderr; DOORBELL_LOG=debug shows more.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a controller, or a virtio disk, on a socket until SIGTERM or SIGINT.
    Serve(serve::Serve),
    /// Show the counters of a running server.
    Stat(stat::Stat),
    /// Add, remove or resize namespaces of a running server; its guest notices.
    Namespace(namespace::Namespace),
    /// Serve a RAM namespace, drive it with a driver of our own over a real socket, verify, and measure.
    Demo(demo::Demo),
}

impl Cli {
    /// What is logged unless a person says otherwise.
    pub(crate) fn log_level(&self) -> &'static str {
        if matches!(self.command, Command::Demo(_)) { "warn" } else { "info" }
    }

    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Stat(stat) => stat.run(),
            Command::Namespace(namespace) => namespace.run(),
            Command::Demo(demo) => demo.run(),
        }
    }
}
