//! The dirty log: every page that the backend writes is marked, after it was written and before the driver hears of
//! it; nothing is marked when nobody asked; whatever log a frontend hands over, the server lives on.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::frontend::{
    F_EVENT_IDX, F_INDIRECT, F_LOG_ALL, Frontend, Served, code, count, data_place, header_place, new_eventfd,
    pattern,
};
use super::memory::{GUEST, SIZE};
use super::ring::{INDIRECT, NEXT, WRITE, descriptor};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;

/// Where the used ring is logged: beyond guest memory, so that it is told from everything else.
const USED_LOG: u64 = GUEST + SIZE + 0x1_0000;
/// Bytes of a log that covers guest memory and that.
const LOG_BYTES: u64 = (GUEST + SIZE + 0x10_0000) / 4096 / 8;

struct Log {
    file: File,
}

impl Log {
    fn new() -> Self {
        let file = File::from(rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(LOG_BYTES).unwrap();
        Self { file }
    }

    /// The pages that are marked, counted from the start of guest memory; the marks go.
    fn take(&self) -> Vec<u64> {
        let first = GUEST / 4096 / 8;
        let mut bytes = vec![0; (LOG_BYTES - first) as usize];
        self.file.read_exact_at(&mut bytes, first).unwrap();
        self.file.write_all_at(&vec![0; bytes.len()], first).unwrap();
        let all = (0..)
            .zip(&bytes)
            .flat_map(|(byte, bits)| (0..8).map(move |bit| (8 * byte + bit, bits >> bit & 1)));
        all.filter(|(_, bit)| *bit == 1).map(|(page, _)| page).collect()
    }

    fn is_marked(&self, guest_page: u64) -> bool {
        let page = GUEST / 4096 + guest_page;
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, page / 8).unwrap();
        byte[0] >> (page % 8) & 1 == 1
    }

    /// SET_LOG_BASE with so many bytes of it.
    fn hand_over(&self, frontend: &mut Frontend, len_bytes: u64) {
        let payload = [len_bytes, 0].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        frontend.send(code::SET_LOG_BASE, &payload, &[self.file.as_fd()]);
        frontend.receive(code::SET_LOG_BASE);
    }
}

fn set_logging(frontend: &mut Frontend, on: bool) {
    let log = if on { F_LOG_ALL } else { 0 };
    frontend.command(code::SET_FEATURES, &(frontend.features | log).to_le_bytes(), &[]);
    for index in 0..frontend.queues.len() {
        frontend.set_addresses(index, on.then_some(USED_LOG));
    }
}

/// A file of so many bytes, each sector of which is different.
fn image(len_bytes: usize) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sectors = (0..len_bytes / 512).flat_map(|sector| pattern(sector as u8 | 1, 512));
    std::fs::write(file.path(), sectors.collect::<Vec<u8>>()).unwrap();
    file
}

fn serve(file: &tempfile::NamedTempFile, more: &str) -> Served {
    Served::new(&format!("file={}{more}", file.path().display()), 1, 1)
}

fn connect(served: &Served, features: u64) -> Frontend {
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(features);
    frontend.add_ring(64);
    frontend.start(0, 0);
    frontend
}

/// The pages that are marked beside those of the used ring's log: the used ring's three kinds of writes share one.
fn without_used(pages: Vec<u64>) -> Vec<u64> {
    let used = (USED_LOG - GUEST) / 4096;
    assert!(pages.contains(&used), "the used ring isn't marked: {pages:?}");
    pages.into_iter().filter(|page| *page != used).collect()
}

#[test]
fn it_is_offered_where_the_data_can_follow() {
    let file = image(1 << 20);
    for (namespace, offered) in [
        (format!("file={}", file.path().display()), true),
        ("null=1M".into(), true),
        ("ram=1M".into(), false),
    ] {
        let served = Served::new(&namespace, 1, 1);
        let features = Frontend::connect(&served.socket).ask_u64(code::GET_FEATURES);
        assert_eq!(features & F_LOG_ALL != 0, offered, "{namespace}");
    }
}

