//! Data pointers, ranges and the statuses of what is wrong with them.

use doorbell_core::data::{DataReader, DataWriter, Direction, MAX_SGL_DESCRIPTORS, Segment, Segments};
use doorbell_core::message::GroupRequest;
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::{DSM_CDW11_DEALLOCATE, NvmOpcode};
use doorbell_core::spec::queue_entry::CommandFlags;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::entry::{DataPointer, command, flush, on_blocks};
use doorbell_core::testing::pair::{RAM_BASE, RAM_BYTES};
use doorbell_core::testing::prp::{self, ListPages, PAGE_BYTES};
use doorbell_core::testing::sgl::{self, Descriptor};
use doorbell_core::testing::{CountingMemory, RamMemory};

use crate::Pair;
#[allow(unused_imports, reason = "a sandboxed group has its methods by the trait alone")]
use doorbell_core::engine::GroupEngine as _;

type Small = Pair<4, 64, 2>;

fn read(pair: &mut Small, count: u32, data: DataPointer) -> Status {
    pair.execute(1, on_blocks(NvmOpcode::READ, 1, 0, count, data))
}

fn prp(low: u64, high: u64) -> DataPointer {
    DataPointer { low, high, is_sgl: false }
}

/// Field case 24 for data that the core writes itself: PRP1 at every dword offset, spilling into PRP2.
#[test]
fn a_reply_spills_from_prp1_into_prp2_at_every_offset_and_touches_nothing_else() {
    let memory = RamMemory::new(0, 4 * PAGE_BYTES);
    let reply: Vec<u8> = (0..4096_u32).map(|at| (at * 7) as u8).collect();
    for offset in (0..PAGE_BYTES).step_by(4) {
        memory.fill(0, 4 * PAGE_BYTES, 0xa5);
        let entry = command(NvmOpcode(6), 0, prp(offset, 2 * PAGE_BYTES));
        let mut writer = DataWriter::new(Segments::from_prp(&entry, 4096, 12));
        let (first, rest) = reply.split_at(100);
        writer.write(&memory, first).expect("guest memory");
        for piece in rest.chunks(333) {
            writer.write(&memory, piece).expect("guest memory");
        }
        assert_eq!(writer.write(&memory, &[0]), Err(Status::INTERNAL_ERROR));
        let first = (PAGE_BYTES - offset) as usize;
        let mut expected = vec![0xa5; 4 * PAGE_BYTES as usize];
        expected[offset as usize..PAGE_BYTES as usize].copy_from_slice(&reply[..first]);
        let second = 2 * PAGE_BYTES as usize;
        expected[second..second + 4096 - first].copy_from_slice(&reply[first..]);
        assert!(memory.peek(0, expected.len()) == expected, "offset {offset}");
        let mut reader = DataReader::new(Segments::from_prp(&entry, 4096, 12));
        let mut back = vec![0; 4096];
        for piece in back.chunks_mut(77) {
            reader.read(&memory, piece).expect("guest memory");
        }
        assert!(back == reply);
    }
    let entry = command(NvmOpcode(6), 0, prp(0, 0));
    let mut writer = DataWriter::new(Segments::from_prp(&entry, 100, 12));
    writer.write_zeroes(&memory, 100).expect("guest memory");
    assert_eq!(memory.peek(0, 101), [&[0; 100][..], &[0xa5]].concat());
}

/// Field case 25: outside RAM, wrapping, null.
#[test]
fn a_data_pointer_outside_ram_is_a_data_transfer_error() {
    let mut pair = Small::with_queues(8, 8);
    let (page, list) = (pair.allocate(4096), pair.allocate(4096));
    let end = RAM_BASE + RAM_BYTES;
    for (count, data) in [
        (1, prp(0, 0)),
        (1, prp(end, 0)),
        (16, prp(page, end)),
        (16, prp(page, 0)),
        (1, prp(0xffff_ffff_ffff_fffc, 0)),
        (16, prp(page, 0xffff_ffff_ffff_f000)),
        // A list outside RAM, and one whose entries are.
        (32, prp(page, 0xffff_ffff_ffff_f000)),
        (32, prp(page, end)),
        (32, prp(page, list)),
        (1, Descriptor::Data(end, 512).inline()),
        (1, Descriptor::Data(end - 256, 512).inline()),
        (1, Descriptor::Data(u64::MAX - 100, 512).inline()),
        (1, Descriptor::LastSegment(end, 16).inline()),
        (1, Descriptor::LastSegment(0xffff_ffff_ffff_fff8, 32).inline()),
    ] {
        assert_eq!(read(&mut pair, count, data), Status::DATA_TRANSFER_ERROR, "{count} {data:x?}");
    }
    assert_eq!(pair.group.in_flight(), 0);
}

