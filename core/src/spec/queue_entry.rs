//! Submission and completion queue entries (NVM Express Base Specification 2.0, sections 4.1 and 4.2;
//! data pointer: section 4.1, Figure 87 "Common Command Format").

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::status::Status;

/// Command Dword 0, bits 15:8.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandFlags {
    /// Fused Operation (FUSE): 0 is a normal operation.
    #[bits(2)]
    pub fuse: u8,
    #[bits(4)]
    __: u8,
    /// PRP or SGL for Data Transfer (PSDT): 0 PRPs, 1 SGLs with MPTR a buffer, 2 SGLs with MPTR an SGL,
    /// 3 reserved.
    #[bits(2)]
    pub psdt: u8,
}

/// A submission queue entry (SQE): one command, 64 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubmissionQueueEntry {
    /// Opcode (OPC).
    pub opcode: u8,
    /// FUSE and PSDT.
    pub flags: CommandFlags,
    /// Command Identifier (CID), unique among the queue's outstanding commands.
    pub cid: U16,
    /// Namespace Identifier (NSID).
    pub nsid: U32,
    /// Command Dword 2.
    pub cdw2: U32,
    /// Command Dword 3.
    pub cdw3: U32,
    /// Metadata Pointer (MPTR).
    pub mptr: U64,
    /// PRP Entry 1, or the first half of the SGL descriptor (DPTR).
    pub prp1: U64,
    /// PRP Entry 2, or the second half of the SGL descriptor (DPTR).
    pub prp2: U64,
    /// Command Dword 10.
    pub cdw10: U32,
    /// Command Dword 11.
    pub cdw11: U32,
    /// Command Dword 12.
    pub cdw12: U32,
    /// Command Dword 13.
    pub cdw13: U32,
    /// Command Dword 14.
    pub cdw14: U32,
    /// Command Dword 15.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<SubmissionQueueEntry>() == 64);

/// A completion queue entry (CQE), 16 bytes, as native values; [`CompletionQueueEntry::to_dwords`] gives the
/// layout in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueEntry {
    /// Command specific result: dword 0 in the low half, dword 1 in the high half.
    pub result: u64,
    /// SQ Head Pointer (SQHD).
    pub sqhd: u16,
    /// SQ Identifier (SQID).
    pub sqid: u16,
    /// Command Identifier (CID).
    pub cid: u16,
    /// Phase Tag (P).
    pub phase: bool,
    /// Status Field (SF).
    pub status: Status,
}

impl CompletionQueueEntry {
    /// Bytes of an entry.
    pub const SIZE_BYTES: u64 = 16;

    /// Dwords 0 to 3.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the result is split into its two dwords")]
    pub const fn to_dwords(self) -> [u32; 4] {
        [
            self.result as u32,
            (self.result >> 32) as u32,
            (self.sqid as u32) << 16 | self.sqhd as u32,
            (self.status.0 as u32) << 17 | (self.phase as u32) << 16 | self.cid as u32,
        ]
    }

    /// The inverse of [`CompletionQueueEntry::to_dwords`], for drivers and tests.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of their dwords")]
    pub const fn from_dwords(dwords: [u32; 4]) -> Self {
        let [dword0, dword1, dword2, dword3] = dwords;
        Self {
            result: (dword1 as u64) << 32 | dword0 as u64,
            sqhd: dword2 as u16,
            sqid: (dword2 >> 16) as u16,
            cid: dword3 as u16,
            phase: dword3 >> 16 & 1 != 0,
            status: Status((dword3 >> 17) as u16),
        }
    }
}