#[test]
fn each_page_that_is_written_is_marked_and_no_other() {
    let file = image(1 << 20);
    for more in ["", ",direct=off", ",block=4096"] {
        for features in [0, F_EVENT_IDX] {
            let served = serve(&file, more);
            let mut frontend = connect(&served, features);
            let log = Log::new();
            log.hand_over(&mut frontend, LOG_BYTES);
            set_logging(&mut frontend, true);
            log.take();
            let used_page = frontend.queues[0].ring.used / 4096;
            for (kind, sector, len) in [
                (IN, 0, 512),
                (IN, 8, 4096),
                (IN, 3, 65_536),
                (IN, 5000, 4096),
                (GET_ID, 0, 20),
                (OUT, 1024, 65_536),
                (FLUSH, 0, 0),
                (99, 0, 512),
            ] {
                let data = data_place(0, 0);
                frontend.memory.write(data, &[0xCC; 65_536]);
                let head = frontend.prepare(0, 0, kind, sector, len);
                // At an odd place, so that a page more is touched.
                if len > 512 {
                    let ring = frontend.queues[0].ring.clone();
                    let writes = if kind == IN { WRITE } else { 0 };
                    ring.describe(&frontend.memory, head + 1, data + 512, len, NEXT | writes, head + 2);
                }
                let before = frontend.memory.read(0, SIZE as usize);
                frontend.run(head);
                let mut changed = frontend.memory.changed(&before);
                changed.retain(|page| ![used_page, RINGS_AVAILABLE].contains(page));
                // Give the used ring's wish for kicks time to be written.
                std::thread::sleep(Duration::from_millis(2));
                let marked = without_used(log.take());
                if (kind, sector) == (IN, 5000) {
                    // Out of range: nothing was written, but the marks may say so.
                    assert!(changed.iter().all(|page| marked.contains(page)), "{changed:?} {marked:?}");
                } else {
                    assert_eq!(marked, changed, "kind {kind}, {len} bytes{more}");
                }
            }
        }
    }
}

/// The page of the available ring of queue 0, which the driver itself writes.
const RINGS_AVAILABLE: u64 = 0x8000 / 4096;

#[test]
fn nothing_is_marked_before_it_is_switched_on_or_after_it_is_off() {
    let file = image(1 << 20);
    let served = serve(&file, "");
    let mut frontend = connect(&served, 0);
    let log = Log::new();
    let read = |frontend: &mut Frontend| assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    for _ in 0..20 {
        read(&mut frontend);
        log.hand_over(&mut frontend, LOG_BYTES);
        read(&mut frontend);
        assert_eq!(log.take(), [0_u64; 0]);
        // The feature alone logs data and status, the ring only where its address says so.
        let features = frontend.features | F_LOG_ALL;
        frontend.command(code::SET_FEATURES, &features.to_le_bytes(), &[]);
        read(&mut frontend);
        assert_eq!(log.take(), [header_place(0, 0) / 4096, data_place(0, 0) / 4096]);
        set_logging(&mut frontend, true);
        log.take();
        read(&mut frontend);
        assert_eq!(without_used(log.take()), [header_place(0, 0) / 4096, data_place(0, 0) / 4096]);
        set_logging(&mut frontend, false);
        log.take();
        read(&mut frontend);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(log.take(), [0_u64; 0]);
        // Another log: the old one is left alone.
        set_logging(&mut frontend, true);
        let other = Log::new();
        other.hand_over(&mut frontend, LOG_BYTES);
        log.take();
        read(&mut frontend);
        assert!(log.take().is_empty() && !without_used(other.take()).is_empty());
        set_logging(&mut frontend, false);
    }
}

