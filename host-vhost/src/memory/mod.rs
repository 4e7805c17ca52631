//! Guest memory of the native host: what a vfio-user client shares by DMA_MAP.
//!
//! * [`Region`] is one mapped range, [`MemoryMap`] an immutable snapshot of all of them, [`SharedMap`] the
//!   place where the newest snapshot is found.
//! * [`MemoryView`] is one thread's access to it and implements the core's
//!   [`DmaMemory`](doorbell_core::memory::DmaMemory): a look-up costs a few nanoseconds.
//! * [`MessageDma`] reaches regions that have no file: only the client can read and write them.
//! * [`check_shared`] finds out that the client's memory is private to it (`share=off`).
//!
//! A region stays mapped as long as any snapshot that holds it is in use, so a pointer into guest memory is
//! good as long as its snapshot is kept; DMA_UNMAP is answered when the last one is gone.
//!
//! Guest memory changes under our feet: it is never a slice, only copied through raw pointers and atomics. A
//! client that truncates the file behind it can't end the process (see [`sigbus`]).

mod map;
mod mapping;
mod message;
mod shared;
pub mod sigbus;
mod view;

pub use map::{MapError, MemoryMap, Region, ReleaseSignal, Rights, SharedMap};
pub use mapping::{HostPointer, Mapping};
pub use message::MessageDma;
pub use shared::{NotShared, Sharing, check_shared};
pub use view::{MemoryView, ResolveError};

/// Regions that one client may have at a time (`max_dma_maps`).
pub const MAX_REGIONS: u32 = 4096;
