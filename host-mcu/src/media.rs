//! The seam towards the medium: what a namespace's blocks live on.
//!
//! | medium | where the blocks are |
//! | --- | --- |
//! | [`RamMedia`] | a static array; gone with the power |
//! | [`FlashMedia`] | any NOR flash with an `embedded-storage` driver |
//! | [`NullMedia`] | nowhere: reads are zeroes, writes are dropped. For measuring |
//!
//! A medium *lends* memory instead of copying: for a read it shows where the bytes are, for a write it says
//! where they go, so that DMA moves them once. The calls are polled: [`Poll::Pending`] means "the same call
//! again later", and no other call comes between.

use core::task::Poll;

use doorbell_core::spec::status::Status;

mod flash;
mod null;
mod ram;

pub use flash::{FlashError, FlashMedia, WEAR_SPREAD, capacity_blocks};
pub use null::NullMedia;
pub use ram::RamMedia;

/// Why a medium can't do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MediaError {
    /// The bytes can't be read or aren't those that were written.
    Read,
    /// The bytes can't be written; the block holds its old or its new content.
    Write,
}

impl MediaError {
    /// What the driver is told.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::Read => Status::UNRECOVERED_READ_ERROR,
            Self::Write => Status::WRITE_FAULT,
        }
    }
}

/// The blocks of one namespace. Offsets and lengths are bytes, multiples of [`Media::block_bytes`], and inside
/// the namespace.
pub trait Media {
    /// Bytes of a block: 512 or 4096.
    fn block_bytes(&self) -> u32;

    /// Blocks of the namespace, at least 1.
    fn size_blocks(&self) -> u64;

    /// Whether a write may complete before it is durable, so that [`Media::flush`] has something to do.
    fn has_write_cache(&self) -> bool;

    /// Shows the bytes from `offset_bytes` on: at least a block of them and at most `len_bytes`.
    ///
    /// # Errors
    /// [`MediaError::Read`] where the first block can't be read.
    fn read(&mut self, offset_bytes: u64, len_bytes: u32) -> Poll<Result<&[u8], MediaError>>;

    /// Lends memory for at least a block and at most `len_bytes` of what will be written to `offset_bytes`.
    /// Its contents are whatever they are; [`Media::write`] with the same offset and the lent length follows,
    /// or nothing does where the driver's memory could not be read.
    fn lend(&mut self, offset_bytes: u64, len_bytes: u32) -> &mut [u8];

    /// Writes what was put into the lent memory. `durable`: before this is ready.
    ///
    /// # Errors
    /// [`MediaError::Write`].
    fn write(&mut self, offset_bytes: u64, len_bytes: u32, durable: bool) -> Poll<Result<(), MediaError>>;

    /// Makes a part of the range read as zeroes, from its start, and says how many bytes: a bounded number, at
    /// least a block.
    ///
    /// # Errors
    /// [`MediaError::Write`].
    fn zero(&mut self, offset_bytes: u64, len_bytes: u64, durable: bool) -> Poll<Result<u64, MediaError>>;

    /// The range holds nothing of worth. What it reads as afterwards is the medium's choice, but always the
    /// same until it is written. Says how many bytes were dealt with, as [`Media::zero`] does.
    ///
    /// # Errors
    /// [`MediaError::Write`].
    fn deallocate(&mut self, offset_bytes: u64, len_bytes: u64) -> Poll<Result<u64, MediaError>> {
        let _ = offset_bytes;
        Poll::Ready(Ok(len_bytes))
    }

    /// Whether the call that is pending could be given up; then it isn't repeated. For aborts and resets,
    /// which otherwise wait for it.
    fn give_up(&mut self) -> bool {
        false
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// [`MediaError::Write`] where one of them isn't.
    fn flush(&mut self) -> Poll<Result<(), MediaError>>;
}
