//! Sending without waiting: what the socket doesn't take is kept.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Lost, MAX_BACKLOG_BYTES, Shared, lock};
use crate::vfio_user::protocol::MAX_SOCKET_FDS;

#[derive(Debug, Default)]
pub(super) struct Sender {
    pub(super) backlog: VecDeque<Outgoing>,
    pub(super) backlog_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    pub(super) fds: Vec<OwnedFd>,
}

impl Shared {
    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        let mut sender = lock(&self.sender);
        self.send_or_keep(&mut sender, bytes, fds).inspect_err(|lost| self.lose(*lost))
    }

    fn send_or_keep(&self, sender: &mut Sender, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        let mut sent = 0;
        if sender.backlog.is_empty() {
            sent = send_some(self.socket.as_fd(), bytes, fds)?;
            if sent == bytes.len() {
                return Ok(());
            }
        }
        if sender.backlog_bytes + bytes.len() > MAX_BACKLOG_BYTES {
            return Err(Lost::Backlog);
        }
        let kept = if sent > 0 { &[][..] } else { fds };
        let fds = kept
            .iter()
            .map(|fd| rustix::io::fcntl_dupfd_cloexec(*fd, 0))
            .collect::<Result<_, _>>()
            .map_err(Lost::Socket)?;
        sender.backlog_bytes += bytes.len();
        sender.backlog.push_back(Outgoing { bytes: bytes.to_vec(), sent, fds });
        Ok(())
    }

    pub(super) fn drain(&self, sender: &mut Sender) -> Result<(), Lost> {
        while let Some(front) = sender.backlog.front_mut() {
            let fds: Vec<_> = front.fds.iter().map(AsFd::as_fd).collect();
            let count = send_some(self.socket.as_fd(), &front.bytes[front.sent..], &fds)?;
            if count > 0 {
                front.fds.clear();
            }
            front.sent += count;
            if front.sent < front.bytes.len() {
                return Ok(());
            }
            sender.backlog_bytes -= front.bytes.len();
            sender.backlog.pop_front();
        }
        Ok(())
    }
}

/// One `sendmsg`; how many bytes the socket took.
fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Lost> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKET_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Lost::Socket(Errno::INVAL));
    }
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Lost::Closed),
            Err(errno) => return Err(Lost::Socket(errno)),
        }
    }
}
