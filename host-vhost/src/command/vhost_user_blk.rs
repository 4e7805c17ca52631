//! `doorbell vhost-user-blk`, also under the name `doorbell-vhost-user-blk`: the command line that QEMU's conventions
//! for vhost-user backends give to management tools (QEMU, `docs/interop/vhost-user.rst`, "Backend program
//! conventions").

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use doorbell_vhost::endpoint::Endpoint;
use doorbell_vhost::fleet::Device;
use doorbell_vhost::namespace_spec::NamespaceSpec;
use doorbell_vhost::storage::{Direct, StorageConfig};
use doorbell_vhost::vhost_user_blk::{BlkConfig, DataPath};

use super::pollers::PollerArgs;

/// The subcommand.
const NAME: &str = "vhost-user-blk";
/// The program's other name.
const LINK: &str = "doorbell-vhost-user-blk";

const CAPABILITIES: &str = r#"{"type": "block", "features": ["read-only", "blk-file"]}"#;

#[derive(Debug, Args)]
pub(crate) struct VhostUserBlk {
    /// UNIX socket to listen on.
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    socket_path: Option<PathBuf>,
    /// A connected or listening socket that was handed over; a connected one is served until it is closed.
    #[arg(long, value_name = "FDNUM")]
    fd: Option<RawFd>,
    /// Block device or raw image file.
    #[arg(long, value_name = "PATH")]
    blk_file: Option<PathBuf>,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// Print what this program can, as JSON, and end; the other arguments don't count then.
    #[arg(long)]
    print_capabilities: bool,

    #[command(flatten)]
    pollers: PollerArgs,
    /// Request queues that are offered, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Serial number, up to 20 characters.
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
}

/// The arguments as clap gets them: under its other name the program is the subcommand.
pub(crate) fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = given.collect();
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| name == LINK) {
        arguments.insert(1, NAME.into());
    }
    arguments
}

/// Answers `--print-capabilities`, which has to work whatever the other arguments are.
pub(crate) fn answered_capabilities(arguments: &[OsString]) -> bool {
    let asked = arguments.get(1).is_some_and(|name| name == NAME)
        && arguments[2..].iter().any(|argument| argument == "--print-capabilities");
    if asked {
        println!("{CAPABILITIES}");
    }
    asked
}

impl VhostUserBlk {
    pub(crate) fn run(self) -> Result<()> {
        let endpoint = match (self.socket_path, self.fd) {
            (Some(path), _) => Endpoint::Path(path),
            (None, Some(fd)) => Endpoint::Fd(fd),
            (None, None) => bail!("give --socket-path PATH or --fd FDNUM"),
        };
        let Some(path) = self.blk_file else {
            bail!("give --blk-file PATH: a block device or a raw image file")
        };
        let storage = StorageConfig::File { path, read_only: self.read_only, direct: Direct::Auto };
        let config = BlkConfig {
            endpoint,
            namespace: NamespaceSpec::new(storage),
            queues: self.queues,
            pollers: self.pollers.count()?,
            cpus: self.pollers.cpus()?,
            serial: self.serial,
            data_path: DataPath::Direct,
        };
        super::serve::one(Device::Virtio(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        arguments(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_other_name_is_the_subcommand() {
        assert_eq!(words("/usr/libexec/doorbell-vhost-user-blk --fd=3")[1..], ["vhost-user-blk", "--fd=3"]);
        assert_eq!(words("doorbell serve")[1..], ["serve"]);
    }

    #[test]
    fn capabilities_are_the_schemas() {
        let value: serde_json::Value = serde_json::from_str(CAPABILITIES).unwrap();
        assert_eq!(value, serde_json::json!({"type": "block", "features": ["read-only", "blk-file"]}));
        assert!(!answered_capabilities(&words("doorbell serve --print-capabilities")));
    }
}
