//! A storage behind a queue group: what a virtqueue asks for becomes NVMe commands in an in-process queue pair, and
//! only what the group lets out reaches the storage. So a sandbox that holds the group holds a virtio disk too.
//!
//! The pair lives in [`Lent`], memory that only we and the group see. A request's pieces of guest memory appear
//! to the group as one range of addresses at [`DATA`], by command identifier; what it hands back is looked up among
//! the pieces of that very request, so nothing that it says reaches memory which the request doesn't name.
//! A command carries at most [`CHUNK_BYTES`]; virtio knows no such limit, so a request may become several commands,
//! one after the other, and its result is the first error.
#![expect(unsafe_code, reason = "lends guest memory to a storage")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use doorbell_core::command::{IoCommand, Operation as GroupOperation, Range, Transfer};
use doorbell_core::doorbell::{head_index, tail_index};
use doorbell_core::engine::GroupEngine;
use doorbell_core::message::{GroupMessage, GroupReply, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::{self, NvmOpcode};
use doorbell_core::spec::queue_entry::{CommandFlags, CompletionQueueEntry, SubmissionQueueEntry};
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

use super::lent::Lent;
use crate::engine::HostedGroup;
use crate::storage::{
    IoContext, Operation, Storage, StorageCommand, StorageError, StorageQueue, Submission, Token,
};

/// The one queue pair.
const QID: u16 = 1;
/// Its entries.
const ENTRIES: u16 = 1024;
/// Where the group sees the submission queue, the completion queue, and a range definition for each command.
const SUBMISSION: u64 = 0x1_0000;
const COMPLETION: u64 = SUBMISSION + ENTRIES as u64 * 64;
const RANGES: u64 = COMPLETION + ENTRIES as u64 * 16;
const LENT_BYTES: usize = ENTRIES as usize * (64 + 16 + 16);
/// Where the group sees the data of command 0; that of the others follows at this distance.
const DATA: u64 = 1 << 60;
const DATA_STRIDE: u64 = 1 << 40;
/// Virtio's sector.
const BLOCK_SHIFT: u8 = 9;
/// The most that one command may carry: 65,536 blocks.
const CHUNK_BYTES: u64 = 65_536 << BLOCK_SHIFT;
/// What a request of a group that is beyond repair ends with.
const BROKEN: StorageError = StorageError::Io(libc::EIO);

/// Maximum Data Transfer Size that the group has to be made with.
pub(super) const MDTS_BYTES: u32 = CHUNK_BYTES as u32;

/// See the module.
#[derive(Debug)]
pub(super) struct ControlledQueue {
    group: HostedGroup,
    queue: StorageQueue,
    storage: Arc<dyn Storage>,
    /// As the group knows it.
    namespace: Option<Namespace>,
    memory: Lent,
    registers: Box<[AtomicU32]>,
    tail: u16,
    head: u16,
    phase: bool,
    /// By command identifier.
    requests: Box<[Request]>,
    free: Vec<u16>,
    /// Commands that the storage has no room for.
    waiting: VecDeque<u16>,
    /// Pieces of the command at hand.
    pieces: Vec<libc::iovec>,
    /// The group doesn't do what it should.
    broken: bool,
}

/// A request of a virtqueue.
#[derive(Debug)]
struct Request {
    token: Token,
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
    /// Bytes of it whose commands have completed.
    done_bytes: u64,
    /// Bytes of the command under way.
    chunk_bytes: u64,
    pieces: Vec<libc::iovec>,
    command: Option<IoCommand>,
}

// SAFETY: the pieces point at guest memory that outlives the request whatever thread it is on.
unsafe impl Send for ControlledQueue {}

impl ControlledQueue {
    /// `queue` of `storage` behind `group`, which is new.
    pub(super) fn new(group: HostedGroup, queue: StorageQueue, storage: Arc<dyn Storage>) -> Self {
        let request = || Request {
            token: 0,
            operation: Operation::Flush,
            offset_bytes: 0,
            len_bytes: 0,
            done_bytes: 0,
            chunk_bytes: 0,
            pieces: Vec::new(),
            command: None,
        };
        let mut made = Self {
            group,
            queue,
            storage,
            namespace: None,
            memory: Lent::new(SUBMISSION, LENT_BYTES, DATA),
            registers: (0..4).map(|_| AtomicU32::new(0)).collect(),
            tail: 0,
            head: 0,
            phase: true,
            requests: (0..ENTRIES).map(|_| request()).collect(),
            free: Vec::with_capacity(ENTRIES.into()),
            waiting: VecDeque::new(),
            pieces: Vec::new(),
            broken: false,
        };
        made.restart();
        made
    }

    /// Begins anew: nothing may be in flight.
    pub(super) fn restart(&mut self) {
        self.memory.clear();
        self.registers.iter().for_each(|register| register.store(0, Ordering::Relaxed));
        (self.tail, self.head, self.phase) = (0, 0, true);
        // One less than entries: a full ring has one free.
        self.free.clear();
        self.free.extend((0..ENTRIES - 1).rev());
        self.namespace = None;
        let size = u32::from(ENTRIES);
        self.broken = !(self.ask(GroupRequest::Reset, GroupReply::ResetDone)
            && self.ask(
                GroupRequest::CreateCompletionQueue {
                    qid: QID,
                    base: COMPLETION,
                    size,
                    vector: None,
                    coalesce: false,
                },
                GroupReply::Done,
            )
            && self.ask(
                GroupRequest::CreateSubmissionQueue {
                    qid: QID,
                    cqid: QID,
                    base: SUBMISSION,
                    size,
                    page_shift: 12,
                },
                GroupReply::Done,
            ));
    }

    /// See [`super::medium::Medium`].
    pub(super) fn submit(&mut self, context: &mut IoContext, command: &StorageCommand<'_>) -> Submission {
        if self.broken {
            return Submission::Complete(Err(BROKEN));
        }
        if command.len_bytes() > DATA_STRIDE || !self.update_namespace() {
            return Submission::Complete(Err(StorageError::OutOfRange));
        }
        if command.len_bytes() == 0 && command.operation() != Operation::Flush {
            // NVMe's counts are 0's based: there is no command for nothing.
            let inside = command.offset_bytes() <= self.storage.size_bytes();
            return Submission::Complete(if inside { Ok(()) } else { Err(StorageError::OutOfRange) });
        }
        let Some(cid) = self.free.pop() else { return Submission::Busy };
        let request = &mut self.requests[usize::from(cid)];
        request.token = command.token();
        request.operation = command.operation();
        request.offset_bytes = command.offset_bytes();
        request.len_bytes = command.len_bytes();
        request.done_bytes = 0;
        request.pieces.clear();
        request.pieces.extend_from_slice(command.segments());
        match self.advance(cid, context) {
            Some(result) => {
                self.free.push(cid);
                Submission::Complete(result)
            }
            None => Submission::Queued,
        }
    }

    /// See [`super::medium::Medium`].
    pub(super) fn reaped(
        &mut self,
        context: &mut IoContext,
        token: Token,
        result: Result<(), StorageError>,
    ) -> Option<(Token, Result<(), StorageError>)> {
        let cid = u16::try_from(token).ok().filter(|cid| *cid < ENTRIES)?;
        let result = match self.command_ended(cid, result) {
            Some(result) => result,
            None => self.advance(cid, context)?,
        };
        self.free.push(cid);
        Some((self.requests[usize::from(cid)].token, result))
    }

    /// See [`super::medium::Medium`].
    pub(super) fn retry(
        &mut self,
        context: &mut IoContext,
        ended: &mut Vec<(Token, Result<(), StorageError>)>,
    ) {
        for _ in 0..self.waiting.len() {
            let Some(cid) = self.waiting.pop_front() else { return };
            let Some(command) = self.requests[usize::from(cid)].command else { continue };
            let result = match self.start(cid, &command, context) {
                Submission::Queued => continue,
                Submission::Busy => {
                    self.waiting.push_front(cid);
                    return;
                }
                Submission::Complete(result) => match self.command_ended(cid, result) {
                    Some(result) => result,
                    None => match self.advance(cid, context) {
                        Some(result) => result,
                        None => continue,
                    },
                },
            };
            self.free.push(cid);
            ended.push((self.requests[usize::from(cid)].token, result));
        }
    }

    /// See [`super::medium::Medium`].
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Issues a request's next command, and the ones after it as long as they end at once. `None`: it goes on later.
    fn advance(&mut self, cid: u16, context: &mut IoContext) -> Option<Result<(), StorageError>> {
        loop {
            self.issue(cid);
            let Some(command) = self.group.poll_command(&self.memory, &self.registers) else {
                // The group refused it by a completion, or doesn't answer at all.
                return Some(match self.take_completion(cid) {
                    Some(status) if status.is_success() => Err(self.break_down()),
                    Some(status) => Err(refusal(status)),
                    None => Err(self.break_down()),
                });
            };
            self.requests[usize::from(cid)].command = Some(command);
            match self.start(cid, &command, context) {
                Submission::Queued => return None,
                Submission::Busy => {
                    self.waiting.push_back(cid);
                    return None;
                }
                Submission::Complete(result) => {
                    if let Some(result) = self.command_ended(cid, result) {
                        return Some(result);
                    }
                }
            }
        }
    }

    /// Puts a request's next command into the submission queue and rings its doorbell.
    fn issue(&mut self, cid: u16) {
        let request = &mut self.requests[usize::from(cid)];
        let left = request.len_bytes - request.done_bytes;
        request.chunk_bytes = left.min(CHUNK_BYTES);
        let offset_bytes = request.offset_bytes + request.done_bytes;
        let slba = offset_bytes >> BLOCK_SHIFT;
        let blocks_z = (request.chunk_bytes >> BLOCK_SHIFT).saturating_sub(1) as u32;
        let mut entry = SubmissionQueueEntry { cid: cid.into(), nsid: 1.into(), ..Default::default() };
        let range = |entry: &mut SubmissionQueueEntry, flags: u32| {
            entry.cdw10 = (slba as u32).into();
            entry.cdw11 = ((slba >> 32) as u32).into();
            entry.cdw12 = (blocks_z | flags).into();
        };
        let fua = |fua| if fua { nvm::CDW12_FUA } else { 0 };
        // One SGL Data Block descriptor (type 0): address, then length.
        let data = |entry: &mut SubmissionQueueEntry, address: u64, len_bytes: u64| {
            entry.flags = CommandFlags::new().with_psdt(1);
            entry.prp1 = address.into();
            entry.prp2 = len_bytes.into();
        };
        let buffer = DATA + u64::from(cid) * DATA_STRIDE + request.done_bytes;
        let opcode = match request.operation {
            Operation::Read => NvmOpcode::READ,
            Operation::Write { .. } => NvmOpcode::WRITE,
            Operation::Compare => NvmOpcode::COMPARE,
            Operation::Verify => NvmOpcode::VERIFY,
            Operation::WriteZeroes { .. } => NvmOpcode::WRITE_ZEROES,
            Operation::Deallocate => NvmOpcode::DATASET_MANAGEMENT,
            Operation::Flush => NvmOpcode::FLUSH,
        };
        entry.opcode = opcode.0;
        match request.operation {
            Operation::Read | Operation::Compare => {
                range(&mut entry, 0);
                data(&mut entry, buffer, request.chunk_bytes);
            }
            Operation::Write { fua: durable } => {
                range(&mut entry, fua(durable));
                data(&mut entry, buffer, request.chunk_bytes);
            }
            Operation::Verify => range(&mut entry, 0),
            Operation::WriteZeroes { deallocate, fua: durable } => {
                let deallocate = if deallocate { nvm::CDW12_DEALLOCATE } else { 0 };
                range(&mut entry, fua(durable) | deallocate);
            }
            Operation::Deallocate => {
                let address = RANGES + u64::from(cid) * u64::from(nvm::DSM_RANGE_BYTES);
                self.memory.store(address, &[0, blocks_z + 1, slba as u32, (slba >> 32) as u32]);
                data(&mut entry, address, nvm::DSM_RANGE_BYTES.into());
                entry.cdw11 = nvm::DSM_CDW11_DEALLOCATE.into();
            }
            Operation::Flush => {}
        }
        let (dwords, _) = entry.as_bytes().as_chunks();
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(dwords) {
            *word = u32::from_le_bytes(*bytes);
        }
        self.memory.store(SUBMISSION + u64::from(self.tail) * 64, &words);
        self.tail = (self.tail + 1) % ENTRIES;
        self.registers[tail_index(QID) as usize].store(self.tail.into(), Ordering::Release);
    }

    /// Carries out what the group let out for a request.
    fn start(&mut self, cid: u16, command: &IoCommand, context: &mut IoContext) -> Submission {
        let token = Token::from(cid);
        let (operation, transfer) = match command.operation {
            GroupOperation::Read(transfer) => (Operation::Read, transfer),
            GroupOperation::Write { transfer, fua } => (Operation::Write { fua }, transfer),
            GroupOperation::Compare(transfer) => (Operation::Compare, transfer),
            other => {
                let (operation, range) = match other {
                    GroupOperation::Verify(range) => (Operation::Verify, Some(range)),
                    GroupOperation::WriteZeroes { range, deallocate, fua } => {
                        (Operation::WriteZeroes { deallocate, fua }, Some(range))
                    }
                    GroupOperation::Deallocate(mut ranges) => match ranges.next_range(&self.memory) {
                        Some(Ok(range)) => (Operation::Deallocate, Some(range)),
                        _ => return Submission::Complete(Err(BROKEN)),
                    },
                    _ => (Operation::Flush, None),
                };
                let Range { offset_bytes, len_bytes } =
                    range.unwrap_or(Range { offset_bytes: 0, len_bytes: 0 });
                let command = StorageCommand::without_data(token, operation, offset_bytes, len_bytes);
                return self.queue.submit(context, &command);
            }
        };
        if !self.resolve(cid, transfer) {
            return Submission::Complete(Err(BROKEN));
        }
        let (offset_bytes, len_bytes) = (transfer.offset_bytes, u64::from(transfer.len_bytes));
        // SAFETY: the pieces are parts of those that the caller of `submit` promised to keep until this very request
        // has ended.
        let command = unsafe { StorageCommand::new(token, operation, offset_bytes, len_bytes, &self.pieces) };
        self.queue.submit(context, &command)
    }

    /// Finds a transfer's pieces among those of its request. False: they aren't.
    fn resolve(&mut self, cid: u16, mut transfer: Transfer) -> bool {
        self.pieces.clear();
        let base = DATA + u64::from(cid) * DATA_STRIDE;
        while let Some(segment) = transfer.segments.next_segment(&self.memory) {
            let Ok(segment) = segment else { return false };
            let Some(mut skip) = segment.address.checked_sub(base).filter(|_| !segment.bit_bucket) else {
                return false;
            };
            let mut left = segment.len_bytes as usize;
            for piece in &self.requests[usize::from(cid)].pieces {
                if left == 0 {
                    break;
                }
                let len = piece.iov_len as u64;
                if skip >= len {
                    skip -= len;
                    continue;
                }
                let iov_len = (piece.iov_len - skip as usize).min(left);
                let iov_base = piece.iov_base.wrapping_byte_add(skip as usize);
                self.pieces.push(libc::iovec { iov_base, iov_len });
                left -= iov_len;
                skip = 0;
            }
            if left > 0 {
                return false;
            }
        }
        true
    }

    /// A command has ended: its request's result, or `None` where more is to be done.
    fn command_ended(
        &mut self,
        cid: u16,
        result: Result<(), StorageError>,
    ) -> Option<Result<(), StorageError>> {
        let request = &mut self.requests[usize::from(cid)];
        let tag: Tag = request.command.take()?.tag;
        request.done_bytes += request.chunk_bytes;
        let more = request.done_bytes < request.len_bytes;
        let status = if result.is_ok() { Status::SUCCESS } else { Status::INTERNAL_ERROR };
        let _ = self.group.complete(&self.memory, tag, status);
        self.group.flush(&self.memory, &self.registers);
        match self.take_completion(cid) {
            _ if result.is_err() => Some(result),
            Some(status) if status.is_success() => (!more).then_some(Ok(())),
            Some(status) => Some(Err(refusal(status))),
            None => Some(Err(self.break_down())),
        }
    }

    /// Takes the next completion, which has to be that command's.
    fn take_completion(&mut self, cid: u16) -> Option<Status> {
        while self.group.poll_message().is_some() {}
        let entry = self.memory.load(COMPLETION + u64::from(self.head) * CompletionQueueEntry::SIZE_BYTES);
        let entry = CompletionQueueEntry::from_dwords(entry);
        if entry.phase != self.phase || entry.cid != cid {
            return None;
        }
        self.head = (self.head + 1) % ENTRIES;
        self.phase ^= self.head == 0;
        self.registers[head_index(QID) as usize].store(self.head.into(), Ordering::Release);
        Some(entry.status)
    }

    /// The group doesn't do what it should: it gets nothing more until the driver begins anew.
    #[cold]
    fn break_down(&mut self) -> StorageError {
        if !self.broken {
            self.broken = true;
            tracing::warn!(
                "the disk's queue group doesn't answer as it should; requests fail until the guest restarts the disk"
            );
        }
        BROKEN
    }

    /// Tells the group of the disk's size, if that is new.
    fn update_namespace(&mut self) -> bool {
        let namespace = Namespace {
            size_blocks: self.storage.size_bytes() >> BLOCK_SHIFT,
            block_shift: BLOCK_SHIFT,
            read_only: self.storage.read_only(),
        };
        if self.namespace == Some(namespace) {
            return true;
        }
        let told = self.ask(GroupRequest::SetNamespace { nsid: 1, namespace }, GroupReply::Done);
        self.namespace = told.then_some(namespace);
        told
    }

    /// Whether the group answers a request as it should.
    fn ask(&mut self, request: GroupRequest, expected: GroupReply) -> bool {
        self.group.handle_request(&self.memory, &self.registers, request);
        let mut answered = false;
        while let Some(message) = self.group.poll_message() {
            answered |= message == GroupMessage::Reply(expected);
        }
        answered
    }
}

/// Why a group refuses what the storage wasn't asked.
fn refusal(status: Status) -> StorageError {
    match status.code() {
        code if code == Status::LBA_OUT_OF_RANGE.code() => StorageError::OutOfRange,
        code if code == Status::NAMESPACE_WRITE_PROTECTED.code() => StorageError::ReadOnly,
        _ => BROKEN,
    }
}

#[cfg(test)]
mod tests;
