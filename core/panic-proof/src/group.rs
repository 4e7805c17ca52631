//! The I/O path: queue groups, data pointers, doorbells.

use doorbell_core::command::{IoCommand, Operation, Range, Transfer};
use doorbell_core::data::{DataReader, DataWriter, Direction, Segment, Segments};
use doorbell_core::doorbell::{Doorbell, DoorbellError, clear_register, head_index, tail_index};
use doorbell_core::group::{GroupConfig, QueueGroup, QueueStatistics};
use doorbell_core::message::{
    Coalescing, CommandError, DoorbellBuffer, GroupEvent, GroupMessage, GroupReply, GroupRequest,
    GroupStatistics, MessageWords,
};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::queue_entry::{CommandFlags, CompletionQueueEntry, SubmissionQueueEntry};
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use crate::opaque::{
    OpaqueMemory, byte, bytes, dword, flag, half, part, registers, sink, state, unknown, word,
};

type Group = QueueGroup<65, 1024, 1024>;

static mut GROUP: Group = QueueGroup::new(GroupConfig { mdts_bytes: u32::MAX, posted_registers: true });
static mut DOORBELL: Doorbell = Doorbell::new(0);

pub fn exercise() {
    let group = unknown(&raw mut GROUP);
    group.handle_request(&OpaqueMemory, registers(), request());
    if let Some(command) = group.poll_command(&OpaqueMemory, registers()) {
        carry_out(command);
    }
    let tag = if flag() { Tag::from_u64(word()) } else { Tag { slot: half(), generation: dword() } };
    sink(tag.to_u64());
    sink(group.complete(&OpaqueMemory, tag, Status(half())) as u64);
    sink(group.poll_interrupt(word()).map_or(0, u64::from));
    sink(group.interrupt_deadline_ns().unwrap_or(0));
    sink(u64::from(group.wants_interrupt()));
    sink(u64::from(group.is_level_asserted(&OpaqueMemory, registers())));
    sink(group.arm(&OpaqueMemory, registers(), flag()) as u64);
    sink(group.poll_cancel().map_or(0, Tag::to_u64));
    if let Some(message) = group.poll_message() {
        sink_message(message);
    }
    if flag() {
        *group = Group::blank();
        group.configure(GroupConfig { mdts_bytes: dword(), posted_registers: flag() });
    }
    sink(group.in_flight() as u64);
    sink(u64::from(group.has_waiting()));
    sink(group.dropped_events());
    group.add_statistics(statistics());
    match byte() {
        0 => group.pause(),
        1 => group.resume(),
        2 => group.abandon_commands(),
        _ => sink(u64::from(group.is_resetting())),
    }
    for statistics in group.queue_statistics() {
        let QueueStatistics { commands, errors, .. } = statistics;
        sink(commands ^ errors);
    }
    let state = state();
    sink(group.save(state).map_or(0, |len| len as u64));
    sink(u64::from(
        group.load(state, |nsid, namespace| word() ^ u64::from(nsid) == namespace.size_blocks).is_ok(),
    ));
    sink_words(request().to_words());
    sink_words(message().to_words());
    sink_words(
        GroupRequest::from_words(&words()).map_or(MessageWords::default(), |request| request.to_words()),
    );
    if let Some(message) = GroupMessage::from_words(&words()) {
        sink_message(message);
    }
    walk();
    ring();
}

/// The numbers of any message, and of none.
fn words() -> MessageWords {
    let q = [word(), word(), word(), word(), word(), word()];
    MessageWords { kind: half(), a: half(), b: half(), c: half(), d: dword(), q }
}

fn sink_words(words: MessageWords) {
    let MessageWords { kind, a, b, c, d, q: [q0, q1, ..] } = words;
    sink(u64::from(kind) ^ u64::from(a) ^ u64::from(b) ^ u64::from(c) ^ u64::from(d) ^ q0 ^ q1);
}

/// Any request.
pub fn request() -> GroupRequest {
    match byte() {
        0 => GroupRequest::CreateCompletionQueue {
            qid: half(),
            base: word(),
            size: dword(),
            vector: flag().then(half),
            coalesce: flag(),
        },
        1 => GroupRequest::CreateSubmissionQueue {
            qid: half(),
            cqid: half(),
            base: word(),
            size: dword(),
            page_shift: byte(),
        },
        2 => GroupRequest::DeleteCompletionQueue { qid: half() },
        3 => GroupRequest::DeleteSubmissionQueue { qid: half() },
        4 => GroupRequest::Abort { sqid: half(), cid: half() },
        5 => GroupRequest::SetDoorbellBuffer(buffer()),
        6 => GroupRequest::ClearDoorbellBuffer,
        7 => GroupRequest::SetNamespace { nsid: dword(), namespace: namespace() },
        8 => GroupRequest::RemoveNamespace { nsid: dword() },
        9 => GroupRequest::SetWriteCache { enabled: flag() },
        10 => GroupRequest::SetCoalescing(Coalescing { threshold_z: byte(), time_100us: byte() }),
        11 => GroupRequest::SetVectorCoalescing { vector: half(), enabled: flag() },
        12 => GroupRequest::ReportStatistics,
        _ => GroupRequest::Reset,
    }
}

