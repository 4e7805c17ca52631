//! What a worker thread does on a file, with plain system calls and one buffer.
//!
//! Everything goes through the worker's own aligned buffer, so any address, offset and length works,
//! direct or not. A direct write that isn't aligned reads, changes and writes whole device blocks,
//! alone ([`Gate`](super::gate::Gate)).

#![expect(unsafe_code, reason = "copies between the buffer and guest memory")]

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags};

use super::StorageError;
use super::aligned::AlignedBuffer;
use super::command::Operation;
use super::file::FileShared;
use super::segments::Cursor;
use super::worker::{Backend, Request, SCRATCH_BYTES};

/// See the module.
#[derive(Debug)]
pub(super) struct FileWorker {
    shared: Arc<FileShared>,
}

/// How much is punched or zeroed in one call, between looks at cancellation.
const ZERO_STEP_BYTES: u64 = 4 << 30;

impl FileWorker {
    pub(super) fn new(shared: Arc<FileShared>) -> Self {
        Self { shared }
    }

    /// Reads the range of a request window by window; `each` gets the bytes asked for.
    fn windows(
        &self,
        request: &Request,
        scratch: &mut AlignedBuffer,
        mut each: impl FnMut(&mut [u8]) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        for window in Windows::new(request, u64::from(self.shared.alignment.offset_bytes)) {
            if request.cancelled() {
                return Err(StorageError::Cancelled);
            }
            let buffer = &mut scratch.bytes()[..window.len()];
            self.read_all(buffer, window.start)?;
            each(&mut buffer[window.wanted()])?;
        }
        Ok(())
    }

    fn write(&self, request: &Request, scratch: &mut AlignedBuffer, fua: bool) -> Result<(), StorageError> {
        if fua {
            self.shared.lost_flush.check()?;
        }
        let align = u64::from(self.shared.alignment.offset_bytes);
        let aligned = request.offset_bytes.is_multiple_of(align) && request.len_bytes.is_multiple_of(align);
        if aligned {
            self.shared.gate.enter();
            let result = self.write_windows(request, scratch, align, fua);
            self.shared.gate.leave();
            result
        } else {
            let _alone = self.shared.gate.alone();
            self.write_windows(request, scratch, align, fua)
        }
    }

    fn write_windows(
        &self,
        request: &Request,
        scratch: &mut AlignedBuffer,
        align: u64,
        fua: bool,
    ) -> Result<(), StorageError> {
        let zeroes = !request.operation.moves_data();
        let mut cursor = Cursor::new(request.segments());
        for window in Windows::new(request, align) {
            if request.cancelled() {
                return Err(StorageError::Cancelled);
            }
            let buffer = &mut scratch.bytes()[..window.len()];
            if window.is_partial() {
                self.read_all(buffer, window.start)?;
            }
            let wanted = &mut buffer[window.wanted()];
            if zeroes {
                wanted.fill(0);
            } else {
                // SAFETY: the segments of a write are readable and alive until we answer.
                unsafe { cursor.gather(wanted) };
            }
            self.write_all(buffer, window.start, fua)?;
        }
        Ok(())
    }

    fn zero(
        &self,
        request: &Request,
        scratch: &mut AlignedBuffer,
        deallocate: bool,
        fua: bool,
    ) -> Result<(), StorageError> {
        if fua {
            self.shared.lost_flush.check()?;
        }
        let done = steps(request, |offset, len| {
            let first = if deallocate { FileShared::punch } else { FileShared::zero_range };
            let second = if deallocate { FileShared::zero_range } else { FileShared::punch };
            Ok(first(&self.shared, offset, len)? || second(&self.shared, offset, len)?)
        })?;
        if done {
            return if fua { self.flush() } else { Ok(()) };
        }
        self.write(request, scratch, fua)
    }

