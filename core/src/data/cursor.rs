//! Small pieces in and out of a command's guest memory, in order: no page-sized buffer anywhere.

use super::{DataStart, Segment, Segments};
use crate::memory::DmaMemory;
use crate::spec::status::Status;

/// The position inside a walk, shared by the reader and the writer.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    segments: Segments,
    current: Option<Segment>,
}

impl Cursor {
    /// Up to `want` contiguous bytes at the position, which moves past them.
    fn advance(&mut self, memory: &impl DmaMemory, want: u32) -> Result<Segment, Status> {
        let segment = match self.current.take() {
            Some(segment) => segment,
            None => match self.segments.next_segment(memory) {
                Some(segment) => segment?,
                // The caller asked for more bytes than the walk was made for.
                None => return Err(Status::INTERNAL_ERROR),
            },
        };
        let len_bytes = segment.len_bytes.min(want);
        let rest = segment.len_bytes.saturating_sub(len_bytes);
        if rest > 0 {
            let address = segment.address.wrapping_add(u64::from(len_bytes));
            self.current = Some(Segment { address, len_bytes: rest, ..segment });
        }
        Ok(Segment { len_bytes, ..segment })
    }
}

/// Writes a reply piece by piece into the guest memory that a command names.
#[derive(Clone, Copy, Debug)]
pub struct DataWriter(Cursor);

impl DataWriter {
    /// A writer at the start of `segments`.
    #[must_use]
    pub fn new(segments: Segments) -> Self {
        Self(Cursor { segments, current: None })
    }

    /// Writes `bytes` at the position.
    ///
    /// # Errors
    /// The status that the command ends with; what was written before stays.
    pub fn write(&mut self, memory: &impl DmaMemory, bytes: &[u8]) -> Result<(), Status> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let want = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let segment = self.0.advance(memory, want)?;
            let Some((now, later)) = rest.split_at_checked(segment.len_bytes as usize) else {
                return Err(Status::INTERNAL_ERROR);
            };
            if !segment.bit_bucket {
                memory.write(segment.address, now)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes `len_bytes` zero bytes at the position.
    ///
    /// # Errors
    /// As [`DataWriter::write`].
    pub fn write_zeroes(&mut self, memory: &impl DmaMemory, len_bytes: u32) -> Result<(), Status> {
        const ZEROES: [u8; 64] = [0; 64];
        let mut left = len_bytes as usize;
        while left > 0 {
            let piece = ZEROES.get(..left).unwrap_or(&ZEROES);
            self.write(memory, piece)?;
            left = left.saturating_sub(piece.len());
        }
        Ok(())
    }
}

/// Reads a command's data piece by piece from guest memory; every byte is read once.
#[derive(Clone, Copy, Debug)]
pub struct DataReader(Cursor);

impl DataReader {
    /// A reader at the start of `segments`.
    #[must_use]
    pub const fn new(segments: Segments) -> Self {
        Self(Cursor { segments, current: None })
    }

    /// Where the walk starts, or `None` once something has been read.
    #[inline]
    #[must_use]
    pub const fn start(&self) -> Option<DataStart> {
        match &self.0.current {
            None => self.0.segments.start(),
            Some(_) => None,
        }
    }

    /// Fills `buffer` from the position.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn read(&mut self, memory: &impl DmaMemory, buffer: &mut [u8]) -> Result<(), Status> {
        let mut rest = buffer;
        while !rest.is_empty() {
            let want = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let segment = self.0.advance(memory, want)?;
            let Some((now, later)) = rest.split_at_mut_checked(segment.len_bytes as usize) else {
                return Err(Status::INTERNAL_ERROR);
            };
            memory.read(segment.address, now)?;
            rest = later;
        }
        Ok(())
    }
}