/// Field case 28.
#[test]
fn every_fault_of_an_sgl_has_its_status_and_bounded_work() {
    let mut pair = Small::with_queues(8, 8);
    let data = pair.allocate(4096);
    let list = pair.allocate(1 << 20);
    let mut case = |descriptors: &[Descriptor], inline: Descriptor, status: Status| {
        sgl::write_segment(&pair.memory, list, descriptors);
        assert_eq!(read(&mut pair, 1, inline.inline()), status, "{inline:?} {descriptors:?}");
    };
    use Descriptor::{BitBucket, Data, LastSegment, Raw, Segment};
    let length = Status::DATA_SGL_LENGTH_INVALID.dnr();
    let segment = Status::INVALID_SGL_SEGMENT_DESCRIPTOR.dnr();
    let number = Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.dnr();
    let kind = Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr();
    // Inline.
    case(&[], Data(data, 512), Status::SUCCESS);
    case(&[], BitBucket(512), Status::SUCCESS);
    case(&[], Data(data, 511), length);
    case(&[], Data(data, 513), length);
    case(&[], Data(data, 0), length);
    case(&[], Data(data, u32::MAX), length);
    for identifier in [0x01, 0x0f, 0x11, 0x21, 0x31, 0x40, 0x50, 0x60, 0xf0, 0xff] {
        case(&[], Raw(data, 512, identifier), kind);
    }
    // Segments.
    let one = LastSegment(list, 16);
    case(&[Data(data, 512)], one, Status::SUCCESS);
    case(&[Data(data, 511)], one, length);
    case(&[Data(data, 513)], one, length);
    case(&[Raw(data, 512, 0x40)], one, kind);
    case(&[BitBucket(512)], one, Status::SUCCESS);
    case(
        &[Data(data, 256), BitBucket(0), Data(data, 0), BitBucket(256)],
        LastSegment(list, 64),
        Status::SUCCESS,
    );
    case(&[Data(data, 256), Data(data, 257)], LastSegment(list, 32), length);
    case(&[Data(data, 512)], LastSegment(list, 0), segment);
    case(&[Data(data, 512)], LastSegment(list, 15), segment);
    case(&[Data(data, 512)], Segment(list, 17), segment);
    case(&[Data(data, 512)], LastSegment(list + 4, 16), Status::SGL_OFFSET_INVALID.dnr());
    // A last segment names no other, a segment that isn't the last names one with its last descriptor only.
    case(&[LastSegment(list, 16)], one, segment);
    case(&[Segment(list, 16)], one, segment);
    case(&[Data(data, 512)], Segment(list, 16), number);
    case(&[LastSegment(list + 32, 16), Data(data, 512)], Segment(list, 32), number);
    case(&[Data(data, 256), LastSegment(list + 32, 16), Data(data, 256)], Segment(list, 32), Status::SUCCESS);
    // A segment that points at itself, and lists without end.
    case(&[Segment(list, 16)], Segment(list, 16), number);
    case(&[BitBucket(0), Segment(list, 32)], Segment(list, 32), number);
    let endless = vec![BitBucket(0); 60_000];
    case(&endless, LastSegment(list, 0xffff_fff0), number);
    case(&endless, LastSegment(list, 960_000), number);
    let mut just = vec![BitBucket(0); usize::from(MAX_SGL_DESCRIPTORS)];
    just[7] = Data(data, 512);
    case(&just, LastSegment(list, u32::from(MAX_SGL_DESCRIPTORS) * 16), Status::SUCCESS);
    case(&just, LastSegment(list, u32::from(MAX_SGL_DESCRIPTORS) * 16 + 16), number);
    // Reserved PSDT, and metadata by SGL.
    for psdt in [2, 3] {
        let mut entry = on_blocks(NvmOpcode::READ, 1, 0, 1, Data(data, 512).inline());
        entry.flags = CommandFlags::new().with_psdt(psdt);
        assert_eq!(pair.execute(1, entry), Status::INVALID_FIELD.dnr());
    }
}

#[test]
fn the_walk_of_an_endless_sgl_reads_a_bounded_number_of_descriptors() {
    let memory = CountingMemory::new(RamMemory::new(0, 4096));
    let entry = command(NvmOpcode::READ, 1, Descriptor::LastSegment(0, 0xffff_fff0).inline());
    let mut segments = Segments::new(&entry, 4096, Direction::ToGuest, 12).expect("PSDT 1");
    let mut pieces = 0;
    while let Some(piece) = segments.next_segment(&memory) {
        pieces += 1;
        if piece.is_err() {
            break;
        }
    }
    assert!(segments.next_segment(&memory).is_none());
    assert!(pieces <= 2 && memory.take() <= 520);
}