/// Any statistics.
pub fn statistics() -> GroupStatistics {
    GroupStatistics {
        bytes_read: word(),
        bytes_written: word(),
        read_commands: word(),
        write_commands: word(),
        media_errors: word(),
        error_log_entries: word(),
    }
}

/// Any message.
pub fn message() -> GroupMessage {
    match byte() {
        0 => GroupMessage::Reply(GroupReply::Done),
        1 => GroupMessage::Reply(GroupReply::Failed(Status(half()))),
        2 => GroupMessage::Reply(GroupReply::Abort { aborted: flag() }),
        3 => GroupMessage::Reply(GroupReply::Statistics(statistics())),
        4 => GroupMessage::Reply(GroupReply::ResetDone),
        5 => GroupMessage::Event(GroupEvent::Fatal { qid: half() }),
        6 => GroupMessage::Event(GroupEvent::InvalidDoorbell {
            qid: half(),
            completion: flag(),
            value: dword(),
        }),
        _ => GroupMessage::Event(GroupEvent::CommandError(CommandError {
            sqid: half(),
            cid: half(),
            status: Status(half()),
            lba: word(),
            nsid: dword(),
        })),
    }
}

fn sink_message(message: GroupMessage) {
    match message {
        GroupMessage::Reply(GroupReply::Failed(status)) => sink(u64::from(status.0)),
        GroupMessage::Reply(_) => sink(1),
        GroupMessage::Event(GroupEvent::Fatal { qid }) => sink(u64::from(qid)),
        GroupMessage::Event(_) => sink(2),
    }
}

fn buffer() -> DoorbellBuffer {
    DoorbellBuffer { shadow: word(), event_idx: word() }
}

fn namespace() -> Namespace {
    Namespace { size_blocks: word(), block_shift: byte(), read_only: flag() }
}

fn carry_out(command: IoCommand) {
    sink(command.tag.to_u64() ^ u64::from(command.nsid) ^ u64::from(command.sqid));
    match command.operation {
        Operation::Read(transfer) | Operation::Compare(transfer) | Operation::Write { transfer, .. } => {
            let Transfer { offset_bytes, len_bytes, mut segments } = transfer;
            sink(offset_bytes ^ u64::from(len_bytes));
            while let Some(Ok(segment)) = segments.next_segment(&OpaqueMemory) {
                sink_segment(segment);
            }
        }
        Operation::Deallocate(mut ranges) => {
            while let Some(Ok(Range { offset_bytes, len_bytes })) = ranges.next_range(&OpaqueMemory) {
                sink(offset_bytes ^ len_bytes);
            }
        }
        Operation::Verify(range) | Operation::WriteZeroes { range, .. } => sink(range.offset_bytes),
        Operation::Flush | Operation::FlushAll => sink(0),
    }
}

fn sink_segment(segment: Segment) {
    sink(segment.address ^ u64::from(segment.len_bytes) ^ u64::from(segment.bit_bucket));
}

/// Any submission queue entry.
fn entry() -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        opcode: byte(),
        flags: CommandFlags::from_bits(byte()),
        cid: half().into(),
        nsid: dword().into(),
        prp1: word().into(),
        prp2: word().into(),
        cdw10: dword().into(),
        cdw11: dword().into(),
        cdw12: dword().into(),
        ..SubmissionQueueEntry::default()
    }
}

fn walk() {
    let direction = if flag() { Direction::ToGuest } else { Direction::ToController };
    let segments = match Segments::new(&entry(), dword(), direction, byte()) {
        Ok(segments) => segments,
        Err(status) => {
            sink(u64::from(status.0));
            Segments::from_prp(&entry(), dword(), byte())
        }
    };
    let mut buffer: [u8; 512] = bytes();
    let mut writer = DataWriter::new(segments);
    while flag() {
        sink(u64::from(writer.write(&OpaqueMemory, part(&mut buffer)).is_ok()));
        sink(u64::from(writer.write_zeroes(&OpaqueMemory, dword()).is_ok()));
    }
    let mut reader = DataReader::new(segments);
    while flag() {
        sink(u64::from(reader.read(&OpaqueMemory, part(&mut buffer)).is_ok()));
    }
    let cqe = CompletionQueueEntry::from_dwords([dword(), dword(), dword(), dword()]);
    sink(u64::from(cqe.to_dwords()[3]));
    sink(u64::from(Status::new(byte(), byte()).dnr().0));
}

fn ring() {
    let doorbell = unknown(&raw mut DOORBELL);
    if flag() {
        let index = if flag() { tail_index(half()) } else { head_index(half()) };
        *doorbell = Doorbell::new(index).with_posted_registers(flag());
    }
    clear_register(registers(), dword());
    sink(u64::from(doorbell.attach(&OpaqueMemory, buffer(), dword()).is_ok()));
    match doorbell.poll(&OpaqueMemory, registers(), dword(), dword()) {
        Ok(value) => sink(u64::from(value.unwrap_or(0))),
        Err(DoorbellError::Invalid(value)) => sink(u64::from(value)),
        Err(DoorbellError::Dma) => sink(1),
    }
    sink(u64::from(doorbell.publish(&OpaqueMemory, dword(), dword()).is_ok()));
    sink(u64::from(doorbell.arm(&OpaqueMemory, registers(), dword()).is_ok()));
    sink(u64::from(doorbell.has_shadow()));
    if flag() {
        doorbell.detach();
    }
}
