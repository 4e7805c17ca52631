//! Namespaces as vectors of bytes.

use std::collections::BTreeMap;

use crate::command::{IoCommand, Operation, Transfer};
use crate::memory::DmaMemory;
use crate::spec::status::Status;

/// The media of all namespaces.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// By namespace identifier.
    pub media: BTreeMap<u32, Vec<u8>>,
    /// Flush commands carried out.
    pub flushes: u64,
}

impl Storage {
    /// Carries a command out.
    ///
    /// # Panics
    /// Where the core let a command through that lies outside its namespace.
    pub fn execute(&mut self, memory: &impl DmaMemory, command: IoCommand) -> Status {
        let medium = match command.operation {
            Operation::FlushAll => {
                self.flushes += 1;
                return Status::SUCCESS;
            }
            _ => self.media.get_mut(&command.nsid).expect("the namespace exists"),
        };
        let result = match command.operation {
            Operation::Flush | Operation::FlushAll => {
                self.flushes += 1;
                Ok(())
            }
            Operation::Read(transfer) => each_piece(memory, transfer, |at, address, len| match address {
                Some(address) => Ok(memory.write(address, &medium[at..at + len])?),
                None => Ok(()),
            }),
            Operation::Write { transfer, .. } => each_piece(memory, transfer, |at, address, len| {
                Ok(memory.read(address.expect("no bit bucket in a write"), &mut medium[at..at + len])?)
            }),
            Operation::Compare(transfer) => each_piece(memory, transfer, |at, address, len| {
                let mut bytes = vec![0; len];
                memory.read(address.expect("no bit bucket in a compare"), &mut bytes)?;
                if bytes == medium[at..at + len] { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
            }),
            Operation::Verify(range) => {
                assert!(range.offset_bytes + range.len_bytes <= medium.len() as u64);
                Ok(())
            }
            Operation::WriteZeroes { range, .. } => {
                let at = range.offset_bytes as usize;
                medium[at..at + range.len_bytes as usize].fill(0);
                Ok(())
            }
            Operation::Deallocate(mut ranges) => loop {
                match ranges.next_range(memory) {
                    None => break Ok(()),
                    Some(Err(status)) => break Err(status),
                    Some(Ok(range)) => {
                        let at = range.offset_bytes as usize;
                        medium[at..at + range.len_bytes as usize].fill(0);
                    }
                }
            },
        };
        match result {
            Ok(()) => Status::SUCCESS,
            Err(status) => status,
        }
    }
}

/// Calls `piece` with the position in the medium, the guest address unless it is a bit bucket, and the length.
fn each_piece(
    memory: &impl DmaMemory,
    mut transfer: Transfer,
    mut piece: impl FnMut(usize, Option<u64>, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    let mut at = transfer.offset_bytes as usize;
    let end = at + transfer.len_bytes as usize;
    while let Some(segment) = transfer.segments.next_segment(memory) {
        let segment = segment?;
        let len = segment.len_bytes as usize;
        assert!(at + len <= end, "the pieces are longer than the transfer");
        piece(at, (!segment.bit_bucket).then_some(segment.address), len)?;
        at += len;
    }
    assert_eq!(at, end, "the pieces are shorter than the transfer");
    Ok(())
}
