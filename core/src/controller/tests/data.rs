//! Identify data and log pages as bytes, and where they land.

use super::*;
use crate::message::{CommandError, GroupStatistics};

#[test]
fn identify_controller_says_what_the_specification_s_figure_has_where() {
    let mut bench = Bench::with_namespace();
    let data = bench.data(identify(1, 0));
    assert_eq!(data[0..4], [0x34, 0x12, 0x34, 0x12], "VID, SSVID");
    assert_eq!(data[4..24], *b"DOORBELL0           ", "SN");
    assert_eq!(data[24..64], *b"Doorbell NVMe Controller                ", "MN");
    assert_eq!(data[64..72], *b"0.1.0   ", "FR");
    assert_eq!(data[77], 8, "MDTS: 2^8 pages of 4 KiB");
    assert_eq!(data[80..84], [0x00, 0x04, 0x01, 0x00], "VER 1.4.0");
    assert_eq!(data[92..96], [0, 1, 0, 0], "OAES: namespace attribute notices");
    assert_eq!(data[111], 1, "CNTRLTYPE: I/O controller");
    assert_eq!(data[256..258], [0, 1], "OACS: Doorbell Buffer Config and nothing else");
    assert_eq!((data[258], data[259]), (3, 3), "ACL, AERL");
    assert_eq!(data[260], 0b011, "FRMW: one slot, read only");
    assert_eq!(data[261], 0b110, "LPA: effects, extended data");
    assert_eq!((data[262], data[263]), (63, 0), "ELPE, NPSS");
    assert_eq!(data[266..270], [0x57, 0x01, 0x61, 0x01], "WCTEMP 343, CCTEMP 353");
    assert_eq!(data[320..322], [0, 0], "KAS");
    assert_eq!(data[328..332], [0; 4], "SANICAP");
    assert_eq!((data[512], data[513]), (0x66, 0x44), "SQES, CQES");
    assert_eq!(data[516..520], [16, 0, 0, 0], "NN");
    // Compare, Dataset Management, Write Zeroes, Save and Select, Verify.
    assert_eq!(data[520..522], [0b1001_1101, 0], "ONCS");
    assert_eq!(data[522..524], [0, 0], "FUSES");
    assert_eq!(data[525], 0b111, "VWC");
    assert_eq!(data[536..540], [0x01, 0x00, 0x01, 0x00], "SGLS: no alignment, bit bucket");
    let nqn = b"nqn.2014-08.org.nvmexpress:uuid:d0072be1-1000-4000-8000-000000000000\0";
    assert_eq!(data[768..768 + nqn.len()], *nqn, "SUBNQN");
    assert!(data[1024..].iter().all(|&byte| byte == 0));
}

#[test]
fn identify_controller_follows_the_configuration() {
    let config = ControllerConfig {
        sgl: false,
        write_cache: false,
        controller_id: 0x0201,
        mdts_bytes: 64 << 10,
        serial: Ascii::lossy("S1"),
        ..ControllerConfig::DEFAULT
    };
    let mut bench = Bench::with_config(config);
    bench.enable();
    let data = bench.data(identify(1, 0));
    assert_eq!((data[77], data[525]), (4, 0b110));
    assert_eq!(data[78..80], [1, 2]);
    assert_eq!(data[536..540], [0; 4]);
    assert_eq!(data[4..8], *b"S1  ");
}

