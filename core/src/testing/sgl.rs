//! SGL descriptors and segments as drivers build them.

use super::RamMemory;
use super::entry::DataPointer;

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Data Block at an address, of a length in bytes.
    Data(u64, u32),
    /// Bit Bucket of a length in bytes.
    BitBucket(u32),
    /// Segment at an address, of a length in bytes.
    Segment(u64, u32),
    /// Last Segment at an address, of a length in bytes.
    LastSegment(u64, u32),
    /// Anything: address, length, identifier.
    Raw(u64, u32, u8),
}

impl Descriptor {
    /// The 16 bytes as two qwords.
    #[must_use]
    pub fn qwords(self) -> (u64, u64) {
        let (address, len_bytes, identifier) = match self {
            Self::Data(address, len) => (address, len, 0x00),
            Self::BitBucket(len) => (0, len, 0x10),
            Self::Segment(address, len) => (address, len, 0x20),
            Self::LastSegment(address, len) => (address, len, 0x30),
            Self::Raw(address, len, identifier) => (address, len, identifier),
        };
        (address, u64::from(len_bytes) | u64::from(identifier) << 56)
    }

    /// The descriptor inline in a command.
    #[must_use]
    pub fn inline(self) -> DataPointer {
        let (low, high) = self.qwords();
        DataPointer { low, high, is_sgl: true }
    }
}

/// Writes descriptors to guest memory.
pub fn write_segment(memory: &RamMemory, address: u64, descriptors: &[Descriptor]) {
    for (index, descriptor) in descriptors.iter().enumerate() {
        let (low, high) = descriptor.qwords();
        memory.poke(address + index as u64 * 16, &low.to_le_bytes());
        memory.poke(address + index as u64 * 16 + 8, &high.to_le_bytes());
    }
}

/// The data pointer of a chain of segments: each is written to its address and names the next.
///
/// # Panics
/// Where there is no segment.
pub fn build(memory: &RamMemory, segments: &[(u64, Vec<Descriptor>)]) -> DataPointer {
    let mut named: Option<Descriptor> = None;
    for (address, descriptors) in segments.iter().rev() {
        let mut descriptors = descriptors.clone();
        let is_last = named.is_none();
        descriptors.extend(named);
        write_segment(memory, *address, &descriptors);
        let len_bytes = descriptors.len() as u32 * 16;
        named = Some(if is_last {
            Descriptor::LastSegment(*address, len_bytes)
        } else {
            Descriptor::Segment(*address, len_bytes)
        });
    }
    named.expect("at least one segment").inline()
}
