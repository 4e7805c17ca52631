//! A command under way: a piece of it at a time.

use core::task::Poll;

use doorbell_core::command::{DeallocateRanges, IoCommand, Operation};
use doorbell_core::data::{DataReader, DataWriter};
use doorbell_core::memory::DmaMemory;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use crate::media::{Media, MediaError};

/// Bytes of guest memory that a comparison takes at a time.
const COMPARED: usize = 64;

/// A command and how far it has come.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) tag: Tag,
    offset_bytes: u64,
    left_bytes: u64,
    task: Task,
}

#[derive(Debug)]
enum Task {
    Read(DataWriter),
    Write {
        data: DataReader,
        durable: bool,
        /// Bytes of lent memory that are filled and that the medium hasn't taken.
        filled: u32,
    },
    Compare(DataReader),
    Verify,
    Zero {
        durable: bool,
    },
    Deallocate(DeallocateRanges),
    Flush,
}

/// What a piece came to.
pub(super) enum Step {
    GoesOn,
    /// The medium is busy: the same again.
    Waits,
    Ended(Status),
}

impl Work {
    #[inline]
    pub(super) fn new(command: &IoCommand) -> Self {
        let (offset_bytes, left_bytes, task) = match command.operation {
            Operation::Read(transfer) => (
                transfer.offset_bytes,
                u64::from(transfer.len_bytes),
                Task::Read(DataWriter::new(transfer.segments)),
            ),
            Operation::Write { transfer, fua } => (
                transfer.offset_bytes,
                u64::from(transfer.len_bytes),
                Task::Write { data: DataReader::new(transfer.segments), durable: fua, filled: 0 },
            ),
            Operation::Compare(transfer) => (
                transfer.offset_bytes,
                u64::from(transfer.len_bytes),
                Task::Compare(DataReader::new(transfer.segments)),
            ),
            Operation::Verify(range) => (range.offset_bytes, range.len_bytes, Task::Verify),
            Operation::WriteZeroes { range, deallocate: _, fua } => {
                (range.offset_bytes, range.len_bytes, Task::Zero { durable: fua })
            }
            Operation::Deallocate(ranges) => (0, 0, Task::Deallocate(ranges)),
            Operation::Flush | Operation::FlushAll => (0, 0, Task::Flush),
        };
        Self { tag: command.tag, offset_bytes, left_bytes, task }
    }

    /// Carries out a piece: what the medium shows, lends or clears at once.
    pub(super) fn step(&mut self, memory: &impl DmaMemory, media: &mut impl Media) -> Step {
        let left = u32::try_from(self.left_bytes).unwrap_or(u32::MAX);
        let done = match &mut self.task {
            Task::Read(data) => {
                media.read(self.offset_bytes, left).map(|shown| write_out(shown, memory, data))
            }
            Task::Write { data, durable, filled } => {
                if *filled == 0 {
                    let lent = media.lend(self.offset_bytes, left);
                    if let Err(status) = data.read(memory, lent) {
                        return Step::Ended(status);
                    }
                    *filled = u32::try_from(lent.len()).unwrap_or(0);
                }
                let written = media.write(self.offset_bytes, *filled, *durable);
                let len = u64::from(if written.is_ready() { core::mem::take(filled) } else { *filled });
                written.map(|written| written.map(|()| len).map_err(MediaError::status))
            }
            Task::Compare(data) => {
                media.read(self.offset_bytes, left).map(|shown| compare(shown, memory, data))
            }
            Task::Verify => media
                .read(self.offset_bytes, left)
                .map(|shown| shown.map(|shown| shown.len() as u64).map_err(MediaError::status)),
            Task::Zero { durable } => media
                .zero(self.offset_bytes, self.left_bytes, *durable)
                .map(|zeroed| zeroed.map_err(MediaError::status)),
            Task::Deallocate(ranges) => {
                if self.left_bytes == 0 {
                    match ranges.next_range(memory) {
                        None => return Step::Ended(Status::SUCCESS),
                        Some(Err(status)) => return Step::Ended(status),
                        Some(Ok(range)) => {
                            self.offset_bytes = range.offset_bytes;
                            self.left_bytes = range.len_bytes;
                        }
                    }
                }
                media
                    .deallocate(self.offset_bytes, self.left_bytes)
                    .map(|done| done.map_err(MediaError::status))
            }
            Task::Flush => media.flush().map(|flushed| flushed.map(|()| 0).map_err(MediaError::status)),
        };
        match done {
            Poll::Pending => Step::Waits,
            Poll::Ready(Err(status)) => Step::Ended(status),
            Poll::Ready(Ok(bytes)) => self.advance(bytes),
        }
    }

    fn advance(&mut self, bytes: u64) -> Step {
        // A medium that shows nothing would keep the command for ever.
        if bytes == 0 && self.left_bytes != 0 {
            return Step::Ended(Status::INTERNAL_ERROR);
        }
        self.offset_bytes = self.offset_bytes.wrapping_add(bytes);
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        if self.left_bytes == 0 && !matches!(self.task, Task::Deallocate(_)) {
            Step::Ended(Status::SUCCESS)
        } else {
            Step::GoesOn
        }
    }
}

fn write_out(
    shown: Result<&[u8], MediaError>,
    memory: &impl DmaMemory,
    data: &mut DataWriter,
) -> Result<u64, Status> {
    let shown = shown.map_err(MediaError::status)?;
    data.write(memory, shown)?;
    Ok(shown.len() as u64)
}

fn compare(
    shown: Result<&[u8], MediaError>,
    memory: &impl DmaMemory,
    data: &mut DataReader,
) -> Result<u64, Status> {
    let shown = shown.map_err(MediaError::status)?;
    for piece in shown.chunks(COMPARED) {
        let mut buffer = [0; COMPARED];
        let theirs = buffer.get_mut(..piece.len()).unwrap_or_default();
        data.read(memory, theirs)?;
        if theirs != piece {
            return Err(Status::COMPARE_FAILURE);
        }
    }
    Ok(shown.len() as u64)
}
