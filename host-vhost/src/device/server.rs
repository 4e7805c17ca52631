//! A device being served: its pollers, its control thread, its control socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use doorbell_core::controller::{Ascii, ControllerConfig};
use doorbell_core::pci::{ConfigSpace, PciConfig};
use thiserror::Error;
use uuid::Uuid;

use super::control::Control;
use super::model::{GroupAddress, Model};
use super::namespaces::{NamespaceTable, Opened};
use super::report::{PollerGauge, ReportCollector};
use super::state::StateFile;
use super::{ControlMail, DeviceConfig, DeviceShared, DoorbellMode, Endpoint, Engines, Storages};
use crate::ctl::protocol::{Answer, Command};
use crate::ctl::server::ControlSocket;
use crate::engine::{EngineSource, Hosting, HostingError};
use crate::namespace_spec::NamespaceSpec;
use crate::poller::{GroupRunner, Poller, PollerConfig, PollerMail, ToGroup};
use crate::storage::OpenError;
use crate::vfio_user::listener::{Handed, ListenError, Naming};

/// Why a device can't be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A namespace can't be opened.
    #[error("namespace {spec}: {source}")]
    Namespace {
        /// What was asked for.
        spec: String,
        /// Why.
        source: OpenError,
    },
    /// The controller doesn't take a namespace.
    #[error("namespace {spec}: {why}")]
    Refused {
        /// What was asked for.
        spec: String,
        /// Why.
        why: String,
    },
    /// There is no socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A poller can't be started.
    #[error(transparent)]
    Poller(#[from] OpenError),
    /// The controller can't be made.
    #[error(transparent)]
    Hosting(#[from] HostingError),
    /// A serial number that no controller can have.
    #[error("serial number `{0}`: up to 20 printable ASCII characters")]
    Serial(String),
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

/// A running server. Dropping it stops it: the client is detached, everything is flushed.
#[derive(Debug)]
pub struct Server {
    shared: Arc<DeviceShared>,
    path: Option<PathBuf>,
    namespaces: usize,
    control: Option<JoinHandle<()>>,
    socket: Option<ControlSocket>,
    /// After the control thread, which tells them what to do.
    _pollers: Pollers,
}

impl Server {
    /// Opens the namespaces and the socket, and starts the threads.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing is left behind.
    pub fn start(config: DeviceConfig) -> Result<Self, ServeError> {
        let serial = serial(&config)?;
        let (source, path) = open_endpoint(&config.endpoint)?;
        let opened = open_namespaces(&config.namespaces, &serial)?;
        Self::start_at(&config, serial, source, path, opened)
    }

    /// The same with namespaces whose storages are open already, in the place of those that `config` names.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing is left behind.
    pub fn start_with(config: DeviceConfig, opened: Vec<Opened>) -> Result<Self, ServeError> {
        let serial = serial(&config)?;
        let (source, path) = open_endpoint(&config.endpoint)?;
        Self::start_at(&config, serial, source, path, opened)
    }

    fn start_at(
        config: &DeviceConfig,
        serial: String,
        source: Handed,
        path: Option<PathBuf>,
        opened: Vec<Opened>,
    ) -> Result<Self, ServeError> {
        let shared = DeviceShared::new(config.vectors, config.doorbells, Storages::default());
        let shared = Arc::new(shared.map_err(system("make the doorbell page"))?);
        // A guest is told once. Where namespaces can be added later, one of them may need to be flushed.
        let write_cache = path.is_some() || opened.iter().any(Opened::has_volatile_cache);
        let controller = controller_config(config, &serial, write_cache);
        let posted = config.doorbells == DoorbellMode::Shadow;
        let engines = EngineSource::new(&config.hosting, controller, posted)?;
        let pollers = Pollers::start(config, &engines, &shared)?;
        let groups = pollers.list.iter().map(|poller| GroupAddress {
            mailbox: Arc::clone(poller.mailbox()),
            epoll: Arc::clone(poller.epoll()),
        });
        let gauges = pollers.list.iter().map(|poller| PollerGauge {
            counters: Arc::clone(poller.counters()),
            mailbox: Arc::clone(poller.mailbox()),
        });
        let reports = ReportCollector::new(gauges.collect());
        let pci = ConfigSpace::new(PciConfig { vectors: config.vectors, ..PciConfig::DEFAULT });
        let groups = groups.collect();
        let mut model =
            Model::new(engines.controller()?, engines.description(), pci, Arc::clone(&shared), groups);
        let mut table = NamespaceTable::default();
        let namespaces = opened.len();
        for opened in opened {
            let spec = opened.name().to_owned();
            table
                .add(&mut model.controller, &shared, opened)
                .map_err(|why| ServeError::Refused { spec, why })?;
        }
        let state = StateFile::choose(config.state.as_deref(), &config.namespaces);
        let mut control =
            Control::new(model, source, table, reports, state).map_err(system("serve a client"))?;
        let control = crate::device_thread::spawn("control", move || control.run())
            .map_err(system("start the control thread"))?;
        let mut server =
            Self { socket: None, path, namespaces, control: Some(control), shared, _pollers: pollers };
        if let Some(path) = &server.path {
            let groups = config.pollers;
            let upgrade = move |hosting: &Hosting| {
                let source = EngineSource::new(hosting, controller, posted)?;
                Engines::new(&source, groups)
            };
            server.socket = Some(control_socket(path, Arc::clone(&server.shared), serial, upgrade)?);
        }
        Ok(server)
    }

    /// What a person types to attach a VM.
    #[must_use]
    pub fn attach_line(&self) -> String {
        let path = self.path.as_deref().unwrap_or(Path::new("SOCKET"));
        format!(
            "qemu-system-x86_64 -M q35,memory-backend=m \\\n  -object memory-backend-memfd,id=m,size=1G,share=on \\\n  \
             -device '{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{}\"}}}}' ...",
            path.display()
        )
    }

    /// What a person types to attach SPDK's client; `None` where it couldn't.
    #[must_use]
    pub fn spdk_line(&self) -> Option<String> {
        spdk_line(self.path.as_deref()?, self.shared.doorbell_mode)
    }

    /// How many namespaces it started with.
    #[must_use]
    pub fn namespaces(&self) -> usize {
        self.namespaces
    }

    /// Whether the control thread has ended, as it does when a client that was handed over has gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.control.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What a person is told when it serves: where, and how to attach a VM.
    #[must_use]
    pub fn announcement(&self) -> String {
        let place = self
            .path
            .as_ref()
            .map_or("a socket that was handed over".into(), |path| path.display().to_string());
        let mut text = format!(
            "serving {} namespace(s) on {place}\nattach QEMU 10.1 or newer with\n  {}\n",
            self.namespaces,
            self.attach_line()
        );
        if let Some(line) = self.spdk_line() {
            text.push_str(&format!("or SPDK's client with\n  {line}\n"));
        }
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.socket = None;
        self.shared.control.send(ControlMail::Stop);
        if let Some(control) = self.control.take()
            && control.join().is_err()
        {
            tracing::error!("the control thread ended by a panic");
        }
    }
}

/// The pollers of one device. Dropping them waits until nothing is in flight and ends their threads, at the end
/// of a server and where it can't be started alike.
#[derive(Debug)]
struct Pollers {
    shared: Arc<DeviceShared>,
    list: Vec<Poller>,
}

impl Pollers {
    /// Starts a poller for each group.
    fn start(
        config: &DeviceConfig,
        engines: &EngineSource,
        shared: &Arc<DeviceShared>,
    ) -> Result<Self, ServeError> {
        let mut pollers = Self { shared: Arc::clone(shared), list: Vec::new() };
        for index in 0..config.pollers {
            let cpu = config.cpus.get(index).copied();
            let poller = Poller::start(format!("poller-{index}"), PollerConfig { cpu })?;
            let runner = GroupRunner::new(index as u16, engines.group()?, Arc::clone(shared));
            poller.mailbox().send(PollerMail::Attach(Box::new(runner)));
            pollers.list.push(poller);
        }
        Ok(pollers)
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        for (group, poller) in (0..).zip(&self.list) {
            let device = Arc::as_ptr(&self.shared).addr();
            poller.mailbox().send(PollerMail::Group { device, group, message: ToGroup::Detach });
        }
    }
}

fn open_endpoint(endpoint: &Endpoint) -> Result<(Handed, Option<PathBuf>), ServeError> {
    // `DIR/` is how SPDK's client names a device: the socket is `cntrl` in it.
    let spdk = matches!(endpoint, Endpoint::Path(path) if path.is_dir());
    let handed = endpoint.open(if spdk { Naming::SpdkDirectory } else { Naming::Socket })?;
    let path = match &handed {
        Handed::Listening(listener) => listener.path().map(Path::to_path_buf),
        Handed::Connected(_) => None,
    };
    Ok((handed, path))
}

/// The serial number that was asked for, or one that tells devices apart and stays the same from start to
/// start.
fn serial(config: &DeviceConfig) -> Result<String, ServeError> {
    let Some(serial) = &config.serial else {
        let mut name = match &config.endpoint {
            Endpoint::Path(path) => {
                format!("{}", std::path::absolute(path).unwrap_or_else(|_| path.clone()).display())
            }
            Endpoint::Fd(_) => String::new(),
        };
        for namespace in &config.namespaces {
            name.push_str(&namespace.to_string());
        }
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()).simple().to_string().to_uppercase();
        return Ok(format!("DB{}", &uuid[..16]));
    };
    match Ascii::<20>::new(serial) {
        Some(_) if !serial.is_empty() => Ok(serial.clone()),
        _ => Err(ServeError::Serial(serial.clone())),
    }
}

fn controller_config(config: &DeviceConfig, serial: &str, write_cache: bool) -> ControllerConfig {
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, serial.as_bytes());
    ControllerConfig {
        groups: config.pollers as u16,
        io_queues: config.queues,
        max_queue_entries: config.queue_entries,
        mdts_bytes: config.mdts_bytes,
        doorbell_buffer: config.shadow_doorbells,
        vectors: config.vectors,
        write_cache,
        serial: Ascii::lossy(serial),
        subsystem_nqn: Ascii::lossy(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")),
        ..ControllerConfig::DEFAULT
    }
}

fn open_namespaces(specs: &[NamespaceSpec], serial: &str) -> Result<Vec<Opened>, ServeError> {
    let open = |(ordinal, spec): (u64, &NamespaceSpec)| {
        Opened::open(spec, serial, ordinal)
            .map_err(|source| ServeError::Namespace { spec: spec.to_string(), source })
    };
    (1..).zip(specs).map(open).collect()
}

fn control_socket(
    path: &Path,
    shared: Arc<DeviceShared>,
    serial: String,
    engines: impl Fn(&Hosting) -> Result<Engines, HostingError> + Send + 'static,
) -> Result<ControlSocket, ServeError> {
    let mut ordinal = 1 << 32;
    ControlSocket::listen(&crate::ctl::path_of(path), move |command| {
        let (reply, answer) = crossbeam_channel::bounded(1);
        match command {
            Command::NamespaceAdd { spec } => {
                let spec: NamespaceSpec = spec.parse().map_err(|error| format!("{error}"))?;
                ordinal += 1;
                // Here and not on the control thread, since opening may take long.
                let opened = Opened::open(&spec, &serial, ordinal).map_err(|error| error.to_string())?;
                shared.control.send(ControlMail::Add { opened: Box::new(opened), reply });
            }
            Command::Upgrade { module } => {
                let hosting = module.map_or(Ok(Hosting::Native), Hosting::sandbox);
                // Here, since compiling a module takes long.
                let to = hosting.and_then(|hosting| engines(&hosting)).map_err(|error| error.to_string())?;
                shared.control.send(ControlMail::Upgrade { to: Box::new(to), reply });
            }
            command => shared.control.send(ControlMail::Command { command, reply }),
        }
        let answer: Result<Answer, String> = answer
            .recv_timeout(std::time::Duration::from_secs(20))
            .map_err(|_| "the device didn't answer in 20 seconds: is its storage stuck?".to_owned())?;
        answer
    })
    .map_err(ServeError::from)
}

/// SPDK's client wants its own name of the socket and refuses a device whose doorbells it can't map.
fn spdk_line(socket: &Path, doorbells: DoorbellMode) -> Option<String> {
    if !socket.ends_with("cntrl") || doorbells != DoorbellMode::Mapped {
        return None;
    }
    // Its memory has to be one file (-g): of many it sends the first for all. Without a subsystem's name its
    // programs ask for a discovery log.
    let folder = socket.parent()?.display();
    Some(format!("spdk_nvme_identify -g -r 'trtype:VFIOUSER traddr:{folder} subnqn:nqn.x'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spdk_is_told_how_to_attach_only_where_it_can() {
        let line = spdk_line(Path::new("/run/nvme/cntrl"), DoorbellMode::Mapped).unwrap();
        assert!(line.contains(" -g ") && line.contains("traddr:/run/nvme subnqn:"), "{line}");
        assert_eq!(spdk_line(Path::new("/run/nvme.sock"), DoorbellMode::Mapped), None);
        assert_eq!(spdk_line(Path::new("/run/nvme/cntrl"), DoorbellMode::Shadow), None);
    }
}
