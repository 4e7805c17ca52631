//! `doorbell serve`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use doorbell_vhost::device::{DeviceConfig, DoorbellMode, Endpoint, Server};
use doorbell_vhost::namespace_spec::NamespaceSpec;
use doorbell_vhost::storage::{Direct, StorageConfig, parse_size};

/// How doorbells reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Doorbells {
    /// The guest writes them into a mapped page: no exit, no message; an idle poller naps up to 1 ms.
    Mapped,
    /// No mapping: shadow doorbells, and a message only when the device sleeps. No CPU when idle.
    Shadow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DirectMode {
    /// Where the file system takes it.
    Auto,
    /// Or fail.
    On,
    /// Through the page cache.
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// UNIX socket to listen on (vfio-user). The control socket is SOCKET.ctl beside it.
    #[arg(long, value_name = "PATH", required_unless_present = "fd")]
    socket: Option<PathBuf>,
    /// A connected or listening socket that was handed over, instead of --socket.
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    fd: Option<RawFd>,

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
    /// A namespace with options: ram=1G,block=4096 or file=disk.img,read-only,direct=off; repeatable.
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

    /// Poller threads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pollers: usize,
    /// Processors for the pollers, one each: 2,3 or 4-7.
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    cpu: Option<CpuList>,
    /// How doorbells reach the device.
    #[arg(long, value_enum, default_value = "mapped")]
    doorbells: Doorbells,

    /// I/O queue pairs that are offered, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 63, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Entries of a queue at most, 2 to 65536.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=65536))]
    queue_entries: u32,
    /// MSI-X vectors, 1 to 128; Windows wants at most 64.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=128))]
    vectors: u16,
    /// Maximum data transfer size: a power of two from 4K to 1M.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_mdts)]
    mdts: u64,
    /// Serial number, up to 20 characters.
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    /// Where SMART counters are kept; default: FILE.smart.json beside the first --file or --qcow2, none for
    /// memory. `none` keeps them nowhere.
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
}

/// Processors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CpuList(Vec<usize>);

fn parse_cpus(text: &str) -> Result<CpuList, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let number = |text: &str| {
            text.trim().parse::<usize>().map_err(|_| format!("`{text}` is not a processor number"))
        };
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || last - first > 4096 {
                    return Err(format!("`{part}` is not a range of processors"));
                }
                cpus.extend(first..=last);
            }
            None => cpus.push(number(part)?),
        }
    }
    Ok(CpuList(cpus))
}

fn parse_mdts(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if !bytes.is_power_of_two() || !(4096..=1 << 20).contains(&bytes) {
        return Err(format!("{text} is not a power of two from 4K to 1M"));
    }
    Ok(bytes)
}

impl Serve {
    pub(crate) fn run(self) -> Result<()> {
        let namespaces = self.namespaces()?;
        let cpus = self.cpus()?;
        let endpoint = match (self.socket, self.fd) {
            (Some(path), _) => Endpoint::Path(path),
            (None, Some(fd)) => Endpoint::Fd(fd),
            (None, None) => bail!("give --socket PATH or --fd N"),
        };
        let config = DeviceConfig {
            endpoint,
            namespaces,
            cpus,
            pollers: self.pollers,
            doorbells: match self.doorbells {
                Doorbells::Mapped => DoorbellMode::Mapped,
                Doorbells::Shadow => DoorbellMode::Shadow,
            },
            queues: self.queues,
            queue_entries: self.queue_entries,
            vectors: self.vectors,
            mdts_bytes: u32::try_from(self.mdts)?,
            serial: self.serial,
            state: self.state,
        };
        Server::start(config)?.run_until_signal().context("serving failed")
    }

    fn namespaces(&self) -> Result<Vec<NamespaceSpec>> {
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
        let plain =
            storages.into_iter().map(|storage| NamespaceSpec { storage, block_bytes: self.block_size });
        let namespaces: Vec<_> = plain.chain(self.namespace.iter().cloned()).collect();
        if namespaces.is_empty() {
            bail!(
                "nothing to serve: give --ram 1G, --file disk.img, --qcow2 disk.qcow2, --null 1T or --namespace SPEC"
            );
        }
        Ok(namespaces)
    }

    /// One processor for each poller, or none at all.
    fn cpus(&self) -> Result<Vec<usize>> {
        if self.pollers == 0 || self.pollers > doorbell_vhost::device::MAX_GROUPS {
            bail!("--pollers {} is not between 1 and {}", self.pollers, doorbell_vhost::device::MAX_GROUPS);
        }
        match &self.cpu {
            None => Ok(Vec::new()),
            Some(CpuList(cpus)) if cpus.len() == self.pollers => Ok(cpus.clone()),
            Some(CpuList(cpus)) => bail!(
                "--cpu names {} processors for {} pollers: name one for each, or leave --cpu out",
                cpus.len(),
                self.pollers
            ),
        }
    }
}
