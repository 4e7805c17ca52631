//! Requests: status, `used.len` and data of each kind.

use super::frontend::{F_EVENT_IDX, F_INDIRECT, Frontend, Served, count, data_place, header_place, pattern};
use super::memory::GUEST;
use super::ring::{INDIRECT, NEXT, WRITE, descriptor};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const SECURE_ERASE: u32 = 14;

#[test]
fn data_comes_back_from_ram_and_from_a_file_of_either_block_size() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let path = file.path().display();
    for namespace in ["ram=1M".into(), format!("file={path}"), format!("file={path},block=4096")] {
        let served = Served::new(&namespace, 1, 1);
        let mut frontend = served.frontend();
        for (sector, len) in [(0, 4096), (3, 512), (8, 65_536), (2040, 4096)] {
            let data = pattern(sector as u8, len);
            assert_eq!(frontend.write_blocks(sector, &data), (0, 1), "{namespace}");
            assert_eq!(frontend.request(FLUSH, 0, 0), (0, 1));
            assert_eq!(frontend.read_blocks(sector, len), data, "{namespace}, sector {sector}");
        }
    }
}

#[test]
fn what_cannot_be_done_has_its_status_and_changes_nothing() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = served.frontend();
    let data = pattern(9, 4096);
    assert_eq!(frontend.write_blocks(2040, &data), (0, 1));
    for kind in [IN, OUT] {
        for (sector, len) in [(2041, 4096), (2048, 512), (1 << 55, 512), (u64::MAX, 512), (2040, 513)] {
            assert_eq!(frontend.request(kind, sector, len), (1, 1), "kind {kind}, sector {sector}, {len}");
        }
    }
    for kind in [2, 3, SECURE_ERASE, 15, 24, 99, u32::MAX] {
        assert_eq!(frontend.request(kind, 0, 512), (2, 1), "kind {kind}");
    }
    assert_eq!(frontend.read_blocks(2040, 4096), data);
}

#[test]
fn the_id_is_cut_to_the_room_there_is() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(GET_ID, 0, 20), (0, 21));
    assert_eq!(frontend.memory.read(data_place(0, 0), 20), b"serial 7\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(frontend.request(GET_ID, 0, 6), (0, 7));
}

fn ranges(list: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sector, count, flags) in list {
        bytes.extend(sector.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
    }
    bytes
}

#[test]
fn discard_and_write_zeroes_touch_exactly_their_ranges() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for namespace in ["ram=1M".into(), format!("file={}", file.path().display())] {
        let served = Served::new(&namespace, 1, 1);
        let mut frontend = served.frontend();
        let mut wanted = pattern(5, 65_536);
        assert_eq!(frontend.write_blocks(0, &wanted), (0, 1));
        let send = |frontend: &mut Frontend, kind, list: &[(u64, u32, u32)]| {
            let payload = ranges(list);
            frontend.memory.write(data_place(0, 0), &payload);
            frontend.request(kind, 0, payload.len() as u32)
        };
        let list = [(1, 2, 0), (10, 8, 1), (64, 0, 0), (127, 1, 0)];
        assert_eq!(send(&mut frontend, WRITE_ZEROES, &list), (0, 1), "{namespace}");
        for (sector, count, _) in list {
            wanted[sector as usize * 512..][..count as usize * 512].fill(0);
        }
        assert_eq!(frontend.read_blocks(0, 65_536), wanted, "{namespace}");
        assert_eq!(send(&mut frontend, DISCARD, &[(16, 16, 0)]), (0, 1));
        wanted[16 * 512..32 * 512].fill(0);
        assert_eq!(frontend.read_blocks(0, 65_536), wanted, "{namespace}");
        // Refused as a whole: the good range in front isn't touched either.
        for (kind, list, status) in [
            (DISCARD, vec![(40, 8, 0), (48, 1, 1)], 2),
            (WRITE_ZEROES, vec![(40, 8, 0), (48, 1, 2)], 2),
            (DISCARD, vec![(40, 8, 0), (2040, 9, 0)], 1),
            (WRITE_ZEROES, vec![(40, 8, 0), (u64::MAX, 1, 0)], 1),
            (WRITE_ZEROES, vec![(40, 8, 0), (0, u32::MAX, 0)], 1),
            (DISCARD, vec![(40, 1, 0); 17], 1),
            (DISCARD, vec![], 1),
        ] {
            assert_eq!(send(&mut frontend, kind, &list), (status, 1), "{kind} {list:?}");
        }
        frontend.memory.write(data_place(0, 0), &ranges(&[(40, 1, 0)]));
        assert_eq!(frontend.request(DISCARD, 0, 15), (1, 1));
        assert_eq!(frontend.read_blocks(0, 65_536), wanted, "{namespace}");
    }
}

