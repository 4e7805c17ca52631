//! A medium that can be held up, so that commands are in flight when the model host wants them to be.

use core::task::Poll;

use crate::media::{Media, MediaError};

/// `M`, which answers nothing while it is shut.
#[derive(Debug)]
pub struct Gate<M> {
    medium: M,
    shut: bool,
}

impl<M> Gate<M> {
    /// An open gate in front of `medium`.
    pub const fn new(medium: M) -> Self {
        Self { medium, shut: false }
    }

    pub(super) fn shut(&mut self) {
        self.shut = true;
    }

    pub(super) fn open(&mut self) {
        self.shut = false;
    }
}

impl<M: Media> Media for Gate<M> {
    fn block_bytes(&self) -> u32 {
        self.medium.block_bytes()
    }
    fn size_blocks(&self) -> u64 {
        self.medium.size_blocks()
    }
    fn has_write_cache(&self) -> bool {
        self.medium.has_write_cache()
    }
    fn read(&mut self, offset_bytes: u64, len_bytes: u32) -> Poll<Result<&[u8], MediaError>> {
        if self.shut { Poll::Pending } else { self.medium.read(offset_bytes, len_bytes) }
    }
    fn lend(&mut self, offset_bytes: u64, len_bytes: u32) -> &mut [u8] {
        self.medium.lend(offset_bytes, len_bytes)
    }
    fn write(&mut self, offset_bytes: u64, len_bytes: u32, durable: bool) -> Poll<Result<(), MediaError>> {
        if self.shut { Poll::Pending } else { self.medium.write(offset_bytes, len_bytes, durable) }
    }
    fn zero(&mut self, offset_bytes: u64, len_bytes: u64, durable: bool) -> Poll<Result<u64, MediaError>> {
        if self.shut { Poll::Pending } else { self.medium.zero(offset_bytes, len_bytes, durable) }
    }
    fn deallocate(&mut self, offset_bytes: u64, len_bytes: u64) -> Poll<Result<u64, MediaError>> {
        if self.shut { Poll::Pending } else { self.medium.deallocate(offset_bytes, len_bytes) }
    }
    fn give_up(&mut self) -> bool {
        self.shut || self.medium.give_up()
    }
    fn flush(&mut self) -> Poll<Result<(), MediaError>> {
        if self.shut { Poll::Pending } else { self.medium.flush() }
    }
}
