//! The seam towards the bus: what firmware needs of a PCIe endpoint block.
//!
//! A board implements [`Endpoint`] once; `BOARD.md` walks through it. What the block must provide:
//!
//! * **Configuration space** of its own, with the class code, BAR 0 and MSI-X capability that
//!   [`doorbell_core::pci`] describes. Every endpoint block keeps configuration space in hardware; where it
//!   lets firmware answer configuration requests, [`doorbell_core::pci::ConfigSpace`] has the answers.
//! * **BAR 0**, at least 16 KiB: reads and writes below 1000h, the doorbells from 1000h on, the MSI-X table and
//!   its pending bits (which blocks with MSI-X keep themselves). There are two kinds of blocks:
//!   * those that *hand over requests* (FPGA fabric on Zynq, Versal or CrossLink-NX; a block with a TLP
//!     interface): each becomes an [`EndpointEvent`], and a read waits for [`Endpoint::answer_read`];
//!   * those that *map the BAR to local memory* (DesignWare cores: i.MX8, RK3588): the block answers reads by
//!     itself out of memory which [`Endpoint::publish_registers`] keeps up to date, and the board compares what
//!     the driver can write with what it saw last. The doorbells can be the memory behind 1000h itself, given
//!     to [`Device::poll`](crate::device::Device::poll) as its registers; no write is missed, because only the
//!     newest value of a doorbell counts.
//! * **DMA** both ways, to any address that the driver names: [`doorbell_core::memory::DmaMemory`], whose
//!   calls return when the bytes have moved. Outbound windows, descriptors or a bus master port are the
//!   board's. A completion queue entry's last dword must not overtake what was written before it: PCIe keeps
//!   posted writes in order, a write buffer in front of it may not.
//! * **MSI-X**: a memory write per vector, masked by the vector's table entry and the function mask.
//! * **Resets**: Function Level Reset, hot reset, fundamental reset, and the way out of D3hot, each as one
//!   [`EndpointEvent::Reset`].

use doorbell_core::controller::ResetKind;
use doorbell_core::memory::DmaMemory;

/// Something that happened on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum EndpointEvent {
    /// The driver reads `len_bytes` bytes at `offset` of BAR 0 and waits for [`Endpoint::answer_read`].
    Read {
        /// Byte offset into BAR 0.
        offset: u32,
        /// 1 to 8.
        len_bytes: u8,
        /// Tells this read from others that wait.
        tag: u8,
    },
    /// The driver has written the first `len_bytes` bytes of `value` to `offset` of BAR 0.
    Write {
        /// Byte offset into BAR 0.
        offset: u32,
        /// 1 to 8.
        len_bytes: u8,
        /// The byte at `offset` is the least significant one.
        value: u64,
    },
    /// The function is reset. [`Endpoint::reset_done`] follows when nothing touches host memory any more.
    Reset(ResetKind),
}

/// A PCIe endpoint block, seen from firmware. Guest memory is reached through [`DmaMemory`].
///
/// No call may wait for the driver; one that moves data may wait for the bus, as long as a completion timeout
/// bounds it.
pub trait Endpoint: DmaMemory {
    /// The next thing that happened, in the order of the bus, or `None`.
    fn poll_event(&mut self) -> Option<EndpointEvent>;

    /// Answers the read that has this tag with `bytes`, as many as it asked for.
    fn answer_read(&mut self, tag: u8, bytes: &[u8]);

    /// The registers below 1000h as they read now, from offset 0 on; called after anything that may have
    /// changed them. For blocks that answer reads out of memory. They must copy only what a driver can't write
    /// (CAP, VS, CSTS), so as not to undo a write that is on its way.
    fn publish_registers(&mut self, image: &[u8; REGISTER_BYTES]) {
        let _ = image;
    }

    /// Whether [`Endpoint::publish_registers`] is wanted.
    const PUBLISHES: bool = false;

    /// Sends the message of this MSI-X vector, unless it is masked (then it becomes pending).
    fn raise_msix(&mut self, vector: u16);

    /// The reset that [`EndpointEvent::Reset`] told of has come to its end.
    fn reset_done(&mut self) {}

    /// A monotonic clock in nanoseconds. Counts power-on hours and interrupt coalescing; 100 us are fine
    /// enough.
    fn now_ns(&mut self) -> u64;
}

/// Bytes of the registers that [`Endpoint::publish_registers`] gets: CAP to ACQ.
pub const REGISTER_BYTES: usize = 0x38;
