//! From a descriptor chain to a storage operation: the requests of a block device (VIRTIO 1.3, 5.2.6).
#![expect(unsafe_code, reason = "lends guest memory to a storage")]

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::chain::TooManyPieces;
use super::super::disk::{F_INDIRECT, SECTOR_BYTES};
use super::super::medium::Medium;
use super::super::queue_log::QueueLog;
use super::super::ring::Broken;
use super::ranges::Ranges;
use super::{IOERR, Io, OK, UNSUPP, Virtqueue, token};
use crate::storage::{IoContext, Operation, StorageCommand, StorageError, Submission, Token};

/// What became of a request that was started or continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has ended with this status.
    Done(u8),
    /// The storage works on it.
    Queued,
    /// The storage has no room.
    Busy,
}

/// `struct virtio_blk_req`, the part that is read (5.2.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

const HEADER_BYTES: usize = 16;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Virtqueue {
    /// Parses a request and starts it.
    #[inline]
    pub(super) fn start(&mut self, head: u16, io: &mut Io<'_>) -> Result<Step, Broken> {
        let flight = &mut self.flights[usize::from(head)];
        if flight.ranges.is_under_way() {
            return Ok(self.continue_ranges(head, io));
        }
        let Io { context, storage, chain, lane } = io;
        let token = token(*lane, head);
        chain.walk(&self.ring, &self.map, head, self.features & F_INDIRECT != 0)?;
        flight.status = Some(chain.take_status().ok_or(Broken::NoStatus)?);
        flight.used_len = 1;
        flight.data_bytes = 0;
        let mut header = [0; HEADER_BYTES];
        if !chain.read_front(&mut header) {
            return Err(Broken::NoHeader);
        }
        let Header { kind, sector, .. } = zerocopy::transmute!(header);
        Ok(match kind.get() {
            VIRTIO_BLK_T_IN => {
                let len_bytes = chain.writable_bytes();
                flight.data_bytes = len_bytes;
                // More than 32 bits can say isn't said.
                flight.used_len = u32::try_from(len_bytes + 1).unwrap_or(u32::MAX);
                let pieces = chain.writable();
                if !keep(&mut self.log, head, &pieces) {
                    return Ok(Step::Busy);
                }
                let step =
                    transfer(Operation::Read, sector.get(), len_bytes, pieces, token, context, storage)
                        .unwrap_or_else(|error| Step::Done(self.failed(error)));
                if let (Step::Busy, Some(log)) = (step, &mut self.log) {
                    log.forget(head);
                }
                step
            }
            VIRTIO_BLK_T_OUT => {
                let operation = Operation::Write { fua: self.disk.write_through() };
                let len_bytes = chain.readable_bytes();
                flight.data_bytes = len_bytes;
                let pieces = chain.readable();
                transfer(operation, sector.get(), len_bytes, pieces, token, context, storage)
                    .unwrap_or_else(|error| Step::Done(self.failed(error)))
            }
            VIRTIO_BLK_T_FLUSH => {
                let flush = StorageCommand::without_data(token, Operation::Flush, 0, 0);
                match storage.submit(context, &flush) {
                    Submission::Complete(Ok(())) => Step::Done(OK),
                    Submission::Complete(Err(error)) => Step::Done(self.failed(error)),
                    Submission::Queued => Step::Queued,
                    Submission::Busy => Step::Busy,
                }
            }
            VIRTIO_BLK_T_GET_ID => {
                if !keep(&mut self.log, head, &chain.writable()) {
                    return Ok(Step::Busy);
                }
                flight.used_len += chain.write_front(self.disk.id()) as u32;
                Step::Done(OK)
            }
            kind @ (VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) => {
                match Ranges::parse(kind == VIRTIO_BLK_T_DISCARD, chain, &self.disk) {
                    Err(status) => Step::Done(status),
                    Ok(ranges) => {
                        flight.ranges = ranges;
                        self.continue_ranges(head, io)
                    }
                }
            }
            // Secure erase isn't offered; a zoned disk this isn't.
            _ => Step::Done(UNSUPP),
        })
    }

    /// Starts a flight's next range, and the ones after it as long as they end at once.
    pub(super) fn continue_ranges(&mut self, head: u16, io: &mut Io<'_>) -> Step {
        let write_through = self.disk.write_through();
        loop {
            let ranges = &mut self.flights[usize::from(head)].ranges;
            let Some((operation, offset_bytes, len_bytes)) = ranges.first(write_through) else {
                ranges.clear();
                return Step::Done(OK);
            };
            let command =
                StorageCommand::without_data(token(io.lane, head), operation, offset_bytes, len_bytes);
            match io.storage.submit(io.context, &command) {
                Submission::Busy => return Step::Busy,
                Submission::Queued => {
                    ranges.advance();
                    return Step::Queued;
                }
                Submission::Complete(Ok(())) => ranges.advance(),
                Submission::Complete(Err(error)) => {
                    ranges.clear();
                    return Step::Done(self.failed(error));
                }
            }
        }
    }

    /// The status for an error.
    #[cold]
    pub(super) fn failed(&self, error: StorageError) -> u8 {
        if matches!(error, StorageError::Io(_) | StorageError::NoSpace) {
            crate::rate_limit::warn_sometimes(|| {
                tracing::warn!(queue = self.index, %error, "storage error");
            });
        }
        if error == StorageError::Unsupported { UNSUPP } else { IOERR }
    }
}

/// Keeps for the log what a request will write, if there is a log. False: there is no room for it now.
#[inline]
fn keep(log: &mut Option<Box<QueueLog>>, head: u16, pieces: &Result<&[libc::iovec], TooManyPieces>) -> bool {
    match (log, pieces) {
        (Some(log), Ok(pieces)) => log.keep(head, pieces),
        _ => true,
    }
}

/// Starts a read or a write.
#[inline]
fn transfer(
    operation: Operation,
    sector: u64,
    len_bytes: u64,
    pieces: Result<&[libc::iovec], TooManyPieces>,
    token: Token,
    context: &mut IoContext,
    storage: &mut Medium,
) -> Result<Step, StorageError> {
    let Ok(pieces) = pieces else { return Err(StorageError::BadSegments) };
    let offset_bytes = sector.checked_mul(SECTOR_BYTES).ok_or(StorageError::OutOfRange)?;
    if !len_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(StorageError::BadSegments);
    }
    // SAFETY: every piece lies in a mapping of the map that the queue keeps until nothing is in flight.
    let command = unsafe { StorageCommand::new(token, operation, offset_bytes, len_bytes, pieces) };
    match storage.submit(context, &command) {
        Submission::Complete(result) => result.map(|()| Step::Done(OK)),
        Submission::Queued => Ok(Step::Queued),
        Submission::Busy => Ok(Step::Busy),
    }
}
