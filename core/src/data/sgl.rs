//! Scatter Gather Lists (NVM Express Base Specification 2.0, section 4.1.2; statuses: section 4.2.3.1).
//!
//! Supported: Data Block, Bit Bucket, Segment and Last Segment descriptors with subtype 0 (address), without
//! alignment or granularity requirement. Not supported, and refused with SGL Descriptor Type Invalid: keyed
//! and transport descriptors, other subtypes. An SGL must describe exactly the bytes that the command moves.

use super::{DataStart, Direction, Segment};
use crate::memory::DmaMemory;
use crate::spec::status::Status;

/// Descriptors that one command may use, its inline descriptor and segment descriptors included. More end
/// it with Invalid Number of SGL Descriptors, so a list that points at itself costs bounded work.
pub const MAX_SGL_DESCRIPTORS: u16 = 512;

/// Bytes of an SGL descriptor.
const DESCRIPTOR_BYTES: u32 = 16;

const DATA_BLOCK: u8 = 0x00;
const BIT_BUCKET: u8 = 0x10;
const SEGMENT: u8 = 0x20;
const LAST_SEGMENT: u8 = 0x30;

/// A descriptor: address, length in bytes, SGL Identifier (type in bits 7:4, subtype in 3:0).
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    len_bytes: u32,
    identifier: u8,
}

impl Descriptor {
    /// From the two qwords of the data pointer or of a list.
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of their qword")]
    const fn from_qwords(low: u64, high: u64) -> Self {
        Self { address: low, len_bytes: high as u32, identifier: (high >> 56) as u8 }
    }

    fn read(address: u64, memory: &impl DmaMemory) -> Result<Self, Status> {
        let mut bytes = [0; 16];
        memory.read(address, &mut bytes)?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, _, _, _, identifier] = bytes;
        Ok(Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len_bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            identifier,
        })
    }
}

/// Where the walk is.
#[derive(Clone, Copy, Debug)]
enum Position {
    /// At the descriptor in the command itself.
    Inline(Descriptor),
    /// In a segment.
    In {
        /// Guest address of the next descriptor.
        address: u64,
        /// Descriptors left in the segment.
        left: u32,
        /// The segment was named by a Last Segment descriptor, so it can't name another.
        last: bool,
    },
}

/// A walk over an SGL.
#[derive(Clone, Copy, Debug)]
pub(super) struct SglWalk {
    position: Position,
    /// Bytes that no descriptor has stood for yet.
    left: u32,
    /// Descriptors that may still be read.
    budget: u16,
    direction: Direction,
}

impl SglWalk {
    pub(super) const fn new(low: u64, high: u64, len_bytes: u32, direction: Direction) -> Self {
        Self {
            position: Position::Inline(Descriptor::from_qwords(low, high)),
            left: len_bytes,
            budget: MAX_SGL_DESCRIPTORS,
            direction,
        }
    }

    pub(super) const fn start(&self) -> Option<DataStart> {
        match self.position {
            Position::Inline(descriptor) => {
                let Descriptor { address, len_bytes, identifier } = descriptor;
                Some(DataStart::Sgl { low: address, high: len_bytes as u64 | (identifier as u64) << 56 })
            }
            Position::In { .. } => None,
        }
    }

    #[inline]
    pub(super) fn next_piece(&mut self, memory: &impl DmaMemory) -> Option<Result<Segment, Status>> {
        // Every turn takes from the budget or ends the walk.
        loop {
            let (descriptor, last_in_segment) = match self.next_descriptor(memory) {
                Ok(Some(found)) => found,
                Ok(None) if self.left == 0 => return None,
                Ok(None) => return Some(Err(Status::DATA_SGL_LENGTH_INVALID.dnr())),
                Err(status) => return Some(Err(status)),
            };
            match self.apply(descriptor, last_in_segment) {
                Ok(Some(segment)) => return Some(Ok(segment)),
                Ok(None) => {}
                Err(status) => return Some(Err(status)),
            }
        }
    }

    /// The next descriptor and whether it is the last of its segment.
    #[inline]
    fn next_descriptor(&mut self, memory: &impl DmaMemory) -> Result<Option<(Descriptor, bool)>, Status> {
        let found = match self.position {
            Position::Inline(descriptor) => {
                self.position = Position::In { address: 0, left: 0, last: true };
                (descriptor, true)
            }
            Position::In { address, left, last } => {
                let Some(left) = left.checked_sub(1) else { return Ok(None) };
                self.spend()?;
                let next = address.wrapping_add(u64::from(DESCRIPTOR_BYTES));
                self.position = Position::In { address: next, left, last };
                let descriptor = Descriptor::read(address, memory)?;
                // A chained segment names the next one with its last descriptor; nothing may follow the last
                // segment.
                let names_segment = matches!(descriptor.identifier, SEGMENT | LAST_SEGMENT);
                if names_segment && last {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.dnr());
                }
                if names_segment != (left == 0 && !last) {
                    return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.dnr());
                }
                (descriptor, left == 0)
            }
        };
        Ok(Some(found))
    }

    #[inline]
    fn apply(&mut self, descriptor: Descriptor, last_in_segment: bool) -> Result<Option<Segment>, Status> {
        match descriptor.identifier {
            DATA_BLOCK => self.take(descriptor, false),
            // In a source buffer a bit bucket stands for nothing.
            BIT_BUCKET if self.direction == Direction::ToController => Ok(None),
            BIT_BUCKET => self.take(descriptor, true),
            SEGMENT | LAST_SEGMENT if last_in_segment => {
                let len_bytes = descriptor.len_bytes;
                if len_bytes == 0 || !len_bytes.is_multiple_of(DESCRIPTOR_BYTES) {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.dnr());
                }
                if descriptor.address & 7 != 0 {
                    return Err(Status::SGL_OFFSET_INVALID.dnr());
                }
                self.position = Position::In {
                    address: descriptor.address,
                    left: len_bytes / DESCRIPTOR_BYTES,
                    last: descriptor.identifier == LAST_SEGMENT,
                };
                Ok(None)
            }
            SEGMENT | LAST_SEGMENT => Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.dnr()),
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()),
        }
    }

    /// Takes the bytes a descriptor stands for; one of length 0 stands for none.
    #[inline]
    fn take(&mut self, descriptor: Descriptor, bit_bucket: bool) -> Result<Option<Segment>, Status> {
        let Some(left) = self.left.checked_sub(descriptor.len_bytes) else {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        };
        self.left = left;
        let segment = Segment { address: descriptor.address, len_bytes: descriptor.len_bytes, bit_bucket };
        Ok((descriptor.len_bytes != 0).then_some(segment))
    }

    fn spend(&mut self) -> Result<(), Status> {
        let left = self.budget.checked_sub(1).ok_or(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.dnr())?;
        self.budget = left;
        Ok(())
    }
}
