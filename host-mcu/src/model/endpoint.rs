//! The endpoint block of the model host: a queue of bus events, and memory instead of DMA.

use core::cell::Cell;

use doorbell_core::memory::{Access, DmaError, DmaMemory};
use heapless::Deque;

use super::ram::GuestRam;
use crate::endpoint::{Endpoint, EndpointEvent};

/// Interrupt vectors that the model counts.
pub const VECTORS: usize = 128;

/// An [`Endpoint`] without a bus.
#[derive(Debug)]
pub struct ModelEndpoint<'a> {
    ram: GuestRam<'a>,
    events: Deque<EndpointEvent, 8>,
    answer: Option<[u8; 8]>,
    /// Messages by vector.
    pub(super) interrupts: [u32; VECTORS],
    /// Resets that came to their end.
    pub(super) resets: u32,
    clock: fn() -> u64,
    /// Memory that the device must not touch any more, and how often it did.
    sealed: bool,
    touches: Cell<u32>,
    /// Bytes of user data that the device wrote, in whole blocks; they are dropped where `drops_data` says so,
    /// as if hardware moved them.
    drops_data: bool,
}

/// Accesses from this length on are user data and not queue entries or lists.
const DATA_BYTES: usize = 512;

impl<'a> ModelEndpoint<'a> {
    /// An endpoint in front of this memory. `clock` is in nanoseconds.
    #[must_use]
    pub fn new(ram: GuestRam<'a>, clock: fn() -> u64) -> Self {
        Self {
            ram,
            events: Deque::new(),
            answer: None,
            interrupts: [0; VECTORS],
            resets: 0,
            clock,
            sealed: false,
            touches: Cell::new(0),
            drops_data: false,
        }
    }

    /// The host's memory, as its processor sees it.
    #[must_use]
    pub const fn ram(&self) -> GuestRam<'a> {
        self.ram
    }

    /// Puts something on the bus; whether there was room.
    pub(super) fn send(&mut self, event: EndpointEvent) -> bool {
        self.events.push_back(event).is_ok()
    }

    pub(super) fn is_silent(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn take_answer(&mut self) -> Option<[u8; 8]> {
        self.answer.take()
    }

    /// From now on the device has no business in guest memory.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
        self.touches.set(0);
    }

    /// The device may use guest memory again; how often it did while it must not.
    pub(super) fn unseal(&mut self) -> u32 {
        self.sealed = false;
        self.touches.get()
    }

    /// Whether user data is dropped instead of moved.
    pub fn set_drops_data(&mut self, drops: bool) {
        self.drops_data = drops;
    }

    fn touch(&self) {
        if self.sealed {
            self.touches.set(self.touches.get() + 1);
        }
    }
}

impl DmaMemory for ModelEndpoint<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.touch();
        self.ram.read(address, buffer)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.touch();
        if self.drops_data && bytes.len() >= DATA_BYTES {
            return self.ram.check(address, bytes.len() as u64, Access::Write);
        }
        self.ram.write(address, bytes)
    }
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        self.touch();
        self.ram.load_u32(address)
    }
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.touch();
        self.ram.store_u32(address, value)
    }
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        self.touch();
        self.ram.compare_exchange_u32(address, current, new)
    }
    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        self.ram.check(address, len_bytes, access)
    }
}

impl Endpoint for ModelEndpoint<'_> {
    fn poll_event(&mut self) -> Option<EndpointEvent> {
        self.events.pop_front()
    }

    fn answer_read(&mut self, _: u8, bytes: &[u8]) {
        let mut answer = [0; 8];
        for (place, byte) in answer.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.answer = Some(answer);
    }

    fn raise_msix(&mut self, vector: u16) {
        if let Some(count) = self.interrupts.get_mut(usize::from(vector)) {
            *count += 1;
        }
    }

    fn reset_done(&mut self) {
        self.resets += 1;
    }

    fn now_ns(&mut self) -> u64 {
        (self.clock)()
    }
}
