//! A disk being served: its pollers, its socket, one frontend after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use thiserror::Error;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use super::backend::Backend;
use super::descriptors::Descriptors;
use super::disk::Disk;
use super::operator::Operator;
use super::poller::{BlkPoller, DataPath};
use crate::ctl::server::ControlSocket;
use crate::endpoint::Endpoint;
use crate::namespace_spec::NamespaceSpec;
use crate::storage::OpenError;
use crate::vfio_user::listener::{Handed, ListenError, Listener, Naming};

/// What is served and how.
#[derive(Clone, Debug)]
pub struct BlkConfig {
    /// Where frontends come from.
    pub endpoint: Endpoint,
    /// The disk.
    pub namespace: NamespaceSpec,
    /// Request queues that are offered, 1 to 64.
    pub queues: u16,
    /// Poller threads; queue `n` runs on poller `n % pollers`.
    pub pollers: usize,
    /// One processor for each poller, or none at all.
    pub cpus: Vec<usize>,
    /// What a guest reads as the disk's serial number; the first 20 bytes count.
    pub serial: Option<String>,
    /// The way of a request to the storage.
    pub data_path: DataPath,
}

/// Why a disk can't be served.
#[derive(Debug, Error)]
pub enum BlkServeError {
    /// The medium can't be opened.
    #[error("namespace {spec}: {source}")]
    Namespace {
        /// What was asked for.
        spec: String,
        /// Why.
        source: OpenError,
    },
    /// There is no socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A poller can't be started.
    #[error(transparent)]
    Poller(#[from] OpenError),
    /// A serial number that no disk can have.
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

/// A running server; dropping it ends it, with the socket, after what is in flight.
#[derive(Debug)]
pub struct BlkServer {
    /// `None`: the socket was handed over.
    path: Option<PathBuf>,
    queues: u16,
    shared: Arc<Shared>,
    sessions: Option<JoinHandle<()>>,
    control: Option<ControlSocket>,
}

/// What the thread of the sessions shares with whoever ends it.
#[derive(Debug)]
struct Shared {
    stopping: AtomicBool,
    wake: OwnedFd,
    /// The present frontend's connection, to be shut down.
    connection: Mutex<Option<UnixStream>>,
    /// Frontends so far.
    connections: AtomicU64,
}

impl BlkServer {
    /// Opens the medium, starts the threads and listens.
    ///
    /// # Errors
    /// See [`BlkServeError`].
    pub fn start(config: BlkConfig) -> Result<Self, BlkServeError> {
        let BlkConfig { endpoint, namespace, queues, pollers, cpus, serial, data_path } = config;
        let serial = serial.unwrap_or_else(|| "doorbell".into());
        if serial.len() > 20 || !serial.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(BlkServeError::Serial(serial));
        }
        let storage = namespace
            .open()
            .map_err(|source| BlkServeError::Namespace { spec: namespace.to_string(), source })?;
        let disk = Arc::new(Disk::new(storage, namespace.block_bytes, queues, &serial));
        let pollers: Arc<[BlkPoller]> = (0..pollers)
            .map(|index| {
                let cpu = cpus.get(index).copied();
                BlkPoller::start(format!("blk-poller-{index}"), cpu, Arc::clone(&disk.storage), data_path)
            })
            .collect::<Result<_, _>>()?;
        let source = endpoint.open(Naming::Socket)?;
        let path = match endpoint {
            Endpoint::Path(socket) => Some(std::path::absolute(&socket).unwrap_or(socket)),
            Endpoint::Fd(_) => None,
        };
        let system = |what| move |source: std::io::Error| BlkServeError::System { what, source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("make an eventfd")(errno.into()))?;
        let shared = Arc::new(Shared {
            stopping: AtomicBool::new(false),
            wake,
            connection: Mutex::new(None),
            connections: AtomicU64::new(0),
        });
        let operator = Operator {
            disk: Arc::clone(&disk),
            pollers: Arc::clone(&pollers),
            presence: Box::new({
                let shared = Arc::clone(&shared);
                move || shared.presence()
            }),
        };
        let sessions = crate::device_thread::spawn("blk-sessions", {
            let shared = Arc::clone(&shared);
            move || match source {
                Handed::Listening(listener) => shared.serve(&listener, &disk, &pollers),
                Handed::Connected(stream) => shared.serve_one(stream, &disk, &pollers),
            }
        });
        let sessions = Some(sessions.map_err(system("start a thread"))?);
        let mut server = Self { path, queues, shared, sessions, control: None };
        if let Some(path) = &server.path {
            server.control = Some(operator.listen(path)?);
        }
        Ok(server)
    }

    /// QEMU's arguments for this disk: for versions before 9.2, and from 9.2 on.
    #[must_use]
    pub fn attach_lines(&self) -> [String; 2] {
        let path = self.path.as_deref().unwrap_or(Path::new("SOCKET"));
        let line = |reconnect: &str| {
            format!(
                "-object memory-backend-memfd,id=m,size=1G,share=on -M q35,memory-backend=m \
                 -chardev socket,id=c,path={},{reconnect} \
                 -device vhost-user-blk-pci,chardev=c,num-queues={}",
                path.display().to_string().replace(',', ",,"),
                self.queues.min(4),
            )
        };
        [line("reconnect=1"), line("reconnect-ms=1000")]
    }

    /// What a person is told when it serves: where, and how to attach a VM.
    #[must_use]
    pub fn announcement(&self) -> String {
        let place = self
            .path
            .as_ref()
            .map_or("a socket that was handed over".into(), |path| path.display().to_string());
        let [old, new] = self.attach_lines();
        format!(
            "serving a vhost-user-blk disk on {place}\nattach QEMU 9.2 or newer with\n  {new}\n\
             attach QEMU 7.2 to 9.1 with\n  {old}\n"
        )
    }

    /// Whether it has ended, as it does when a frontend that was handed over has gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.sessions.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for BlkServer {
    fn drop(&mut self) {
        self.control = None;
        self.shared.stop();
        if let Some(sessions) = self.sessions.take()
            && sessions.join().is_err()
        {
            tracing::error!("the thread of the sessions ended by a panic");
        }
    }
}

impl Shared {
    /// Whether there is a frontend, and how many there were.
    fn presence(&self) -> (bool, u64) {
        let connected = self.connection.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        (connected, self.connections.load(Ordering::Relaxed))
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = &*connection {
            // It may be gone already.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    fn serve(&self, listener: &Listener, disk: &Arc<Disk>, pollers: &Arc<[BlkPoller]>) {
        while !self.stopping.load(Ordering::SeqCst) {
            let mut fds = [
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, None);
            match listener.try_accept() {
                Ok(Some(stream)) => self.serve_one(stream, disk, pollers),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves one frontend to its end, and says so.
    fn serve_one(&self, stream: UnixStream, disk: &Arc<Disk>, pollers: &Arc<[BlkPoller]>) {
        tracing::info!("a frontend has connected");
        match self.session(stream, disk, pollers) {
            Ok(()) => tracing::info!("the frontend has gone"),
            Err(error) => crate::rate_limit::warn_sometimes(|| {
                tracing::warn!("the session with the frontend has ended: {error}");
            }),
        }
    }

    /// Serves one frontend to its end.
    fn session(
        &self,
        stream: UnixStream,
        disk: &Arc<Disk>,
        pollers: &Arc<[BlkPoller]>,
    ) -> Result<(), VhostError> {
        stream.set_nonblocking(false).map_err(VhostError::SocketError)?;
        let connection = stream.try_clone().map_err(VhostError::SocketError)?;
        let descriptors = Descriptors::new(&stream).map_err(VhostError::SocketError)?;
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        self.connections.fetch_add(1, Ordering::Relaxed);
        let backend = Arc::new(Mutex::new(Backend::new(Arc::clone(disk), Arc::clone(pollers))));
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&backend));
        let ended = loop {
            // A stop that came before the connection was put there has found nothing to shut down.
            if self.stopping.load(Ordering::SeqCst) {
                break Ok(());
            }
            match descriptors.handle(&backend).unwrap_or_else(|| handler.handle_request()) {
                Ok(()) => {}
                Err(VhostError::SocketRetry(_)) => {}
                Err(VhostError::Disconnected) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // First the memory, then the connection: a frontend that sees it closed may take its memory back.
        backend.lock().unwrap_or_else(PoisonError::into_inner).reset();
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
        ended
    }
}
