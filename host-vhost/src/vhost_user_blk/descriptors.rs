//! Messages with a descriptor that the `vhost` crate doesn't hand over as they are needed: SET_LOG_FD, for which it
//! knows no handler, so that it would end the session; and SET_BACKEND_REQ_FD, whose channel it wraps into a type
//! that can't say CONFIG_CHANGE_MSG. So each message is looked at before the crate reads it, and these are answered
//! here.

use std::fs::File;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Error, Result};

use super::backend::Backend;

/// See the module: a second descriptor of the session's connection.
#[derive(Debug)]
pub(super) struct Descriptors {
    stream: UnixStream,
}

/// `VHOST_USER_SET_LOG_FD`.
const SET_LOG_FD: u32 = 7;
/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;

/// Request, flags, size of the payload: 32 bits each.
const HEADER_BYTES: usize = 12;

/// Bits of the flags: version 1, a reply, a reply is wanted.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

impl Descriptors {
    pub(super) fn new(stream: &UnixStream) -> io::Result<Self> {
        Ok(Self { stream: stream.try_clone()? })
    }

    /// Waits for the next message. `None`: it is another one, and still to be read.
    pub(super) fn handle(&self, backend: &Mutex<Backend>) -> Option<Result<()>> {
        let mut code = [0; 4];
        // Fewer bytes, none or an error: whoever reads next finds the same.
        let (_, len) = recv(&self.stream, &mut code, RecvFlags::PEEK).ok()?;
        let code = u32::from_le_bytes(code);
        (len == 4 && matches!(code, SET_LOG_FD | SET_BACKEND_REQ_FD)).then(|| self.set(code, backend))
    }

    fn set(&self, code: u32, backend: &Mutex<Backend>) -> Result<()> {
        let mut header = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let received = recvmsg(&self.stream, &mut slices, &mut control, flags)
            .map_err(|errno| Error::SocketError(errno.into()))?;
        let mut files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds.map(File::from)),
            _ => None,
        });
        let file = files.next().and_then(|mut files| files.next());
        let [_, flags, payload_bytes] = words(header);
        let truncated = received.flags.contains(rustix::net::ReturnFlags::CTRUNC);
        if received.bytes != HEADER_BYTES || payload_bytes != 0 || flags & (VERSION_MASK | REPLY) != VERSION {
            return Err(Error::InvalidMessage);
        }
        let file = file.filter(|_| !truncated).ok_or(Error::IncorrectFds)?;
        let mut backend = backend.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match code {
            SET_LOG_FD => backend.set_log_fd(file),
            _ => backend.set_channel(file),
        };
        if flags & NEED_REPLY != 0 && backend.has_protocol_feature(VhostUserProtocolFeatures::REPLY_ACK) {
            let mut reply = Vec::with_capacity(HEADER_BYTES + 8);
            for word in [code, VERSION | REPLY, 8, u32::from(done.is_err()), 0] {
                reply.extend(word.to_le_bytes());
            }
            (&self.stream).write_all(&reply).map_err(Error::SocketError)?;
        }
        done
    }
}

fn words([a, b, c, d, e, f, g, h, i, j, k, l]: [u8; HEADER_BYTES]) -> [u32; 3] {
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}
