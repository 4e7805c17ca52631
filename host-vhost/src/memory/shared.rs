//! Is the memory that a client shares the memory that its guest uses?
//!
//! QEMU passes the file of its guest's memory even where the guest has a private copy of it (`share=off`): our
//! writes would never be seen, and the guest's never reach us. Nothing in the protocol tells. But the client
//! can be asked for the guest's view by DMA_READ: where both views agree on bytes that aren't all zero the
//! memory is shared, where they keep differing it isn't. As nobody has written anything when memory is mapped,
//! the moment to ask is when the guest must have: at controller enable or the first admin command, for the
//! entries of the admin submission queue.

use super::MemoryMap;

/// The memory is private to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "guest memory at {address:#x} is private to the VMM, so the device can't see what the guest writes: give \
     the memory backend share=on (QEMU: -object memory-backend-memfd,id=m,size=...,share=on -M \
     memory-backend=m)"
)]
pub struct NotShared {
    /// First guest address of the range where the views differ.
    pub address: u64,
}

/// What a look at both views said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Both views agree, and somebody has written there.
    Shared,
    /// Nothing can be said: all zero, not mapped, no way to ask, or the client doesn't answer.
    Unknown,
}

/// How often views that differ are looked at again, for the guest may be writing at that moment.
const ATTEMPTS: u32 = 4;

/// Compares the mapped bytes of `[address, address + len_bytes)` with what the client says they are.
///
/// Only for clients that answer DMA_READ, and only while none of their requests waits for an answer.
///
/// # Errors
/// [`NotShared`] where the views keep differing.
pub fn check_shared(map: &MemoryMap, address: u64, len_bytes: usize) -> Result<Sharing, NotShared> {
    let Some(messages) = map.messages() else { return Ok(Sharing::Unknown) };
    let mut mapped = vec![0; len_bytes];
    let mut asked = vec![0; len_bytes];
    for _ in 0..ATTEMPTS {
        if read_mapped(map, address, &mut mapped).is_none() {
            return Ok(Sharing::Unknown);
        }
        if messages.dma_read(address, &mut asked).is_err() {
            return Ok(Sharing::Unknown);
        }
        if mapped != asked && read_mapped(map, address, &mut mapped).is_none() {
            return Ok(Sharing::Unknown);
        }
        if mapped == asked {
            let written = mapped.iter().any(|byte| *byte != 0);
            return Ok(if written { Sharing::Shared } else { Sharing::Unknown });
        }
    }
    Err(NotShared { address })
}

fn read_mapped(map: &MemoryMap, address: u64, buffer: &mut [u8]) -> Option<()> {
    let region = map.find(address)?;
    let offset = address - region.iova();
    if buffer.len() as u64 > region.size() - offset || !region.rights().read {
        return None;
    }
    let host = region.host()?;
    super::view::copy_out(host, offset, buffer);
    Some(())
}
