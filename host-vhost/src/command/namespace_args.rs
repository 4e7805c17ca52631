//! How namespaces are named on a command line.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use doorbell_vhost::namespace_spec::NamespaceSpec;
use doorbell_vhost::storage::{Direct, StorageConfig, parse_size};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DirectMode {
    /// Where the file system takes it.
    Auto,
    /// Or fail.
    On,
    /// Through the page cache.
    Off,
}

/// Namespaces: each option makes one, in this order; repeat what you like.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    /// A namespace that moves no data, for measuring the protocol.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    null: Vec<u64>,
    /// A namespace in memory; its contents end with the process.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ram: Vec<u64>,
    /// A namespace in a raw image file or block device.
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// A namespace in a qcow2 image.
    #[arg(long, value_name = "PATH")]
    qcow2: Vec<PathBuf>,
    /// A namespace with options: ram=1G,block=4096 or file=disk.img,read-only,direct=off.
    #[arg(long, value_name = "SPEC")]
    namespace: Vec<NamespaceSpec>,
    /// Logical block size of the namespaces that don't say it themselves: 512 or 4096.
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    block_size: u32,
    /// Refuse writes to --file and --qcow2.
    #[arg(long)]
    read_only: bool,
    /// O_DIRECT for --file.
    #[arg(long, value_enum, default_value = "auto")]
    direct: DirectMode,
}

impl NamespaceArgs {
    /// What was named; at least one.
    pub(crate) fn specs(&self) -> Result<Vec<NamespaceSpec>> {
        if !matches!(self.block_size, 512 | 4096) {
            bail!("--block-size {} is neither 512 nor 4096", self.block_size);
        }
        let direct = match self.direct {
            DirectMode::Auto => Direct::Auto,
            DirectMode::On => Direct::On,
            DirectMode::Off => Direct::Off,
        };
        let read_only = self.read_only;
        let mut storages: Vec<StorageConfig> = Vec::new();
        storages.extend(self.null.iter().map(|&size_bytes| StorageConfig::Null { size_bytes }));
        storages.extend(self.ram.iter().map(|&size_bytes| StorageConfig::Ram { size_bytes }));
        let file = |path: &PathBuf| StorageConfig::File { path: path.clone(), read_only, direct };
        storages.extend(self.file.iter().map(file));
        storages.extend(self.qcow2.iter().map(|path| StorageConfig::Qcow2 { path: path.clone(), read_only }));
        let plain = storages
            .into_iter()
            .map(|storage| NamespaceSpec { block_bytes: self.block_size, ..NamespaceSpec::new(storage) });
        let specs: Vec<_> = plain.chain(self.namespace.iter().cloned()).collect();
        if specs.is_empty() {
            bail!(
                "no namespace: give --ram 1G, --file disk.img, --qcow2 disk.qcow2, --null 1T or --namespace SPEC"
            );
        }
        Ok(specs)
    }
}
