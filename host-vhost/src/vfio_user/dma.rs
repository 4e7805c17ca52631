//! Guest memory by DMA_READ and DMA_WRITE messages.

use std::time::Duration;

use doorbell_core::memory::DmaError;
use zerocopy::{FromBytes, IntoBytes};

use super::connection::{CALL_TIMEOUT, CallError, Connection};
use super::protocol::{Command, DmaAccess, MAX_DATA_BYTES};
use crate::memory::MessageDma;

/// Reads and writes guest memory through a connection, split into what the client takes in one message. Any
/// thread may use it.
#[derive(Debug)]
pub struct DmaPort {
    connection: Connection,
    max_bytes: usize,
    timeout: Duration,
}

impl DmaPort {
    /// A port whose messages carry at most `max_bytes` of data.
    #[must_use]
    pub fn new(connection: Connection, max_bytes: u32) -> Self {
        Self { connection, max_bytes: max_bytes.clamp(1, MAX_DATA_BYTES) as usize, timeout: CALL_TIMEOUT }
    }

    /// The same with another time-out for each message.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn call(&self, command: Command, access: DmaAccess, data: &[u8]) -> Result<Vec<u8>, DmaError> {
        let mut reply = Vec::new();
        let parts = [access.as_bytes(), data];
        match self.connection.call(command, parts, &[], self.timeout, &mut reply) {
            Ok(_) => Ok(reply),
            Err(error) => {
                if error == CallError::TimedOut {
                    tracing::debug!(?command, "the client doesn't answer DMA by message");
                }
                Err(DmaError)
            }
        }
    }
}

impl MessageDma for DmaPort {
    fn dma_read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let mut address = address;
        for piece in buffer.chunks_mut(self.max_bytes) {
            let access = DmaAccess { address: address.into(), count: (piece.len() as u64).into() };
            let reply = self.call(Command::DMA_READ, access, &[])?;
            let (told, data) = DmaAccess::read_from_prefix(&reply).map_err(|_| DmaError)?;
            if told.count != access.count || data.len() != piece.len() {
                return Err(DmaError);
            }
            piece.copy_from_slice(data);
            address = address.wrapping_add(piece.len() as u64);
        }
        Ok(())
    }

    fn dma_write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let mut address = address;
        for piece in bytes.chunks(self.max_bytes) {
            let access = DmaAccess { address: address.into(), count: (piece.len() as u64).into() };
            self.call(Command::DMA_WRITE, access, piece)?;
            address = address.wrapping_add(piece.len() as u64);
        }
        Ok(())
    }
}
