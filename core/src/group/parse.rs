//! From a submission queue entry to an [`Operation`]: every check that doesn't need the medium.
//!
//! Read first: NVM Command Set Specification 1.0, section 3.2; for namespace identifiers, NVM Express Base
//! Specification 2.0, section 3.2.1.

use super::QueueGroup;
use super::slots::Kind;
use crate::command::{DeallocateRanges, Operation, Range, Transfer};
use crate::data::{DataReader, Direction, Segments};
use crate::namespace::Namespace;
use crate::spec::nvm::{self, NvmOpcode};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;

/// NSID that stands for every namespace.
const ALL_NAMESPACES: u32 = u32::MAX;

/// A command as the group keeps it, and what the host shall do or the status it is refused with.
pub(super) struct Parsed {
    pub(super) nsid: u32,
    pub(super) lba: u64,
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    pub(super) outcome: Result<Operation, Status>,
}

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    #[inline]
    pub(super) fn parse(&self, entry: &SubmissionQueueEntry) -> Parsed {
        let opcode = NvmOpcode(entry.opcode);
        let outcome = self.parse_operation(opcode, entry);
        let (kind, bytes) = match &outcome {
            Ok(Operation::Read(transfer) | Operation::Compare(transfer)) => (Kind::Read, transfer.len_bytes),
            Ok(Operation::Write { transfer, .. }) => (Kind::Write, transfer.len_bytes),
            Ok(Operation::Verify(range)) => (Kind::Read, u32::try_from(range.len_bytes).unwrap_or(u32::MAX)),
            Ok(Operation::FlushAll) => (Kind::FlushAll, 0),
            _ => (Kind::Other, 0),
        };
        let nsid = match &outcome {
            Ok(Operation::FlushAll) => 0,
            _ => entry.nsid.get(),
        };
        Parsed { nsid, lba: slba(entry), kind, bytes, outcome }
    }

    #[inline]
    fn parse_operation(&self, opcode: NvmOpcode, entry: &SubmissionQueueEntry) -> Result<Operation, Status> {
        if entry.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if !opcode.is_supported() {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        if opcode == NvmOpcode::FLUSH && entry.nsid.get() == ALL_NAMESPACES {
            return Ok(Operation::FlushAll);
        }
        let namespace = self.namespace(entry.nsid.get())?;
        if namespace.read_only && opcode.writes() {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        match opcode {
            NvmOpcode::FLUSH => Ok(Operation::Flush),
            NvmOpcode::READ => Ok(Operation::Read(self.transfer(entry, namespace, Direction::ToGuest)?)),
            NvmOpcode::WRITE => {
                let transfer = self.transfer(entry, namespace, Direction::ToController)?;
                Ok(Operation::Write { transfer, fua: self.is_durable(entry) })
            }
            NvmOpcode::COMPARE => {
                Ok(Operation::Compare(self.transfer(entry, namespace, Direction::ToController)?))
            }
            NvmOpcode::VERIFY => Ok(Operation::Verify(range(entry, namespace)?)),
            NvmOpcode::WRITE_ZEROES => Ok(Operation::WriteZeroes {
                range: range(entry, namespace)?,
                deallocate: entry.cdw12.get() & nvm::CDW12_DEALLOCATE != 0,
                fua: self.is_durable(entry),
            }),
            NvmOpcode::DATASET_MANAGEMENT => self.dataset_management(entry, namespace),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// An NSID beyond the table is invalid, one inside it without a namespace is inactive.
    #[inline]
    fn namespace(&self, nsid: u32) -> Result<Namespace, Status> {
        let index = nsid.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let entry =
            index.and_then(|index| self.namespaces.get(index)).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        entry.namespace.ok_or(Status::INVALID_FIELD.dnr())
    }

    /// Force Unit Access, or the volatile write cache is off.
    #[inline]
    fn is_durable(&self, entry: &SubmissionQueueEntry) -> bool {
        entry.cdw12.get() & nvm::CDW12_FUA != 0 || !self.write_cache
    }

    #[inline]
    fn transfer(
        &self,
        entry: &SubmissionQueueEntry,
        namespace: Namespace,
        direction: Direction,
    ) -> Result<Transfer, Status> {
        let len = blocks(entry).wrapping_shl(u32::from(namespace.block_shift));
        let len_bytes = u32::try_from(len).map_err(|_| Status::INVALID_FIELD.dnr())?;
        if len_bytes > self.config.mdts_bytes {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let Range { offset_bytes, .. } = range(entry, namespace)?;
        let segments = Segments::new(entry, len_bytes, direction, self.page_shift)?;
        Ok(Transfer { offset_bytes, len_bytes, segments })
    }

    /// Dataset Management: without Attribute Deallocate it is a set of hints, and there is nothing to do.
    fn dataset_management(
        &self,
        entry: &SubmissionQueueEntry,
        namespace: Namespace,
    ) -> Result<Operation, Status> {
        let ranges = (entry.cdw10.get() & 0xff).wrapping_add(1);
        let len_bytes = ranges.wrapping_mul(nvm::DSM_RANGE_BYTES);
        let segments = Segments::new(entry, len_bytes, Direction::ToController, self.page_shift)?;
        let deallocates = entry.cdw11.get() & nvm::DSM_CDW11_DEALLOCATE != 0;
        let left = if deallocates { u16::try_from(ranges).unwrap_or(256) } else { 0 };
        Ok(Operation::Deallocate(DeallocateRanges { reader: DataReader::new(segments), namespace, left }))
    }
}

/// Starting LBA: Command Dwords 10 and 11.
#[inline]
fn slba(entry: &SubmissionQueueEntry) -> u64 {
    u64::from(entry.cdw11.get()) << 32 | u64::from(entry.cdw10.get())
}

/// Number of Logical Blocks: Command Dword 12 bits 15:0, 0's based.
#[inline]
fn blocks(entry: &SubmissionQueueEntry) -> u64 {
    u64::from(entry.cdw12.get() & 0xffff).wrapping_add(1)
}

#[inline]
fn range(entry: &SubmissionQueueEntry, namespace: Namespace) -> Result<Range, Status> {
    let (offset_bytes, len_bytes) =
        namespace.byte_range(slba(entry), blocks(entry)).ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
    Ok(Range { offset_bytes, len_bytes })
}
