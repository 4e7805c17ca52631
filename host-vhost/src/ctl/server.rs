//! The server's side of the control socket: a thread that reads requests and passes them on.
//!
//! One thread serves one connection after the other; a connection that is silent or floods is dropped.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::protocol::{Answer, Command, Outcome, Reply, Request, VERSION};

/// The longest request line, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// How long a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// A listening control socket. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at `path`; `answer` is called for each command, on the socket's own thread.
    ///
    /// # Errors
    /// Where the socket can't be made.
    pub fn listen(
        path: &Path,
        mut answer: impl FnMut(Command) -> Result<Answer, String> + Send + 'static,
    ) -> io::Result<Self> {
        // The device's own socket has been taken by now, so a socket left here is a dead server's.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("control-socket".into()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    if let Ok(stream) = stream
                        && let Err(error) = serve(&stream, &mut answer)
                    {
                        tracing::debug!(%error, "control connection ended");
                    }
                }
            }
        })?;
        Ok(Self { path: path.to_owned(), stop, thread: Some(thread) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread out of `accept`.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
    }
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
}