#[test]
fn a_read_only_disk_reads_and_refuses_the_rest() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let served = Served::new(&format!("file={},read-only", file.path().display()), 1, 1);
    let mut frontend = served.frontend();
    assert_eq!(frontend.read_blocks(0, 512), vec![0; 512]);
    assert_eq!(frontend.write_blocks(0, &[1; 512]), (1, 1));
    frontend.memory.write(data_place(0, 0), &ranges(&[(0, 1, 0)]));
    assert_eq!(frontend.request(DISCARD, 0, 16), (1, 1));
    assert_eq!(frontend.request(WRITE_ZEROES, 0, 16), (1, 1));
    assert_eq!(frontend.request(FLUSH, 0, 0), (0, 1));
    assert_eq!(frontend.read_blocks(0, 512), vec![0; 512]);
}

#[test]
fn a_request_may_be_cut_anywhere() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(F_INDIRECT);
    frontend.add_ring(64);
    frontend.start(0, 0);
    let data = pattern(77, 2048);
    let (header, place) = (header_place(0, 0), data_place(0, 0));
    frontend.prepare(0, 0, OUT, 4, 0);
    frontend.memory.write(place, &data);
    // The header in three pieces, data that begins in the third one's descriptor's neighbour, an empty piece.
    let pieces = [(header, 5, 0), (header + 5, 10, 0), (header + 15, 1, 0), (place, 1, 0), (place, 0, 0)];
    let rest = [(place + 1, 1000, 0), (place + 1001, 1047, 0), (header + 32, 1, WRITE)];
    let all: Vec<_> = pieces.into_iter().chain(rest).collect();
    for (index, (offset, len, flags)) in (0..).zip(&all) {
        let next = if usize::from(index) + 1 < all.len() { NEXT } else { 0 };
        frontend.queues[0].ring.describe(&frontend.memory, index, *offset, *len, flags | next, index + 1);
    }
    assert_eq!(frontend.run(0), (0, 1));
    assert_eq!(frontend.read_blocks(4, 2048), data);
    // Read with the status in the last data descriptor, behind an indirect table that follows a direct one.
    frontend.prepare(0, 0, IN, 4, 0);
    let table = header + 0x2000;
    frontend.memory.write(place, &[0xEE; 2049]);
    let mut entries = descriptor(GUEST + place, 100, WRITE | NEXT, 1);
    entries.extend(descriptor(GUEST + place + 100, 1949, WRITE, 0));
    frontend.memory.write(table, &entries);
    frontend.queues[0].ring.describe(&frontend.memory, 0, header, 16, NEXT, 1);
    frontend.queues[0].ring.describe(&frontend.memory, 1, table, 32, INDIRECT, 0);
    assert_eq!(frontend.run(0).1, 2049);
    assert_eq!(frontend.memory.read(place, 2048), data);
    assert_eq!(frontend.memory.read(place + 2048, 1), [0]);
}

#[test]
fn event_indices_call_only_when_asked_and_no_wakeup_is_lost() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(F_EVENT_IDX);
    frontend.add_ring(64);
    frontend.start(0, 0);
    assert_eq!(frontend.request(FLUSH, 0, 0), (0, 1));
    std::thread::sleep(std::time::Duration::from_millis(20));
    count(&frontend.queues[0].call);
    // The driver wants to hear of the fourth completion from here.
    let ring = frontend.queues[0].ring.clone();
    let event = ring.available + 4 + 2 * u64::from(ring.size);
    frontend.memory.set_u16(event, ring.next_used.wrapping_add(3));
    for _ in 0..3 {
        frontend.request(FLUSH, 0, 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(count(&frontend.queues[0].call), 0);
    frontend.request(FLUSH, 0, 0);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(count(&frontend.queues[0].call), 1);
    // Kick only where avail_event asks for it, at every pace: what sleeps must be woken.
    for round in 0..3000_u32 {
        let head = frontend.prepare(0, 0, FLUSH, 0, 0);
        let before = frontend.queues[0].ring.next_available;
        frontend.queues[0].ring.offer(&frontend.memory, head);
        let wanted = frontend.memory.u16(ring.used + 4 + 8 * u64::from(ring.size));
        if wanted == before {
            frontend.kick(0);
        }
        frontend.queues[0].ring.used(&frontend.memory);
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round % 97) * 7));
    }
}

#[test]
fn queues_run_side_by_side() {
    let served = Served::new("ram=1M", 4, 2);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    for index in 0..4 {
        frontend.add_ring(64);
        frontend.start(index, 0);
    }
    for index in 0..4 {
        for place in 0..16 {
            let sector = u64::from(place) * 8 + index as u64 * 128;
            let head = frontend.prepare(index, place, OUT, sector, 4096);
            frontend.memory.write(data_place(index, place), &pattern(sector as u8 ^ index as u8, 4096));
            frontend.queues[index].ring.offer(&frontend.memory, head);
        }
        frontend.kick(index);
    }
    for index in 0..4 {
        for _ in 0..16 {
            assert_eq!(frontend.queues[index].ring.used(&frontend.memory).1, 1);
        }
        assert!((0..16).all(|place| frontend.status(index, place) == 0));
    }
    for sector in (0..512).step_by(8) {
        let index = sector / 128;
        assert_eq!(frontend.read_blocks(sector, 4096), pattern(sector as u8 ^ index as u8, 4096));
    }
}