#[test]
fn identify_namespace_says_what_the_specification_s_figure_has_where() {
    let mut bench = Bench::new();
    let config = NamespaceConfig {
        size_blocks: 0x1_0000,
        block_bytes: 4096,
        read_only: true,
        nguid: *b"ABCDEFGHIJKLMNOP",
        eui64: *b"12345678",
        ..namespace(1)
    };
    bench.controller.add_namespace(Some(16), config).expect("good");
    bench.enable();
    let data = bench.data(identify(0, 16));
    for field in [0, 8, 16] {
        assert_eq!(data[field..field + 8], [0, 0, 1, 0, 0, 0, 0, 0], "NSZE, NCAP, NUSE");
    }
    assert_eq!((data[24], data[25], data[26]), (0, 0, 0), "NSFEAT, NLBAF, FLBAS");
    assert_eq!(data[33], 0b1001, "DLFEAT");
    assert_eq!(data[48..56], (0x1000_0000u64).to_le_bytes(), "NVMCAP");
    assert_eq!(data[99], 1, "NSATTR: write protected");
    assert_eq!(data[104..128], *b"ABCDEFGHIJKLMNOP12345678", "NGUID, EUI64");
    assert_eq!(data[128..132], [0, 0, 12, 0], "LBAF0");
    assert!(data[132..].iter().all(|&byte| byte == 0));
}

#[test]
fn deallocated_blocks_are_promised_to_be_zero_only_where_they_are() {
    let mut bench = Bench::new();
    let config = NamespaceConfig { deallocated_reads_zero: false, ..namespace(1) };
    bench.controller.add_namespace(Some(1), config).expect("good");
    bench.enable();
    assert_eq!(bench.data(identify(0, 1))[33], 0b1000, "DLFEAT");
}