    fn deallocate(&self, request: &Request) -> Result<(), StorageError> {
        let punched = steps(request, |offset, len| self.shared.punch(offset, len))?;
        if !punched && self.shared.block_device {
            self.shared.discard(request.offset_bytes, request.len_bytes);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), StorageError> {
        self.shared.lost_flush.check()?;
        let result = rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.shared));
        self.shared.lost_flush.note(result.map_err(Into::into), &self.shared.path)
    }

    /// Fills the buffer; past the end of a file with a partial sector, with zeroes.
    fn read_all(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<(), StorageError> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset_bytes + done as u64;
            let left = (buffer.len() - done) as u64;
            match rustix::io::pread(&self.shared, &mut buffer[done..], at) {
                Ok(0) if self.shared.ends_within(at, left) => {
                    buffer[done..].fill(0);
                    return Ok(());
                }
                Ok(0) => return Err(StorageError::Io(libc::EIO)),
                Ok(count) => done += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn write_all(&self, buffer: &[u8], offset_bytes: u64, fua: bool) -> Result<(), StorageError> {
        let result = self.try_write_all(buffer, offset_bytes, fua);
        if fua { self.shared.lost_flush.note(result, &self.shared.path) } else { result }
    }

    fn try_write_all(&self, buffer: &[u8], offset_bytes: u64, fua: bool) -> Result<(), StorageError> {
        let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut done = 0;
        while done < buffer.len() {
            let piece = [IoSlice::new(&buffer[done..])];
            match rustix::io::pwritev2(&self.shared, &piece, offset_bytes + done as u64, flags) {
                Ok(0) => return Err(StorageError::Io(libc::EIO)),
                Ok(count) => done += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl Backend for FileWorker {
    fn execute(&self, request: &Request, scratch: &mut AlignedBuffer) -> Result<(), StorageError> {
        let mut cursor = Cursor::new(request.segments());
        match request.operation {
            Operation::Read => self.windows(request, scratch, |bytes| {
                // SAFETY: the segments of a read are writable, or null, and alive until we answer.
                unsafe { cursor.scatter(bytes) };
                Ok(())
            }),
            Operation::Write { fua } => self.write(request, scratch, fua),
            Operation::Flush => self.flush(),
            Operation::WriteZeroes { deallocate, fua } => self.zero(request, scratch, deallocate, fua),
            Operation::Deallocate => self.deallocate(request),
            Operation::Compare => self.windows(request, scratch, |bytes| {
                // SAFETY: the segments of a compare are readable and alive until we answer.
                let same = unsafe { cursor.equals(bytes) };
                if same { Ok(()) } else { Err(StorageError::Miscompare) }
            }),
            Operation::Verify => self.windows(request, scratch, |_| Ok(())),
        }
    }
}

/// Calls `step` on pieces of a request's range; false as soon as it says false.
fn steps(
    request: &Request,
    mut step: impl FnMut(u64, u64) -> Result<bool, StorageError>,
) -> Result<bool, StorageError> {
    let end = request.offset_bytes + request.len_bytes;
    let mut at = request.offset_bytes;
    while at < end {
        if request.cancelled() {
            return Err(StorageError::Cancelled);
        }
        let len = (end - at).min(ZERO_STEP_BYTES);
        if !step(at, len)? {
            return Ok(false);
        }
        at += len;
    }
    Ok(true)
}

/// A range in buffer-sized pieces that begin and end on device blocks.
#[derive(Debug)]
struct Windows {
    at: u64,
    end: u64,
    align: u64,
}

/// One piece: whole device blocks from `start` to `stop`, of which `at..end` is wanted.
#[derive(Debug)]
struct Window {
    start: u64,
    stop: u64,
    at: u64,
    end: u64,
}

impl Windows {
    fn new(request: &Request, align: u64) -> Self {
        Self { at: request.offset_bytes, end: request.offset_bytes + request.len_bytes, align }
    }
}

impl Iterator for Windows {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        if self.at >= self.end {
            return None;
        }
        let start = self.at / self.align * self.align;
        let stop = self.end.next_multiple_of(self.align).min(start + SCRATCH_BYTES as u64);
        let window = Window { start, stop, at: self.at, end: self.end.min(stop) };
        self.at = window.end;
        Some(window)
    }
}

impl Window {
    fn len(&self) -> usize {
        (self.stop - self.start) as usize
    }

    fn wanted(&self) -> std::ops::Range<usize> {
        (self.at - self.start) as usize..(self.end - self.start) as usize
    }

    fn is_partial(&self) -> bool {
        (self.start, self.stop) != (self.at, self.end)
    }
}
