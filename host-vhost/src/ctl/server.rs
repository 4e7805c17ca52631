//! The server's side of the control socket: a thread that reads requests and passes them on.
//!
//! One thread serves one connection after the other; a connection that is silent or floods is dropped.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::{Answer, Command, Outcome, Reply, Request, VERSION};
use crate::interrupt::new_eventfd;
use crate::rate_limit::warn_sometimes;
use crate::vfio_user::listener::{ACCEPT_AGAIN, ListenError, Listener, Naming};

/// The longest request line, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// How long a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// A listening control socket. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// How the thread is told to end.
#[derive(Debug)]
struct Stop {
    eventfd: OwnedFd,
    stopping: AtomicBool,
    /// The connection that is being served.
    serving: Mutex<Option<UnixStream>>,
}

impl ControlSocket {
    /// Listens at `path`; `answer` is called for each command, on the socket's own thread.
    ///
    /// # Errors
    /// Where the socket can't be made.
    pub fn listen(
        path: &Path,
        mut answer: impl FnMut(Command) -> Result<Answer, String> + Send + 'static,
    ) -> Result<Self, ListenError> {
        let system = |what| {
            let path = path.to_path_buf();
            move |error| ListenError::System { what, path, error }
        };
        let listener = Listener::bind(path, Naming::Socket)?;
        let stop = Arc::new(Stop {
            eventfd: new_eventfd().map_err(system("make an eventfd for"))?,
            stopping: AtomicBool::new(false),
            serving: Mutex::new(None),
        });
        let spawned = crate::device_thread::spawn("control-socket", {
            let stop = Arc::clone(&stop);
            move || {
                while let Some(stream) = next_client(&listener, &stop) {
                    if let Err(error) = serve(&stream, &mut answer) {
                        tracing::debug!(%error, "control connection ended");
                    }
                    *stop.serving() = None;
                }
            }
        });
        Ok(Self { stop, thread: Some(spawned.map_err(system("start a thread for"))?) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.stopping.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.stop.eventfd, &1u64.to_ne_bytes());
        // A request that is being carried out is still answered; nothing more is read.
        if let Some(stream) = &*self.stop.serving() {
            let _ = stream.shutdown(Shutdown::Read);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Stop {
    fn serving(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a connection; `None` where there will be no more.
fn next_client(listener: &Listener, stop: &Stop) -> Option<UnixStream> {
    while !stop.stopping.load(Ordering::Acquire) {
        let accepted = listener.try_accept().and_then(|stream| {
            let Some(stream) = stream else { return Ok(None) };
            stream.set_nonblocking(false)?;
            // Under the lock, so that whoever says stop either finds the connection or is seen here.
            let mut serving = stop.serving();
            *serving = Some(stream.try_clone()?);
            Ok(Some(stream))
        });
        let mut fds = [
            PollFd::new(&stop.eventfd, PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        match accepted {
            Ok(Some(stream)) if !stop.stopping.load(Ordering::Acquire) => return Some(stream),
            Ok(Some(_)) => return None,
            Ok(None) => {
                let _ = poll(&mut fds, None);
            }
            // Out of file descriptors, most likely: the socket stays readable, so it isn't polled for a while.
            Err(error) => {
                warn_sometimes(|| tracing::warn!(%error, "a control connection could not be accepted"));
                let _ = poll(&mut fds[..1], Timespec::try_from(ACCEPT_AGAIN).ok().as_ref());
            }
        }
    }
    None
}

fn serve(
    mut stream: &UnixStream,
    answer: &mut impl FnMut(Command) -> Result<Answer, String>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.by_ref().take(LONGEST_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let whole = line.ends_with('\n');
        let outcome = match reply(&line, answer) {
            Ok(answer) => Outcome::Ok(answer),
            Err(text) => Outcome::Error(text),
        };
        let mut text = serde_json::to_string(&Reply { version: VERSION, outcome })?;
        text.push('\n');
        stream.write_all(text.as_bytes())?;
        if !whole {
            return Ok(());
        }
    }
}

fn reply(line: &str, answer: &mut impl FnMut(Command) -> Result<Answer, String>) -> Result<Answer, String> {
    let value: serde_json::Value =
        serde_json::from_str(line).map_err(|error| format!("not a JSON object on one line: {error}"))?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => return Err(format!("version {version} is not spoken here; use version {VERSION}")),
        None => return Err(format!("the request has no version; add \"version\": {VERSION}")),
    }
    let request: Request = serde_json::from_value(value).map_err(|error| error.to_string())?;
    answer(request.command)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_request_gets_one_answer_or_one_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.ctl");
        let socket = ControlSocket::listen(&path, |command| match command {
            Command::NamespaceRemove { nsid } => Ok(Answer::Namespace { nsid }),
            _ => Err("not here".into()),
        })
        .unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut stream = UnixStream::connect(&path).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for (request, reply) in [
            (r#"{"version":1,"command":"namespace-remove","nsid":7}"#, r#""nsid":7"#),
            (r#"{"version":1,"command":"stat"}"#, "not here"),
            (r#"{"version":2,"command":"stat"}"#, "version 2 is not spoken"),
            (r#"{"command":"stat"}"#, "has no version"),
            (r#"{"version":1,"command":"dance"}"#, "unknown variant"),
            ("nonsense", "not a JSON object"),
        ] {
            stream.write_all(format!("{request}\n").as_bytes()).unwrap();
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert!(line.contains(reply), "{request}: {line}");
        }
        drop((stream, reader));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn the_end_waits_for_nobody_and_leaves_a_foreign_socket_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.ctl");
        let socket = ControlSocket::listen(&path, |_| Err("not here".into())).unwrap();
        let mut silent = UnixStream::connect(&path).unwrap();
        silent.write_all(b"{").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        std::fs::remove_file(&path).unwrap();
        let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let start = std::time::Instant::now();
        drop(socket);
        assert!(start.elapsed() < Duration::from_secs(2));
        assert!(path.exists());
        drop(foreign);
    }
}
