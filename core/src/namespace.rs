//! What a queue group has to know of a namespace to check a command's range.

/// The shape of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Namespace {
    /// Namespace Size (NSZE), in logical blocks.
    pub size_blocks: u64,
    /// Logical block size as a power of two: 9 (512 bytes) or 12 (4096 bytes).
    pub block_shift: u8,
    /// Writes are refused with Namespace is Write Protected.
    pub read_only: bool,
}

impl Namespace {
    /// Bytes in one logical block.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        1u32.wrapping_shl(self.block_shift as u32)
    }

    /// The byte range of `count` blocks from `slba`, or `None` where any of it lies past the end.
    #[must_use]
    pub const fn byte_range(&self, slba: u64, count: u64) -> Option<(u64, u64)> {
        match slba.checked_add(count) {
            Some(end) if end <= self.size_blocks => {
                let shift = self.block_shift as u32;
                Some((slba.wrapping_shl(shift), count.wrapping_shl(shift)))
            }
            _ => None,
        }
    }
}
