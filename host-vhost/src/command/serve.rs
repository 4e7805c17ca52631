//! `doorbell serve`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use doorbell_vhost::device::{DeviceConfig, DoorbellMode, Endpoint, Server};
use doorbell_vhost::storage::parse_size;
use doorbell_vhost::vhost_user_blk::{BlkConfig, BlkServer, DataPath};

use super::namespace_args::NamespaceArgs;

/// How doorbells reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Doorbells {
    /// The guest writes them into a mapped page: no exit, no message; an idle poller naps up to 1 ms.
    Mapped,
    /// No mapping: shadow doorbells, and a message only when the device sleeps. No CPU when idle.
    Shadow,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// UNIX socket to listen on (vfio-user). The control socket is SOCKET.ctl beside it.
    #[arg(long, value_name = "PATH", required_unless_present_any = ["fd", "vhost_user"])]
    socket: Option<PathBuf>,
    /// UNIX socket to listen on as a vhost-user-blk backend instead: the guest sees a virtio disk, the one
    /// namespace. For QEMU from 7.2 on.
    #[arg(long, value_name = "PATH", conflicts_with_all = [
        "socket", "fd", "doorbells", "no_shadow_doorbells", "queue_entries", "vectors", "mdts", "state",
    ])]
    vhost_user: Option<PathBuf>,
    /// A connected or listening socket that was handed over, instead of --socket.
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    fd: Option<RawFd>,

    #[command(flatten)]
    namespaces: NamespaceArgs,

    /// Poller threads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pollers: usize,
    /// Processors for the pollers, one each: 2,3 or 4-7.
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    cpu: Option<CpuList>,
    /// How doorbells reach the device.
    #[arg(long, value_enum, default_value = "mapped")]
    doorbells: Doorbells,

    /// Don't offer shadow doorbells (Doorbell Buffer Config), for comparison and for drivers that mistake them.
    #[arg(long)]
    no_shadow_doorbells: bool,

    /// I/O queue pairs (virtio: request queues) that are offered, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Entries of a queue at most, 2 to 65536.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=65536))]
    queue_entries: u32,
    /// MSI-X vectors, 1 to 128; Windows wants at most 64.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=128))]
    vectors: u16,
    /// Maximum data transfer size: a power of two from 8K to 1M.
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
    if !bytes.is_power_of_two() || !(8192..=1 << 20).contains(&bytes) {
        return Err(format!("{text} is not a power of two from 8K to 1M"));
    }
    Ok(bytes)
}

impl Serve {
    pub(crate) fn run(self) -> Result<()> {
        let namespaces = self.namespaces.specs()?;
        let cpus = self.cpus()?;
        if let Some(socket) = self.vhost_user {
            let [namespace] = <[_; 1]>::try_from(namespaces).map_err(|namespaces| {
                anyhow::anyhow!("--vhost-user serves one disk, but {} namespaces are named", namespaces.len())
            })?;
            let Self { queues, pollers, serial, .. } = self;
            let config =
                BlkConfig { socket, namespace, queues, pollers, cpus, serial, data_path: DataPath::Direct };
            return BlkServer::start(config)?.run_until_signal().context("serving failed");
        }
        let endpoint = match (self.socket, self.fd) {
            (Some(path), _) => Endpoint::Path(path),
            (None, Some(fd)) => Endpoint::Fd(fd),
            (None, None) => bail!("give --socket PATH, --vhost-user PATH or --fd N"),
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
            shadow_doorbells: !self.no_shadow_doorbells,
            queues: self.queues,
            queue_entries: self.queue_entries,
            vectors: self.vectors,
            mdts_bytes: u32::try_from(self.mdts)?,
            serial: self.serial,
            state: self.state,
        };
        Server::start(config)?.run_until_signal().context("serving failed")
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
