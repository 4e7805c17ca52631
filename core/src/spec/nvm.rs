//! The NVM command set (NVM Command Set Specification 1.0, section 3.2).

/// An I/O command opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NvmOpcode(pub u8);

impl NvmOpcode {
    /// Flush.
    pub const FLUSH: Self = Self(0x00);
    /// Write.
    pub const WRITE: Self = Self(0x01);
    /// Read.
    pub const READ: Self = Self(0x02);
    /// Compare.
    pub const COMPARE: Self = Self(0x05);
    /// Write Zeroes.
    pub const WRITE_ZEROES: Self = Self(0x08);
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: Self = Self(0x09);
    /// Verify.
    pub const VERIFY: Self = Self(0x0c);
}

/// Command Dword 12: Force Unit Access (FUA). Obeyed for Write and Write Zeroes, not for Read.
pub const CDW12_FUA: u32 = 1 << 30;
/// Command Dword 12: Deallocate (DEAC) of Write Zeroes.
pub const CDW12_DEALLOCATE: u32 = 1 << 25;
/// Command Dword 11 of Dataset Management: Attribute – Deallocate (AD).
pub const DSM_CDW11_DEALLOCATE: u32 = 1 << 2;
/// Bytes of a Dataset Management range definition.
pub const DSM_RANGE_BYTES: u32 = 16;
