//! The reader: messages from the socket, whole, with the file descriptors that belong to them.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use zerocopy::FromBytes;

use super::{Lost, Message, Shared};
use crate::vfio_user::protocol::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MAX_SOCKET_FDS};

/// What has been read of the message that is coming in, and what came in during a call.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    pub(super) partial: Partial,
    pub(super) queued: VecDeque<Message>,
}

#[derive(Debug, Default)]
pub(super) struct Partial {
    pub(super) header: [u8; HEADER_BYTES],
    /// Bytes read of the message, header included.
    pub(super) read: usize,
    /// Bytes still to be passed over without being kept.
    pub(super) skip: usize,
    pub(super) message: Message,
}

impl Shared {
    /// Reads one message to its end, or as far as the socket has it.
    pub(super) fn receive_whole(&self, receiver: &mut Receiver, message: &mut Message) -> Result<bool, Lost> {
        match self.advance(&mut receiver.partial) {
            Ok(false) => Ok(false),
            Ok(true) => {
                std::mem::swap(message, &mut receiver.partial.message);
                receiver.partial.reset();
                Ok(true)
            }
            Err(lost) => {
                self.lose(lost);
                Err(lost)
            }
        }
    }

    fn advance(&self, partial: &mut Partial) -> Result<bool, Lost> {
        loop {
            if partial.read < HEADER_BYTES {
                let Some(count) = self.receive_some(partial, Part::Header)? else { return Ok(false) };
                partial.read += count;
                if partial.read == HEADER_BYTES {
                    partial.take_header();
                }
            } else if partial.skip > 0 {
                let Some(count) = self.receive_some(partial, Part::Skip)? else { return Ok(false) };
                partial.skip -= count;
            } else if partial.read < HEADER_BYTES + partial.message.payload.len() {
                let Some(count) = self.receive_some(partial, Part::Payload)? else { return Ok(false) };
                partial.read += count;
            } else {
                return Ok(true);
            }
        }
    }

    /// Reads at most to the end of that part, so file descriptors always belong to the message at hand.
    fn receive_some(&self, partial: &mut Partial, part: Part) -> Result<Option<usize>, Lost> {
        let mut skipped = [0; 4096];
        let target = match part {
            Part::Header => &mut partial.header[partial.read..],
            Part::Payload => &mut partial.message.payload[partial.read - HEADER_BYTES..],
            Part::Skip => {
                let len = partial.skip.min(skipped.len());
                &mut skipped[..len]
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKET_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(target)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(Lost::Closed),
                Err(errno) => return Err(Lost::Socket(errno)),
                Ok(received) => break received,
            }
        };
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = ancillary {
                partial.message.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || partial.message.fds.len() > self.max_fds {
            partial.message.fault = Some(Errno::INVAL);
            partial.message.fds.clear();
        }
        if received.bytes == 0 { Err(Lost::Closed) } else { Ok(Some(received.bytes)) }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Header,
    Payload,
    Skip,
}

impl Partial {
    /// Decides what to do with what follows the header. A size below the header's own can't be true; then
    /// nothing follows, as far as one can say.
    fn take_header(&mut self) {
        let header = Header::read_from_bytes(&self.header).unwrap_or_default();
        self.message.header = header;
        let payload = (header.message_size.get() as usize).checked_sub(HEADER_BYTES);
        match payload {
            None => self.message.fault = Some(Errno::INVAL),
            Some(bytes) if bytes > MAX_MESSAGE_BYTES - HEADER_BYTES => {
                self.message.fault = Some(Errno::MSGSIZE);
                self.skip = bytes;
            }
            Some(bytes) => self.message.payload.resize(bytes, 0),
        }
    }

    /// Makes ready for the next message; the buffers that were swapped in are kept.
    fn reset(&mut self) {
        self.read = 0;
        self.skip = 0;
        self.message.payload.clear();
        self.message.fds.clear();
        self.message.fault = None;
    }
}