#[test]
fn namespace_descriptors_name_every_identifier_there_is() {
    let mut bench = Bench::with_namespace();
    let data = bench.data(identify(3, 1));
    let mut expected = vec![3, 16, 0, 0];
    expected.extend([1; 16]);
    expected.extend([4, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data[..expected.len()], expected);
    let both = NamespaceConfig { nguid: [7; 16], eui64: [8; 8], uuid: [0; 16], ..namespace(0) };
    bench.controller.add_namespace(Some(2), both).expect("good");
    bench.run();
    let data = bench.data(identify(3, 2));
    assert_eq!(data[..4], [1, 8, 0, 0]);
    assert_eq!(data[12..16], [2, 16, 0, 0]);
    assert_eq!(data[32..37], [4, 1, 0, 0, 0]);
}

#[test]
fn active_namespace_lists_start_above_the_given_identifier() {
    let mut bench = Bench::enabled();
    for nsid in [2, 5, 16] {
        bench.controller.add_namespace(Some(nsid), namespace(nsid as u8)).expect("good");
    }
    bench.run();
    for cns in [2, 7] {
        assert_eq!(bench.data(identify(cns, 0))[..16], [2, 0, 0, 0, 5, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bench.data(identify(cns, 2))[..8], [5, 0, 0, 0, 16, 0, 0, 0]);
        assert_eq!(bench.data(identify(cns, 16))[..4], [0; 4]);
        assert_eq!(bench.fails(identify(cns, 0xffff_fffe)), Status::INVALID_NAMESPACE);
        assert_eq!(bench.fails(identify(cns, 0xffff_ffff)), Status::INVALID_NAMESPACE);
    }
}

#[test]
fn identify_of_other_kinds_answers_as_drivers_expect() {
    let mut bench = Bench::with_namespace();
    let zeroes = vec![0; 4096];
    assert_eq!(bench.data(identify(6, 0)), zeroes, "NVM command set controller data: no limits");
    assert_eq!(bench.data(identify(5, 1)), zeroes);
    assert_eq!(bench.data(identify(8, 1))[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(bench.data(identify(0, 2)), zeroes, "inactive");
    for cns in [4, 9, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x1c, 0xff] {
        assert_eq!(bench.fails(identify(cns, 1)), Status::INVALID_FIELD, "CNS {cns:#x}");
    }
    for cns in [5, 6, 7] {
        let mut other_set = identify(cns, 1);
        other_set[11] = 2 << 24;
        assert_eq!(bench.fails(other_set), Status::INVALID_FIELD, "zoned command set, CNS {cns}");
    }
    for cns in [0, 3, 5, 8] {
        for nsid in [0, 17, 0xffff_ffff] {
            assert_eq!(bench.fails(identify(cns, nsid)), Status::INVALID_NAMESPACE, "CNS {cns}, {nsid}");
        }
    }
    assert_eq!(bench.fails(identify(3, 2)), Status::INVALID_FIELD, "inactive");
}

#[test]
fn replies_spill_into_prp2_at_every_dword_offset() {
    let mut bench = Bench::with_namespace();
    let whole = bench.data(identify(1, 0));
    let second = DATA + 0x1_0000;
    for offset in (0..4096u64).step_by(4) {
        bench.memory.fill(DATA - 64, 8192, 0xee);
        bench.memory.fill(second - 64, 8192, 0xee);
        bench.ok(with_prp2(with_prp1(identify(1, 0), DATA + offset), second));
        let first_len = 4096 - offset as usize;
        let mut got = bench.memory.peek(DATA + offset, first_len);
        got.extend(bench.memory.peek(second, offset as usize));
        assert_eq!(got, whole, "offset {offset}");
        assert!(bench.memory.peek(DATA - 64, 64 + offset as usize).iter().all(|&byte| byte == 0xee));
        assert_eq!(bench.memory.peek(DATA + 4096, 64), [0xee; 64]);
        assert_eq!(bench.memory.peek(second + offset, 64), [0xee; 64]);
        assert_eq!(bench.memory.peek(second - 64, 64), [0xee; 64]);
    }
}

#[test]
fn data_pointers_that_cannot_be_are_refused() {
    let mut bench = Bench::with_namespace();
    for odd in 1..4 {
        assert_eq!(bench.fails(with_prp1(identify(1, 0), DATA + odd)), Status::PRP_OFFSET_INVALID);
    }
    let spilling = with_prp1(identify(1, 0), DATA + 8);
    assert_eq!(bench.fails(with_prp2(spilling, DATA + 0x2004)), Status::PRP_OFFSET_INVALID);
    for outside in [RAM_BYTES, 0xfe00_0000, 0xffff_ffff_ffff_fff8] {
        assert_eq!(bench.fails(with_prp1(identify(1, 0), outside)), Status::DATA_TRANSFER_ERROR);
        assert_eq!(bench.fails(with_prp2(spilling, outside & !0xfff)), Status::DATA_TRANSFER_ERROR);
        assert_eq!(bench.fails(with_prp1(get_log(2, 0, 512), outside)), Status::DATA_TRANSFER_ERROR);
    }
    bench.ok(with_prp1(identify(1, 0), 0));
}

#[test]
fn not_a_byte_beyond_numd_is_written() {
    let mut bench = Bench::with_namespace();
    for lid in [0, 1, 2, 3, 4, 5, 0x12] {
        for len in [4, 8, 60, 64, 512, 516, 4096] {
            bench.memory.fill(DATA, 8192, 0xee);
            bench.ok(get_log(lid, 0, len));
            let bytes = bench.memory.peek(DATA, 8192);
            let written = bytes.iter().rposition(|&byte| byte != 0xee).map_or(0, |last| last + 1);
            assert_eq!(written, len as usize, "page {lid:#x}");
        }
    }
}

#[test]
fn log_offsets_past_the_end_are_refused_on_every_page() {
    let mut bench = Bench::with_namespace();
    let pages = [(0, 1024), (1, 4096), (2, 512), (3, 512), (4, 4096), (5, 4096), (0x12, 1024)];
    for (lid, page_bytes) in pages {
        let whole = bench.data(get_log(lid, 0, page_bytes));
        for offset in (0..page_bytes).step_by(68) {
            let len = (page_bytes - offset).min(64);
            bench.memory.fill(DATA, 8192, 0xee);
            bench.ok(get_log(lid, u64::from(offset), len));
            let window = bench.memory.peek(DATA, len as usize);
            assert_eq!(window, whole[offset as usize..(offset + len) as usize], "{lid:#x} at {offset}");
            assert_eq!(bench.memory.peek(DATA + u64::from(len), 4), [0xee; 4]);
        }
        let end = u64::from(page_bytes);
        bench.ok(get_log(lid, end, 4));
        for offset in [end + 4, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 3, u64::MAX - 4095] {
            assert_eq!(
                bench.fails(get_log(lid, offset, 4096)),
                Status::INVALID_FIELD,
                "{lid:#x} {offset:#x}"
            );
        }
        for unaligned in 1..4 {
            assert_eq!(bench.fails(get_log(lid, unaligned, 4)), Status::INVALID_FIELD);
        }
        // NUMD of 32 bits: more than MDTS.
        let mut huge = get_log(lid, 0, 4);
        huge[10] |= 0xffff_0000;
        huge[11] = 0xffff;
        assert_eq!(bench.fails(huge), Status::INVALID_FIELD);
        huge[11] = 0x0004;
        assert_eq!(bench.fails(huge), Status::INVALID_FIELD);
    }
}

#[test]
fn a_log_as_long_as_mdts_is_written_through_a_prp_list() {
    let mut bench = Bench::with_namespace();
    let list = DATA - 0x1000;
    for page in 0..255u64 {
        bench.memory.poke(list + page * 8, &(DATA + (page + 1) * 4096).to_le_bytes());
    }
    bench.memory.fill(DATA, (1 << 20) + 64, 0xee);
    bench.ok(with_prp2(get_log(5, 0, 1 << 20), list));
    assert!(bench.memory.peek(DATA + 4096, (1 << 20) - 4096).iter().all(|&byte| byte == 0));
    assert_eq!(bench.memory.peek(DATA + (1 << 20), 64), [0xee; 64]);
}

#[test]
fn unknown_log_pages_are_invalid_log_page_and_fill_no_log() {
    let mut bench = Bench::with_namespace();
    for lid in [0x06, 0x07, 0x08, 0x0d, 0x13, 0x70, 0x80, 0x81, 0xc0, 0xc1, 0xff] {
        let status = bench.fails(get_log(lid, 0, 512));
        assert_eq!((status.code_type(), status.code()), (1, 0x09), "{lid:#x}");
    }
    assert_eq!(bench.controller.smart_counters().error_log_entries, 0);
}

#[test]
fn supported_log_pages_are_those_that_answer() {
    let mut bench = Bench::with_namespace();
    let page = bench.data(get_log(0, 0, 1024));
    for lid in 0..=255 {
        let announced = page[lid as usize * 4] & 1 == 1;
        let (status, _) = bench.command(get_log(lid, 0, 512));
        assert_eq!(announced, status == Status::SUCCESS, "{lid:#x}");
    }
}

#[test]
fn the_effects_log_tells_what_the_dispatcher_knows() {
    let mut bench = Bench::with_namespace();
    let page = bench.data(get_log(5, 0, 4096));
    for opcode in 0..=255 {
        let announced = page[usize::from(opcode) * 4] & 1 == 1;
        let known = if opcode == 0x0c {
            true
        } else {
            bench.command(entry(opcode, 0, 0, 0)).0 != Status::INVALID_OPCODE
        };
        assert_eq!(announced, known, "admin {opcode:#04x}");
    }
    // Flush, Write, Read, Compare, Write Zeroes, Dataset Management, Verify; those that write change content.
    let io: Vec<(usize, u8)> = (0..256)
        .map(|opcode| (opcode, page[1024 + opcode * 4]))
        .filter(|(_, effects)| *effects != 0)
        .collect();
    assert_eq!(io, [(0, 1), (1, 3), (2, 1), (5, 1), (8, 3), (9, 3), (0xc, 1)]);
    assert!(page[2048..].iter().all(|&byte| byte == 0));
    let mut other_set = get_log(5, 0, 4096);
    other_set[14] = 2 << 24;
    assert_eq!(bench.fails(other_set), Status::INVALID_FIELD);
}

#[test]
fn the_feature_effects_log_tells_which_features_answer() {
    let mut bench = Bench::with_namespace();
    let page = bench.data(get_log(0x12, 0, 1024));
    for fid in 0..=255u32 {
        let announced = page[fid as usize * 4] & 1 == 1;
        let mut get = get_feature(fid, 0);
        get[1] = 1;
        assert_eq!(announced, bench.command(get).0 == Status::SUCCESS, "{fid:#x}");
    }
}

#[test]
fn the_firmware_slot_log_names_the_revision() {
    let mut bench = Bench::enabled();
    let page = bench.data(get_log(3, 0, 512));
    assert_eq!(page[..16], *b"\x01\0\0\0\0\0\0\x000.1.0   ");
    assert!(page[16..512].iter().all(|&byte| byte == 0));
}

#[test]
fn the_error_log_has_the_newest_command_error_first() {
    let mut bench = Bench::enabled();
    for cid in 1..=70 {
        let status = Status::UNRECOVERED_READ_ERROR;
        let error = CommandError { sqid: 2, cid, status, lba: 0x1122, nsid: 1 };
        bench.controller.handle_group_message(1, GroupMessage::Event(GroupEvent::CommandError(error)));
    }
    let page = bench.data(get_log(1, 0, 4096));
    // Error count, SQID, CID, status (SCT 2, SC 81h from bit 1 on), no parameter, LBA, NSID.
    assert_eq!(page[..8], 70u64.to_le_bytes());
    assert_eq!(page[8..16], [2, 0, 70, 0, 0x02, 0x05, 0xff, 0xff]);
    assert_eq!(page[16..28], [0x22, 0x11, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert!(page[28..64].iter().all(|&byte| byte == 0));
    assert_eq!(page[63 * 64..63 * 64 + 8], 7u64.to_le_bytes());
}

#[test]
fn a_failed_transfer_of_an_admin_command_is_logged_and_says_so() {
    let mut bench = Bench::enabled();
    let cid = bench.submit(with_prp1(identify(1, 0), RAM_BYTES));
    let completion = bench.completions()[0];
    assert_eq!(completion.status.0 & 1 << 13, 1 << 13, "More");
    let page = bench.data(get_log(1, 0, 64));
    assert_eq!(page[..12], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, cid as u8, 0]);
}

#[test]
fn smart_sums_the_groups_and_goes_on_where_it_was() {
    let mut bench = Bench::new();
    bench.controller.restore_smart_counters(SmartCounters {
        bytes_read: 512_000,
        power_cycles: 9,
        power_on_ns: 3_600_000_000_000,
        unsafe_shutdowns: 3,
        error_log_entries: 5,
        ..SmartCounters::default()
    });
    bench.enable();
    for (group, fake) in (1..).zip(&mut bench.groups) {
        fake.statistics = GroupStatistics {
            bytes_read: 512_000 * group,
            bytes_written: 1,
            read_commands: 10,
            write_commands: 1,
            media_errors: 2,
            error_log_entries: 0,
        };
    }
    bench.controller.add_busy_time(120_000_000_000);
    bench.now_ns = 2 * 3_600_000_000_000;
    let page = bench.data(get_log(2, 0, 512));
    let field = |at: usize| u128::from_le_bytes(page[at..at + 16].try_into().expect("16 bytes"));
    assert_eq!(page[..8], [0, 0x39, 0x01, 100, 10, 0, 0, 0], "313 kelvins, spare 100 %");
    assert_eq!([32, 48, 64, 80].map(field), [4, 1, 20, 2], "data units and commands");
    assert_eq!([96, 112, 128, 144, 160, 176].map(field), [2, 10, 3, 3, 4, 5]);
    assert!(page[192..512].iter().all(|&byte| byte == 0));
    for group in 0..2 {
        assert_eq!(bench.requests(group), [GroupRequest::ReportStatistics]);
    }
    let kept = bench.controller.smart_counters();
    assert_eq!((kept.bytes_read, kept.read_commands, kept.power_cycles), (512_000 * 4, 20, 10));
}

#[test]
fn smart_is_of_the_controller_only() {
    let mut bench = Bench::with_namespace();
    let mut of_namespace = get_log(2, 0, 512);
    of_namespace[1] = 1;
    assert_eq!(bench.fails(of_namespace), Status::INVALID_FIELD);
    of_namespace[1] = 0;
    bench.ok(of_namespace);
}
