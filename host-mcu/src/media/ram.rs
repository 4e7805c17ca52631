//! A namespace in a static array.

use core::task::Poll;

use super::{Media, MediaError};

/// Blocks in RAM.
#[derive(Debug)]
pub struct RamMedia<'a> {
    bytes: &'a mut [u8],
    block_bytes: u32,
}

impl<'a> RamMedia<'a> {
    /// A namespace of as many whole blocks as `bytes` has. `block_bytes` is 512 or 4096.
    #[must_use]
    pub const fn new(bytes: &'a mut [u8], block_bytes: u32) -> Self {
        Self { bytes, block_bytes }
    }

    fn range(&mut self, offset_bytes: u64, len_bytes: u64) -> &mut [u8] {
        let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let tail = self.bytes.get_mut(start..).unwrap_or_default();
        let end = len.min(tail.len());
        tail.get_mut(..end).unwrap_or_default()
    }
}

impl Media for RamMedia<'_> {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn size_blocks(&self) -> u64 {
        self.bytes.len() as u64 / u64::from(self.block_bytes)
    }

    /// Nothing is durable, and nothing becomes so by a flush.
    fn has_write_cache(&self) -> bool {
        false
    }

    fn read(&mut self, offset_bytes: u64, len_bytes: u32) -> Poll<Result<&[u8], MediaError>> {
        Poll::Ready(Ok(self.range(offset_bytes, u64::from(len_bytes))))
    }

    fn lend(&mut self, offset_bytes: u64, len_bytes: u32) -> &mut [u8] {
        self.range(offset_bytes, u64::from(len_bytes))
    }

    fn write(&mut self, _: u64, _: u32, _: bool) -> Poll<Result<(), MediaError>> {
        Poll::Ready(Ok(()))
    }

    fn zero(&mut self, offset_bytes: u64, len_bytes: u64, _: bool) -> Poll<Result<u64, MediaError>> {
        let now = len_bytes.min(ZEROED_AT_ONCE);
        self.range(offset_bytes, now).fill(0);
        Poll::Ready(Ok(now))
    }

    fn deallocate(&mut self, offset_bytes: u64, len_bytes: u64) -> Poll<Result<u64, MediaError>> {
        self.zero(offset_bytes, len_bytes, false)
    }

    fn flush(&mut self) -> Poll<Result<(), MediaError>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes that one call clears.
const ZEROED_AT_ONCE: u64 = 16_384;