/// In a source buffer a bit bucket stands for nothing; in a destination its bytes are dropped.
#[test]
fn bit_buckets_drop_what_is_read_and_are_passed_over_in_writes() {
    let mut pair = Small::with_queues(8, 8);
    let (data, list) = (pair.allocate(4096), pair.allocate(4096));
    pair.memory.fill(data, 4096, 0x77);
    use Descriptor::{BitBucket, Data};
    let reads = vec![Data(data, 200), BitBucket(512), Data(data + 200, 312)];
    let pointer = sgl::build(&pair.memory, &[(list, reads)]);
    assert_eq!(read(&mut pair, 2, pointer), Status::SUCCESS);
    let medium = &pair.storage.media[&1];
    assert_eq!(pair.memory.peek(data, 512), [&medium[..200], &medium[712..1024]].concat());
    assert_eq!(pair.memory.peek(data + 512, 3584), [0x77; 3584]);
    let writes = vec![Data(data, 200), BitBucket(512), Data(data + 200, 312)];
    let pointer = sgl::build(&pair.memory, &[(list, writes)]);
    assert_eq!(pair.execute(1, on_blocks(NvmOpcode::WRITE, 1, 9, 1, pointer)), Status::SUCCESS);
    assert_eq!(pair.storage.media[&1][9 * 512..10 * 512], pair.memory.peek(data, 512));
}

/// Field case 29.
#[test]
fn ranges_past_the_end_and_over_mdts_have_their_statuses() {
    let mut pair = Small::with_queues(8, 8);
    let data = prp(pair.allocate(8192), 0);
    for opcode in
        [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE, NvmOpcode::VERIFY, NvmOpcode::WRITE_ZEROES]
    {
        for (slba, count) in
            [(2048, 1), (2047, 2), (u64::MAX, 1), (u64::MAX - 1, 3), (1 << 63, 1), (u64::MAX / 512, 1)]
        {
            let status = pair.execute(1, on_blocks(opcode, 1, slba, count, data));
            assert_eq!(status, Status::LBA_OUT_OF_RANGE.dnr(), "{opcode:?} {slba:#x} {count}");
        }
    }
    for nsid in [1, 2] {
        pair.add_namespace(nsid, 1 << 13, if nsid == 1 { 9 } else { 12 });
    }
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
        for (nsid, count) in [(1, 2049), (1, 8192), (2, 257), (2, 8192)] {
            let status = pair.execute(1, on_blocks(opcode, nsid, 0, count, data));
            assert_eq!(status, Status::INVALID_FIELD.dnr(), "{opcode:?} {nsid} {count}");
        }
    }
    // What moves no data knows no MDTS.
    for opcode in [NvmOpcode::VERIFY, NvmOpcode::WRITE_ZEROES] {
        assert_eq!(pair.execute(1, on_blocks(opcode, 2, 0, 8192, data)), Status::SUCCESS);
    }
    let edge = Namespace { size_blocks: u64::MAX >> 9, block_shift: 9, read_only: false };
    assert_eq!(edge.byte_range(u64::MAX >> 9, 0), Some((!0x1ff, 0)));
    assert_eq!(edge.byte_range(u64::MAX >> 9, 1), None);
}

/// Field case 30.
#[test]
fn dataset_management_touches_exactly_its_ranges_and_compare_the_medium() {
    let mut pair = Small::with_queues(8, 8);
    let page = pair.allocate(4096);
    let dsm = |pair: &mut Small, ranges: &[(u32, u64)], attributes: u32| {
        for (index, (count, slba)) in ranges.iter().enumerate() {
            let at = page + index as u64 * 16;
            pair.memory.poke(at, &0xdead_beef_u32.to_le_bytes());
            pair.memory.poke(at + 4, &count.to_le_bytes());
            pair.memory.poke(at + 8, &slba.to_le_bytes());
        }
        let mut entry = command(NvmOpcode::DATASET_MANAGEMENT, 1, prp(page, 0));
        entry.cdw10 = (ranges.len() as u32 - 1).into();
        entry.cdw11 = attributes.into();
        pair.execute(1, entry)
    };
    let before = pair.storage.media[&1].clone();
    // Hints change nothing.
    assert_eq!(dsm(&mut pair, &[(2048, 0)], 0), Status::SUCCESS);
    assert!(pair.storage.media[&1] == before);
    assert_eq!(dsm(&mut pair, &[(1, 3), (0, 9), (2, 100), (1, 2047)], DSM_CDW11_DEALLOCATE), Status::SUCCESS);
    let mut expected = before.clone();
    for block in [3, 100, 101, 2047] {
        expected[block * 512..(block + 1) * 512].fill(0);
    }
    assert!(pair.storage.media[&1] == expected);
    for bad in [(1, 2048), (u32::MAX, 0), (2, u64::MAX), (1, 1 << 63)] {
        assert_eq!(dsm(&mut pair, &[bad], DSM_CDW11_DEALLOCATE), Status::LBA_OUT_OF_RANGE.dnr());
    }
    let all: Vec<(u32, u64)> = (0..256).map(|block| (1, block * 2)).collect();
    assert_eq!(dsm(&mut pair, &all, DSM_CDW11_DEALLOCATE), Status::SUCCESS);
    for block in 0..512 {
        let is_zero = pair.storage.media[&1][block * 512..(block + 1) * 512].iter().all(|&byte| byte == 0);
        assert_eq!(is_zero, block % 2 == 0 || [3, 101].contains(&block));
    }
    // Compare looks at the medium.
    let data = pair.allocate(4096);
    let entry = on_blocks(NvmOpcode::COMPARE, 1, 0, 1, prp(data, 0));
    pair.memory.fill(data, 512, 0);
    assert_eq!(pair.execute(1, entry), Status::SUCCESS);
    pair.memory.poke(data + 511, &[1]);
    assert_eq!(pair.execute(1, entry), Status::COMPARE_FAILURE);
    assert_eq!(pair.execute(1, flush(1)), Status::SUCCESS);
}

