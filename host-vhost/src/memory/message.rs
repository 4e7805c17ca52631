//! DMA by messages.

use doorbell_core::memory::DmaError;

/// Reaches guest memory that can't be mapped, by asking the client. Slow, and bounded by a time-out.
///
/// QEMU answers only while none of its own requests waits for us, so whoever serves a request must not come
/// here before it has been answered.
pub trait MessageDma: Send + Sync + std::fmt::Debug {
    /// Reads guest memory.
    ///
    /// # Errors
    /// The client refused, went away or didn't answer in time.
    fn dma_read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError>;

    /// Writes guest memory.
    ///
    /// # Errors
    /// As [`MessageDma::dma_read`].
    fn dma_write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError>;
}
