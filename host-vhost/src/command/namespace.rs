//! `doorbell namespace add|remove|resize`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use doorbell_vhost::ctl::client::ask;
use doorbell_vhost::ctl::protocol::{Answer, Command};
use doorbell_vhost::namespace_spec::NamespaceSpec;
use doorbell_vhost::storage::parse_size;

use super::namespace_args::NamespaceArgs;

#[derive(Debug, Args)]
pub(crate) struct Namespace {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a namespace and print its identifier.
    Add {
        /// The device's socket, as given to `doorbell serve`.
        socket: PathBuf,
        /// What it holds: ram=64M, file=disk.img,block=4096,read-only, ... (or the options below).
        spec: Option<NamespaceSpec>,
        #[command(flatten)]
        namespaces: NamespaceArgs,
    },
    /// Remove a namespace, once its commands have ended.
    Remove {
        /// The device's socket, as given to `doorbell serve`.
        socket: PathBuf,
        /// Namespace identifier.
        nsid: u32,
    },
    /// Change the size of a namespace.
    Resize {
        /// The device's socket, as given to `doorbell serve`.
        socket: PathBuf,
        /// Namespace identifier.
        nsid: u32,
        /// The new size: 2G, 512M, ...
        #[arg(value_parser = parse_size)]
        size: u64,
    },
}

impl Namespace {
    pub(crate) fn run(self) -> Result<()> {
        let (socket, commands, done) = match self.action {
            Action::Add { socket, spec, namespaces } => {
                let specs = match spec {
                    Some(spec) => vec![spec],
                    None => namespaces.specs()?,
                };
                // The server has a folder of its own, so paths go there whole.
                let add = |spec: NamespaceSpec| {
                    Ok(Command::NamespaceAdd { spec: spec.with_absolute_path()?.to_string() })
                };
                (socket, specs.into_iter().map(add).collect::<Result<_>>()?, "added")
            }
            Action::Remove { socket, nsid } => (socket, vec![Command::NamespaceRemove { nsid }], "removed"),
            Action::Resize { socket, nsid, size } => {
                (socket, vec![Command::NamespaceResize { nsid, size_bytes: size }], "resized")
            }
        };
        for command in commands {
            match ask(&socket, command)? {
                Answer::Namespace { nsid } => println!("namespace {nsid} {done}"),
                Answer::Stat(_) | Answer::Disk(_) | Answer::Upgraded { .. } => {
                    bail!("the server answered another question; is it of another version?")
                }
            }
        }
        Ok(())
    }
}
