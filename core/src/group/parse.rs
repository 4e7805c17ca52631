//! From a submission queue entry to an [`Operation`]: every check that doesn't need the medium.
//!
//! Read first: NVM Command Set Specification 1.0, section 3.2; for namespace identifiers, NVM Express Base
//! Specification 2.0, section 3.2.1.

use super::slots::Kind;
use super::{QueueGroup, namespace_index};
use crate::command::{DeallocateRanges, Operation, Range, Transfer};
use crate::data::{DataReader, Direction, Segments};
use crate::namespace::Namespace;
use crate::spec::nvm::{self, NvmOpcode};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::support;

/// NSID that stands for every namespace.
const ALL_NAMESPACES: u32 = u32::MAX;

/// A command that has passed every check, as plain numbers: the operation is made from them once, in place.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    pub(super) kind: Kind,
    /// The bytes of the namespace; empty where the operation names none.
    range: Range,
}

impl Checked {
    /// Bytes of user data, as the statistics count them.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 65,536 blocks of 4,096 bytes")]
    pub(super) fn bytes(&self) -> u32 {
        match self.kind {
            Kind::Read | Kind::Write => self.range.len_bytes as u32,
            Kind::FlushAll | Kind::Other | Kind::Refused => 0,
        }
    }
}

impl<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>
    QueueGroup<QUEUES, COMMANDS, NAMESPACES>
{
    /// Checks everything that can be checked without the medium.
    #[inline]
    pub(super) fn check(&self, entry: &SubmissionQueueEntry) -> Result<Checked, Status> {
        let opcode = NvmOpcode(entry.opcode);
        let nothing = Range { offset_bytes: 0, len_bytes: 0 };
        if entry.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if !support::is_io_command(opcode) {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        if opcode == NvmOpcode::FLUSH && entry.nsid.get() == ALL_NAMESPACES {
            return Ok(Checked { kind: Kind::FlushAll, range: nothing });
        }
        let namespace = self.namespace(entry.nsid.get())?;
        if namespace.read_only && support::changes_medium(opcode) {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        match opcode {
            NvmOpcode::READ | NvmOpcode::COMPARE => {
                Ok(Checked { kind: Kind::Read, range: self.transfer_range(entry, namespace)? })
            }
            NvmOpcode::WRITE => {
                Ok(Checked { kind: Kind::Write, range: self.transfer_range(entry, namespace)? })
            }
            NvmOpcode::VERIFY => Ok(Checked { kind: Kind::Read, range: range(entry, namespace)? }),
            NvmOpcode::WRITE_ZEROES => Ok(Checked { kind: Kind::Other, range: range(entry, namespace)? }),
            NvmOpcode::DATASET_MANAGEMENT => {
                Segments::check(entry)?;
                Ok(Checked { kind: Kind::Other, range: nothing })
            }
            _ => Ok(Checked { kind: Kind::Other, range: nothing }),
        }
    }

    /// The operation of an entry that [`QueueGroup::check`] has passed.
    #[inline]
    pub(super) fn operation(&self, entry: &SubmissionQueueEntry, checked: Checked) -> Operation {
        match NvmOpcode(entry.opcode) {
            NvmOpcode::READ => Operation::Read(self.transfer(entry, checked.range, Direction::ToGuest)),
            NvmOpcode::WRITE => Operation::Write {
                transfer: self.transfer(entry, checked.range, Direction::ToController),
                fua: self.is_durable(entry),
            },
            NvmOpcode::COMPARE => {
                Operation::Compare(self.transfer(entry, checked.range, Direction::ToController))
            }
            NvmOpcode::VERIFY => Operation::Verify(checked.range),
            NvmOpcode::WRITE_ZEROES => Operation::WriteZeroes {
                range: checked.range,
                deallocate: entry.cdw12.get() & nvm::CDW12_DEALLOCATE != 0,
                fua: self.is_durable(entry),
            },
            NvmOpcode::DATASET_MANAGEMENT => match self.namespace(entry.nsid.get()) {
                Ok(namespace) => Operation::Deallocate(self.ranges(entry, namespace)),
                Err(_) => Operation::Flush,
            },
            _ if checked.kind == Kind::FlushAll => Operation::FlushAll,
            _ => Operation::Flush,
        }
    }

    /// An NSID beyond the table is invalid, one inside it without a namespace is inactive.
    #[inline]
    fn namespace(&self, nsid: u32) -> Result<Namespace, Status> {
        let entry = namespace_index(nsid)
            .and_then(|index| self.namespaces.get(index))
            .ok_or(Status::INVALID_NAMESPACE.dnr())?;
        entry.get().ok_or(Status::INVALID_FIELD.dnr())
    }

    /// Force Unit Access, or the volatile write cache is off.
    #[inline]
    fn is_durable(&self, entry: &SubmissionQueueEntry) -> bool {
        entry.cdw12.get() & nvm::CDW12_FUA != 0 || self.write_through
    }

    /// The range of a command that moves data: within MDTS, inside the namespace, with a data pointer of a kind
    /// that there is.
    #[inline]
    fn transfer_range(&self, entry: &SubmissionQueueEntry, namespace: Namespace) -> Result<Range, Status> {
        let len = blocks(entry).wrapping_shl(u32::from(namespace.block_shift));
        if len > u64::from(self.config.mdts_bytes) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let range = range(entry, namespace)?;
        Segments::check(entry)?;
        Ok(range)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "MDTS has 32 bits")]
    fn transfer(&self, entry: &SubmissionQueueEntry, range: Range, direction: Direction) -> Transfer {
        let len_bytes = range.len_bytes as u32;
        let segments = Segments::from_checked(entry, len_bytes, direction, self.page_shift);
        Transfer { offset_bytes: range.offset_bytes, len_bytes, segments }
    }

    /// Dataset Management: without Attribute Deallocate it is a set of hints, and there is nothing to do.
    fn ranges(&self, entry: &SubmissionQueueEntry, namespace: Namespace) -> DeallocateRanges {
        let ranges = (entry.cdw10.get() & 0xff).wrapping_add(1);
        let len_bytes = ranges.wrapping_mul(nvm::DSM_RANGE_BYTES);
        let segments = Segments::from_checked(entry, len_bytes, Direction::ToController, self.page_shift);
        let deallocates = entry.cdw11.get() & nvm::DSM_CDW11_DEALLOCATE != 0;
        let left = if deallocates { u16::try_from(ranges).unwrap_or(256) } else { 0 };
        DeallocateRanges { reader: DataReader::new(segments), namespace, left }
    }
}

/// Starting LBA: Command Dwords 10 and 11.
#[inline]
pub(super) fn slba(entry: &SubmissionQueueEntry) -> u64 {
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
