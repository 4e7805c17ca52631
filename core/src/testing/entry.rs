//! Submission queue entries as drivers build them.

use zerocopy::little_endian::{U16, U32, U64};

use crate::spec::nvm::NvmOpcode;
use crate::spec::queue_entry::{CommandFlags, SubmissionQueueEntry};

/// A data pointer: the two qwords of DPTR and whether they are an SGL descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPointer {
    /// PRP1, or the address of the SGL descriptor.
    pub low: u64,
    /// PRP2, or length and identifier of the SGL descriptor.
    pub high: u64,
    /// PSDT 01b.
    pub is_sgl: bool,
}

/// An entry with this opcode, namespace and data pointer; the rest is 0.
#[must_use]
pub fn command(opcode: NvmOpcode, nsid: u32, data: DataPointer) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        opcode: opcode.0,
        flags: CommandFlags::new().with_psdt(u8::from(data.is_sgl)),
        nsid: U32::new(nsid),
        prp1: U64::new(data.low),
        prp2: U64::new(data.high),
        ..SubmissionQueueEntry::default()
    }
}

/// A command on `count` blocks from `slba` (Read, Write, Compare, Verify, Write Zeroes).
#[must_use]
pub fn on_blocks(
    opcode: NvmOpcode,
    nsid: u32,
    slba: u64,
    count: u32,
    data: DataPointer,
) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        cdw10: U32::new(slba as u32),
        cdw11: U32::new((slba >> 32) as u32),
        cdw12: U32::new(count - 1),
        ..command(opcode, nsid, data)
    }
}

/// Flush.
#[must_use]
pub fn flush(nsid: u32) -> SubmissionQueueEntry {
    command(NvmOpcode::FLUSH, nsid, DataPointer::default())
}

/// The same entry with this command identifier.
#[must_use]
pub fn with_cid(entry: SubmissionQueueEntry, cid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry { cid: U16::new(cid), ..entry }
}
