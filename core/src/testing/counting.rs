//! Guest memory that counts what the device does, to show that its work is bounded.

use std::cell::Cell;

use crate::memory::{Access, DmaError, DmaMemory};

/// Any guest memory, with its accesses counted.
#[derive(Debug)]
pub struct CountingMemory<M> {
    memory: M,
    accesses: Cell<u64>,
}

impl<M> CountingMemory<M> {
    /// Counts the accesses to `memory`.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self { memory, accesses: Cell::new(0) }
    }

    /// Accesses since the last call.
    pub fn take(&self) -> u64 {
        self.accesses.take()
    }

    /// The memory itself, uncounted.
    pub fn inner(&self) -> &M {
        &self.memory
    }

    fn count(&self) -> &M {
        self.accesses.set(self.accesses.get() + 1);
        &self.memory
    }
}

impl<M: DmaMemory> DmaMemory for CountingMemory<M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.count().read(address, buffer)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.count().write(address, bytes)
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        self.count().load_u32(address)
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.count().store_u32(address, value)
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        self.count().compare_exchange_u32(address, current, new)
    }
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        self.memory.check(address, len_bytes, access)
    }
}