/// A read into 1000 pages that don't touch each other, so that a million instructions lie between the first mark and
/// the last: whoever sees the used entry has to find the last mark, too.
#[test]
fn a_page_is_marked_before_the_driver_hears_of_it() {
    let file = image(1 << 20);
    for more in ["", ",direct=off"] {
        let served = serve(&file, more);
        let mut frontend = connect(&served, F_INDIRECT);
        let log = Log::new();
        log.hand_over(&mut frontend, LOG_BYTES);
        set_logging(&mut frontend, true);
        let place = data_place(0, 0);
        frontend.prepare(0, 0, IN, 0, 512);
        let mut table = descriptor(GUEST + header_place(0, 0), 16, NEXT, 1);
        // Backwards, and the status in a page of its own.
        let pages: Vec<u64> = (0..1000).rev().map(|index| place / 4096 + 2 * index).collect();
        for (index, page) in (0..).zip(&pages) {
            table.extend(descriptor(GUEST + 4096 * page, 512, NEXT | WRITE, index + 2));
        }
        let status = SIZE - 4096;
        table.extend(descriptor(GUEST + status, 1, WRITE, 0));
        let table_place = SIZE - 0x1_0000;
        frontend.memory.write(table_place, &table);
        frontend.queues[0].ring.describe(&frontend.memory, 0, table_place, table.len() as u32, INDIRECT, 0);
        for round in 0..300 {
            frontend.queues[0].ring.offer(&frontend.memory, 0);
            frontend.kick(0);
            let start = Instant::now();
            while frontend.queues[0].ring.try_used(&frontend.memory).is_none() {
                assert!(start.elapsed() < Duration::from_secs(30), "no completion");
            }
            let first = [status / 4096, pages[0], pages[999], (USED_LOG - GUEST) / 4096];
            let missing: Vec<u64> = first.into_iter().filter(|page| !log.is_marked(*page)).collect();
            assert_eq!(missing, [0_u64; 0], "round {round}");
            let marked = without_used(log.take());
            assert_eq!(marked.len(), 1001, "round {round}");
            frontend.memory.write(status, &[0xEE]);
        }
    }
}

/// Requests under way all the time while the log is switched on and off, and replaced. As long as it is on, each
/// page that changes is marked.
#[test]
fn it_is_switched_on_and_off_under_load() {
    let file = image(8 << 20);
    let served = serve(&file, "");
    let mut frontend = connect(&served, F_EVENT_IDX);
    let (mut on, mut log, mut marked) = (false, Log::new(), 0);
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut before = frontend.memory.read(0, SIZE as usize);
    for round in 0..150_u32 {
        // A batch of reads of random sectors, of which the first may be over before the switch.
        for place in 0..20 {
            let head = frontend.prepare(0, place, IN, next(16_000), 512 << next(7));
            if on {
                // The driver's own writes aren't the backend's.
                let page = header_place(0, place) / 4096 * 4096;
                before[page as usize..][..4096].copy_from_slice(&frontend.memory.read(page, 4096));
            }
            frontend.queues[0].ring.offer(&frontend.memory, head);
        }
        frontend.kick(0);
        let switch = next(3);
        let was_on = on;
        match switch {
            0 => {
                on = !on;
                if on {
                    log.hand_over(&mut frontend, LOG_BYTES);
                }
                set_logging(&mut frontend, on);
            }
            1 if on => {
                // What the old one holds still counts.
                let other = Log::new();
                other.hand_over(&mut frontend, LOG_BYTES);
                let old = log.take();
                for page in old.iter().filter(|page| **page < SIZE / 4096) {
                    let at = 4096 * page;
                    before[at as usize..][..4096].copy_from_slice(&frontend.memory.read(at, 4096));
                }
                log = other;
            }
            _ => {}
        }
        for _ in 0..20 {
            frontend.queues[0].ring.used(&frontend.memory);
        }
        assert!((0..20).all(|place| frontend.status(0, place) == 0));
        if on && was_on {
            // The used index is marked right after it is visible.
            std::thread::sleep(Duration::from_millis(1));
            let pages = log.take();
            marked += pages.len();
            let changed = frontend.memory.changed(&before);
            // Queue 0's ring is the driver's, and logged elsewhere.
            let lost: Vec<_> = changed.iter().filter(|page| **page >= 16 && !pages.contains(page)).collect();
            assert!(lost.is_empty(), "round {round}, {switch}: {lost:?} not marked");
        }
        if !on {
            std::thread::sleep(Duration::from_millis(1));
            log.take();
        }
        before = frontend.memory.read(0, SIZE as usize);
    }
    assert!(marked > 1000, "{marked} pages marked");
}

#[test]
fn a_log_that_is_too_small_keeps_what_it_has_bits_for() {
    let file = image(1 << 20);
    let served = serve(&file, "");
    let mut frontend = connect(&served, 0);
    let log = Log::new();
    let data_page = data_place(0, 0) / 4096;
    let header_page = header_place(0, 0) / 4096;
    // The data's byte is the first that isn't there; the rest of the mapping's page must stay as it is.
    let len_bytes = (GUEST / 4096 + data_page) / 8;
    log.hand_over(&mut frontend, len_bytes);
    set_logging(&mut frontend, true);
    for _ in 0..100 {
        assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    }
    assert_eq!(log.take(), [header_page]);
    // Nothing at all.
    log.hand_over(&mut frontend, 1);
    assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    assert_eq!(log.take(), [0_u64; 0]);
    let mut whole = vec![0; LOG_BYTES as usize];
    log.file.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole.iter().all(|byte| *byte == 0));
}

