//! The subcommands.

mod check;
mod demo;
mod namespace;
mod namespace_args;
mod pollers;
mod serve;
mod stat;
mod upgrade;
mod vhost_user_blk;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// One NVMe controller for stock QEMU and other VMMs, over vfio-user; or a virtio disk, over vhost-user.
///
/// Logs go to stderr; DOORBELL_LOG=debug shows more.
#[derive(Debug, Parser)]
#[command(name = "doorbell", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a controller or a virtio disk, or the devices of a file, until SIGTERM or SIGINT.
    Serve(serve::Serve),
    /// Check a file of devices without serving them.
    Check(check::Check),
    /// Serve a virtio disk with the arguments that QEMU's conventions give to management tools.
    VhostUserBlk(vhost_user_blk::VhostUserBlk),
    /// Show the counters of a running server.
    Stat(stat::Stat),
    /// Add, remove or resize namespaces of a running server; its guest notices.
    Namespace(namespace::Namespace),
    /// Move a running controller into another engine; its guest doesn't notice.
    Upgrade(upgrade::Upgrade),
    /// Serve a RAM namespace, drive it with a driver of our own over a real socket, verify, and measure.
    Demo(demo::Demo),
}

impl Cli {
    /// What the process was asked for; `None` where that has been answered already.
    pub(crate) fn of_process() -> Option<Self> {
        let arguments = vhost_user_blk::arguments(std::env::args_os());
        (!vhost_user_blk::answered_capabilities(&arguments)).then(|| Self::parse_from(arguments))
    }

    /// What is logged unless a person says otherwise.
    pub(crate) fn log_level(&self) -> &'static str {
        if matches!(self.command, Command::Demo(_)) { "warn" } else { "info" }
    }

    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::VhostUserBlk(disk) => disk.run(),
            Command::Stat(stat) => stat.run(),
            Command::Namespace(namespace) => namespace.run(),
            Command::Upgrade(upgrade) => upgrade.run(),
            Command::Demo(demo) => demo.run(),
        }
    }
}
