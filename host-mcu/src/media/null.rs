//! A namespace that keeps nothing.

use core::task::Poll;

use super::{Media, MediaError};

/// Bytes shown or lent at once, which is also the block size.
const BYTES: usize = 4096;

/// Reads are zeroes and writes are dropped: what the controller costs without a medium.
#[derive(Debug)]
pub struct NullMedia {
    dropped: [u8; BYTES],
    size_blocks: u64,
}

impl NullMedia {
    /// A namespace of `size_blocks` blocks of 4096 bytes.
    #[must_use]
    pub const fn new(size_blocks: u64) -> Self {
        Self { dropped: [0; BYTES], size_blocks }
    }
}

static ZEROES: [u8; BYTES] = [0; BYTES];

impl Media for NullMedia {
    fn block_bytes(&self) -> u32 {
        BYTES as u32
    }

    fn size_blocks(&self) -> u64 {
        self.size_blocks
    }

    fn has_write_cache(&self) -> bool {
        false
    }

    fn read(&mut self, _: u64, len_bytes: u32) -> Poll<Result<&[u8], MediaError>> {
        Poll::Ready(Ok(ZEROES.get(..len_bytes as usize).unwrap_or(&ZEROES)))
    }

    fn lend(&mut self, _: u64, len_bytes: u32) -> &mut [u8] {
        let len = (len_bytes as usize).min(BYTES);
        self.dropped.get_mut(..len).unwrap_or_default()
    }

    fn write(&mut self, _: u64, _: u32, _: bool) -> Poll<Result<(), MediaError>> {
        Poll::Ready(Ok(()))
    }

    fn zero(&mut self, _: u64, len_bytes: u64, _: bool) -> Poll<Result<u64, MediaError>> {
        Poll::Ready(Ok(len_bytes))
    }

    fn flush(&mut self) -> Poll<Result<(), MediaError>> {
        Poll::Ready(Ok(()))
    }
}