/// Field case 31, and what else can be wrong with PRP entries.
#[test]
fn misaligned_prp_entries_are_prp_offset_invalid_wherever_they_are() {
    let mut pair = Small::with_queues(8, 8);
    let pages: Vec<u64> = (0..256).map(|_| pair.allocate(4096)).collect();
    let lists =
        ListPages { pages: vec![pair.allocate(4096), pair.allocate(4096)], offset_bytes: 4096 - 8 * 8 };
    let list = lists.pages[0] + lists.offset_bytes;
    let good = prp::build(&pair.memory, &pages, 0, 20 * 4096, lists.clone());
    assert_eq!(read(&mut pair, 160, good), Status::SUCCESS);
    let invalid = Status::PRP_OFFSET_INVALID.dnr();
    for offset in [1, 2, 3] {
        assert_eq!(read(&mut pair, 1, prp(pages[0] + offset, 0)), invalid);
    }
    for offset in [1, 4, 8, 512, 4095] {
        assert_eq!(read(&mut pair, 16, prp(pages[0], pages[1] + offset)), invalid);
    }
    for offset in [1, 2, 4] {
        assert_eq!(read(&mut pair, 160, prp(pages[0], good.high + offset)), invalid);
    }
    // Entries 0 to 6 of the first list page, its pointer to the second, and entries there.
    for at in (0..8).map(|index| list + index * 8).chain([lists.pages[1], lists.pages[1] + 8 * 11]) {
        for offset in [1_u64, 8, 0x800] {
            let kept = pair.memory.peek(at, 8);
            let value = u64::from_le_bytes(kept.clone().try_into().unwrap()) + offset;
            pair.memory.poke(at, &value.to_le_bytes());
            assert_eq!(read(&mut pair, 160, good), invalid, "entry at {at:#x}");
            pair.memory.poke(at, &kept);
        }
    }
    assert_eq!(read(&mut pair, 160, good), Status::SUCCESS);
    // An entry beyond what the transfer needs is never looked at.
    let list_end = lists.pages[1] + 8 * 12;
    pair.memory.poke(list_end, &[0xff; 8]);
    assert_eq!(read(&mut pair, 160, good), Status::SUCCESS);
}

#[test]
fn neighbouring_entries_are_merged() {
    let memory = RamMemory::new(0, 1 << 20);
    for page in 1..64_u64 {
        memory.poke(page * 8, &(0x4_0000 + page * 4096).to_le_bytes());
    }
    let entry = command(NvmOpcode::READ, 1, prp(0x4_0000, 8));
    let mut segments = Segments::from_prp(&entry, 64 * 4096, 12);
    let whole = Segment { address: 0x4_0000, len_bytes: 64 * 4096, bit_bucket: false };
    assert_eq!(segments.next_segment(&memory), Some(Ok(whole)));
    assert_eq!(segments.next_segment(&memory), None);
}

/// A guest may run the queue in memory that goes away.
#[test]
fn a_queue_that_cannot_be_read_is_fatal_and_stops() {
    let mut pair = Small::with_queues(8, 8);
    pair.memory.add_region(0x8000_0000, 4096, true);
    let lost =
        GroupRequest::CreateSubmissionQueue { qid: 2, cqid: 1, base: 0x8000_0000, size: 8, page_shift: 12 };
    pair.request(lost);
    pair.memory.remove_regions(0x8000_0000..0x8000_0001);
    pair.registers[4].store(3, std::sync::atomic::Ordering::Relaxed);
    pair.fetch();
    assert!(pair.sleep());
    assert_eq!(pair.events.len(), 1);
    // The completion entry that was reserved isn't lost: the other queue can still use all seven.
    for _ in 0..7 {
        pair.submit(1, flush(1));
    }
    assert_eq!(pair.fetch(), 7);
}
