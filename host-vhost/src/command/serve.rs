//! `doorbell serve`.

use std::io::Write as _;
use std::os::fd::RawFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use doorbell_vhost::device::{DeviceConfig, DoorbellMode, parse_mdts};
use doorbell_vhost::devices_file::DevicesFile;
use doorbell_vhost::endpoint::Endpoint;
use doorbell_vhost::fleet::{Device, Fleet, StopSignals};
use doorbell_vhost::vhost_user_blk::{BlkConfig, DataPath};

use super::namespace_args::NamespaceArgs;
use super::pollers::PollerArgs;

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
    #[arg(long, value_name = "PATH", required_unless_present_any = ["fd", "vhost_user", "config"])]
    socket: Option<PathBuf>,
    /// UNIX socket to listen on as a vhost-user-blk backend instead: the guest sees a virtio disk, the one
    /// namespace. For QEMU from 7.2 on.
    #[arg(long, value_name = "PATH", conflicts_with_all = [
        "socket", "fd", "doorbells", "no_shadow_doorbells", "queue_entries", "vectors", "mdts", "state",
    ])]
    vhost_user: Option<PathBuf>,
    /// A TOML file that describes any number of devices, instead of all other options; `doorbell check` looks at it
    /// without serving.
    #[arg(long, value_name = "FILE", exclusive = true)]
    config: Option<PathBuf>,
    /// A connected or listening socket that was handed over, instead of --socket.
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    fd: Option<RawFd>,

    #[command(flatten)]
    namespaces: NamespaceArgs,

    #[command(flatten)]
    pollers: PollerArgs,
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
    mdts: u32,
    /// Serial number, up to 20 characters.
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    /// Where SMART counters are kept; default: FILE.smart.json beside the first --file or --qcow2, none for
    /// memory. `none` keeps them nowhere.
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(file) = &self.config {
            return all(DevicesFile::read(file)?);
        }
        one(self.device()?)
    }

    fn device(self) -> Result<Device> {
        let namespaces = self.namespaces.specs()?;
        let (pollers, cpus) = (self.pollers.count()?, self.pollers.cpus()?);
        let Self { queues, serial, .. } = self;
        if let Some(socket) = self.vhost_user {
            let [namespace] = <[_; 1]>::try_from(namespaces).map_err(|namespaces| {
                anyhow::anyhow!("--vhost-user serves one disk, but {} namespaces are named", namespaces.len())
            })?;
            let endpoint = Endpoint::Path(socket);
            return Ok(Device::Virtio(BlkConfig {
                endpoint,
                namespace,
                queues,
                pollers,
                cpus,
                serial,
                data_path: DataPath::Direct,
            }));
        }
        let endpoint = match (self.socket, self.fd) {
            (Some(path), _) => Endpoint::Path(path),
            (None, Some(fd)) => Endpoint::Fd(fd),
            (None, None) => bail!("give --socket PATH, --vhost-user PATH, --fd N or --config FILE"),
        };
        Ok(Device::Nvme(DeviceConfig {
            endpoint,
            namespaces,
            cpus,
            pollers,
            doorbells: match self.doorbells {
                Doorbells::Mapped => DoorbellMode::Mapped,
                Doorbells::Shadow => DoorbellMode::Shadow,
            },
            shadow_doorbells: !self.no_shadow_doorbells,
            queues,
            queue_entries: self.queue_entries,
            vectors: self.vectors,
            mdts_bytes: self.mdts,
            serial,
            state: self.state,
        }))
    }
}

/// Serves one device until it ends or a signal comes.
pub(super) fn one(device: Device) -> Result<()> {
    let stop = StopSignals::listen().context("signals can't be waited for")?;
    let mut fleet = Fleet::new();
    say(&fleet.start(device)?.announcement());
    fleet.run_until(&stop);
    Ok(())
}

/// Serves the devices of a file.
fn all(file: DevicesFile) -> Result<()> {
    let stop = StopSignals::listen().context("signals can't be waited for")?;
    let (path, mut fleet) = (file.path().to_owned(), Fleet::new());
    let (count, lines) = (file.len(), file.describe().collect::<Vec<_>>());
    for (line, device) in file.into_devices() {
        // Starting many takes a while; those that run already are ended with the fleet.
        if stop.came() {
            return Ok(());
        }
        fleet.start(device).with_context(|| format!("{}:{line}:1: this device", path.display()))?;
    }
    let lines: Vec<String> = lines.iter().map(|line| format!("  {line}\n")).collect();
    say(&format!("serving {count} device(s) of {}\n{}", path.display(), lines.concat()));
    fleet.run_until(&stop);
    Ok(())
}

/// Whoever started us may not care to read it, which is no reason to end.
fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}