#[test]
fn an_address_beyond_the_log_is_written_nowhere() {
    let file = image(1 << 20);
    let served = serve(&file, "");
    let mut frontend = connect(&served, F_EVENT_IDX);
    let log = Log::new();
    log.hand_over(&mut frontend, LOG_BYTES);
    let features = frontend.features | F_LOG_ALL;
    frontend.command(code::SET_FEATURES, &features.to_le_bytes(), &[]);
    for address in [8 * 4096 * LOG_BYTES, 1 << 62, u64::MAX - 3, u64::MAX] {
        frontend.set_addresses(0, Some(address & !3));
        assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(log.take(), [header_place(0, 0) / 4096, data_place(0, 0) / 4096], "{address:#x}");
    }
}

#[test]
fn logs_that_cannot_be_mapped_end_their_session_only() {
    let file = image(1 << 20);
    let served = serve(&file, "");
    for (len_bytes, offset) in
        [(0, 0), (LOG_BYTES + 1, 0), (64, 1), (u64::MAX, 0), (64, u64::MAX - 63), (1 << 60, 4096)]
    {
        let mut frontend = connect(&served, 0);
        let log = Log::new();
        let payload =
            [len_bytes, offset].iter().flat_map(|value: &u64| value.to_le_bytes()).collect::<Vec<_>>();
        frontend.send(code::SET_LOG_BASE, &payload, &[log.file.as_fd()]);
        assert!(frontend.is_closed(), "{len_bytes} {offset}");
    }
    // Without a descriptor, with one that can't be mapped, with one that can't be written.
    let mut frontend = connect(&served, 0);
    let payload = [LOG_BYTES, 0].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    frontend.send(code::SET_LOG_BASE, &payload, &[]);
    assert!(frontend.is_closed());
    for file in
        [File::from(new_eventfd()), File::open("/dev/null").unwrap(), File::open("/proc/self/exe").unwrap()]
    {
        let mut frontend = connect(&served, 0);
        let payload = [4096_u64, 0].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        frontend.send(code::SET_LOG_BASE, &payload, &[file.as_fd()]);
        assert!(frontend.is_closed());
    }
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(FLUSH, 0, 0), (0, 1));
}

#[test]
fn a_log_that_shrinks_stops_the_ring_and_nothing_else() {
    let file = image(1 << 20);
    let served = serve(&file, "");
    let mut frontend = connect(&served, 0);
    let log = Log::new();
    log.hand_over(&mut frontend, LOG_BYTES);
    set_logging(&mut frontend, true);
    assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    log.file.set_len(0).unwrap();
    // This one is completed, but its marks are nobody's.
    assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    let start = Instant::now();
    while count(&frontend.queues[0].err) == 0 {
        assert!(start.elapsed().as_secs() < 30, "not noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    frontend.stop(0);
    drop(frontend);
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(FLUSH, 0, 0), (0, 1));
}

#[test]
fn the_eventfd_of_the_log_is_told() {
    let file = image(1 << 20);
    let served = serve(&file, "");
    let mut frontend = connect(&served, 0);
    let log = Log::new();
    let eventfd = new_eventfd();
    frontend.command(code::SET_LOG_FD, &[], &[eventfd.as_fd()]);
    log.hand_over(&mut frontend, LOG_BYTES);
    assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    assert_eq!(count(&eventfd), 0);
    set_logging(&mut frontend, true);
    assert_eq!(frontend.request(IN, 8, 4096), (0, 4097));
    std::thread::sleep(Duration::from_millis(20));
    assert!(count(&eventfd) > 0);
    drop(frontend);
    // Without a descriptor, with a payload, with a reply's flag.
    for (flags, payload, fds) in [(1, 0, 0), (1, 8, 1), (5, 0, 1), (2, 0, 1)] {
        let mut frontend = connect(&served, 0);
        let fds = [eventfd.as_fd()][..fds].to_vec();
        frontend.send_raw(code::SET_LOG_FD, flags, payload, &vec![0; payload as usize], &fds);
        assert!(frontend.is_closed(), "{flags} {payload}");
    }
}
