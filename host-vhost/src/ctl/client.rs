//! Asking a running server.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use super::protocol::{Answer, Command, Outcome, Reply, Request, VERSION};

/// Why a server gave no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// No server there.
    #[error("no server answers at {path}: {source}; is `doorbell serve --socket {socket}` running?")]
    Connect {
        /// The control socket.
        path: String,
        /// The device's socket.
        socket: String,
        /// Why.
        source: std::io::Error,
    },
    /// The conversation broke off.
    #[error("the server broke off: {0}")]
    Io(#[from] std::io::Error),
    /// The answer isn't of this protocol.
    #[error("the server's answer can't be read ({0}): is it of another version?")]
    Answer(#[from] serde_json::Error),
    /// The server refused.
    #[error("{0}")]
    Refused(String),
}

/// Sends one command to the server of the device at `socket` and waits for the answer.
///
/// # Errors
/// See [`AskError`].
pub fn ask(socket: &Path, command: Command) -> Result<Answer, AskError> {
    let path = super::path_of(socket);
    let mut stream = UnixStream::connect(&path).map_err(|source| AskError::Connect {
        path: path.display().to_string(),
        socket: socket.display().to_string(),
        source,
    })?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut line = serde_json::to_string(&Request { version: VERSION, command })?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match serde_json::from_str::<Reply>(&answer)?.outcome {
        Outcome::Ok(answer) => Ok(answer),
        Outcome::Error(text) => Err(AskError::Refused(text)),
    }
}
