//! Messages by hand, byte for byte, as a client that isn't ours.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub payload: Vec<u8>,
}

/// A header and payload with the true size.
pub fn message(id: u16, command: u16, payload: &[u8]) -> Vec<u8> {
    with_header(id, command, 16 + payload.len() as u32, 0, payload)
}

/// A header that says what it likes.
pub fn with_header(id: u16, command: u16, size: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Little-endian dwords.
pub fn dwords(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// argsz, flags, and qwords.
pub fn dma(argsz: u32, flags: u32, qwords: &[u64]) -> Vec<u8> {
    let mut bytes = dwords(&[argsz, flags]);
    bytes.extend(qwords.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// Offset, region, count, data.
pub fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend(dwords(&[region, count]));
    bytes.extend_from_slice(data);
    bytes
}

pub fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}

pub fn receive(stream: &mut UnixStream) -> Answer {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut payload = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut payload).unwrap();
    Answer { id: half(0), command: half(2), flags: word(8), error: word(12), payload }
}

pub fn ask(stream: &mut UnixStream, id: u16, command: u16, payload: &[u8]) -> Answer {
    send(stream, &message(id, command, payload), &[]);
    receive(stream)
}

/// VERSION 0.0 with the JSON that QEMU sends.
pub fn negotiate(stream: &mut UnixStream) -> Answer {
    let json = br#"{"capabilities": {"migration": {"pgsize": 4096, "max_bitmap_size": 268435456}, "max_msg_fds": 8, "max_data_xfer_size": 1048576, "max_dma_maps": 65535, "pgsizes": 4096, "write_multiple": true}}"#;
    let mut payload = vec![0, 0, 0, 0];
    payload.extend_from_slice(json);
    payload.push(0);
    let answer = ask(stream, 1, 1, &payload);
    assert_eq!(answer.flags, 1, "{answer:?}");
    answer
}
