//! Where connections come from: a socket path, or a file descriptor that was handed over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

/// Bytes of a socket path that the kernel takes.
const MAX_PATH_BYTES: usize = 107;

/// The socket's name in a directory that SPDK's client is given.
const SPDK_NAME: &str = "cntrl";

/// How long a server that could not accept a client does without looking for one.
pub(crate) const ACCEPT_AGAIN: std::time::Duration = std::time::Duration::from_millis(100);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Too long for the kernel.
    #[error("the socket path {} has {} bytes, but the system takes at most {MAX_PATH_BYTES}: use a shorter one", path.display(), path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// Something that isn't a socket is there.
    #[error("{} exists and isn't a socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A directory is there.
    #[error("{} is a directory: name a socket in it, or ask for SPDK's naming (DIR/cntrl)", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// A live server has it.
    #[error("another process is listening on {}: stop it or choose another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("can't {what} {}: {error}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A number that names nothing, or one of the standard streams.
    #[error("file descriptor {fd} isn't a socket of this process: --fd names one that was handed over")]
    NotOpen {
        /// The number.
        fd: i32,
    },
    /// Not a UNIX stream socket.
    #[error("file descriptor {fd} isn't a UNIX stream socket")]
    NotUnix {
        /// The number.
        fd: i32,
    },
}

/// How the path given by a person is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// It is the socket.
    #[default]
    Socket,
    /// It is a directory, made if needed, and the socket is `cntrl` in it, as SPDK's client expects.
    SpdkDirectory,
}

/// A listening socket, with its path if it has one. The path is removed on drop if it still is this socket.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: Option<Bound>,
}

#[derive(Debug)]
struct Bound {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// What a file descriptor that was handed over turned out to be.
#[derive(Debug)]
pub enum Handed {
    /// A socket to accept clients from.
    Listening(Listener),
    /// One client, connected already.
    Connected(UnixStream),
}

impl Listener {
    /// Listens on `path` with mode 0600. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// See [`ListenError`]; whatever is at the path then is left alone.
    pub fn bind(path: &Path, naming: Naming) -> Result<Self, ListenError> {
        let path = match naming {
            Naming::Socket => path.to_path_buf(),
            Naming::SpdkDirectory => {
                std::fs::create_dir_all(path).map_err(system("create the directory", path))?;
                path.join(SPDK_NAME)
            }
        };
        check_free(&path)?;
        // Bound under another name first: what appears at the path is complete, with its mode, at once.
        let mut fresh = path.clone().into_os_string();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        if fresh.as_os_str().len() > MAX_PATH_BYTES {
            return Err(ListenError::TooLong { path });
        }
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(system("remove the left-over", &fresh)(error));
            }
            _ => {}
        }
        let socket = UnixListener::bind(&fresh).map_err(system("create the socket", &fresh))?;
        let placed = place(&socket, &fresh, &path);
        if placed.is_err() {
            // The error that counts is the one that is returned.
            let _ = std::fs::remove_file(&fresh);
        }
        Ok(Self { socket, path: Some(placed?) })
    }

    /// Takes over a socket that another process made, listening or connected.
    ///
    /// # Errors
    /// [`ListenError::NotUnix`].
    pub fn from_fd(fd: OwnedFd) -> Result<Handed, ListenError> {
        use std::os::fd::AsRawFd;
        let number = fd.as_raw_fd();
        let unix = socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && socket_type(&fd).is_ok_and(|kind| kind == SocketType::STREAM);
        if !unix {
            return Err(ListenError::NotUnix { fd: number });
        }
        match socket_acceptconn(&fd) {
            Ok(true) => {
                let socket = UnixListener::from(fd);
                // Only matters to a caller that polls; accept works either way.
                let _ = socket.set_nonblocking(true);
                Ok(Handed::Listening(Self { socket, path: None }))
            }
            Ok(false) => Ok(Handed::Connected(UnixStream::from(fd))),
            Err(_) => Err(ListenError::NotUnix { fd: number }),
        }
    }

    /// Takes a client that waits, without waiting for one.
    ///
    /// # Errors
    /// What `accept` says.
    pub fn try_accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {
                    Ok(None)
                }
                _ => Err(error),
            },
        }
    }

    /// The path of the socket; `None` where it was handed over.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_ref().map(|bound| bound.path.as_path())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(bound) = &self.path else { return };
        let ours = std::fs::symlink_metadata(&bound.path)
            .is_ok_and(|found| found.dev() == bound.device && found.ino() == bound.inode);
        if ours {
            // Nobody is left to tell.
            let _ = std::fs::remove_file(&bound.path);
        }
    }
}

/// Makes sure that nothing is lost by putting a socket at `path`.
fn check_free(path: &Path) -> Result<(), ListenError> {
    if path.as_os_str().len() > MAX_PATH_BYTES {
        return Err(ListenError::TooLong { path: path.to_path_buf() });
    }
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at", path)(error)),
    };
    if found.is_dir() {
        return Err(ListenError::Directory { path: path.to_path_buf() });
    }
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_path_buf() });
    }
    match UnixStream::connect(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            Ok(())
        }
        Ok(_) => Err(ListenError::InUse { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ListenError::InUse { path: path.to_path_buf() })
        }
        Err(error) => Err(system("find out whether anybody uses", path)(error)),
    }
}

fn place(socket: &UnixListener, fresh: &Path, path: &Path) -> Result<Bound, ListenError> {
    std::fs::set_permissions(fresh, std::fs::Permissions::from_mode(0o600))
        .map_err(system("set the mode of", fresh))?;
    socket.set_nonblocking(true).map_err(system("set up", fresh))?;
    let metadata = std::fs::symlink_metadata(fresh).map_err(system("look at", fresh))?;
    std::fs::rename(fresh, path).map_err(system("put the socket at", path))?;
    Ok(Bound { path: path.to_path_buf(), device: metadata.dev(), inode: metadata.ino() })
}

fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ListenError {
    let path = path.to_path_buf();
    move |error| ListenError::System { what, path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&path, Naming::Socket).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path, Naming::Socket), Err(ListenError::InUse { .. })));
        // The look from the second server is a connection too.
        assert!(listener.try_accept().unwrap().is_some());
        assert!(listener.try_accept().unwrap().is_none());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "keep").unwrap();
        assert!(matches!(Listener::bind(&file, Naming::Socket), Err(ListenError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "keep");
        assert!(matches!(Listener::bind(dir.path(), Naming::Socket), Err(ListenError::Directory { .. })));
        let long = dir.path().join("x".repeat(120));
        assert!(matches!(Listener::bind(&long, Naming::Socket), Err(ListenError::TooLong { .. })));
        let spdk = Listener::bind(&dir.path().join("d"), Naming::SpdkDirectory).unwrap();
        assert_eq!(spdk.path().unwrap(), dir.path().join("d/cntrl"));
    }

    #[test]
    fn a_handed_socket_is_recognised() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(matches!(Listener::from_fd(one.into()), Ok(Handed::Connected(_))));
        let dir = tempfile::tempdir().unwrap();
        let listening = UnixListener::bind(dir.path().join("s")).unwrap();
        assert!(matches!(Listener::from_fd(listening.into()), Ok(Handed::Listening(_))));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(Listener::from_fd(file.into()), Err(ListenError::NotUnix { .. })));
    }
}
