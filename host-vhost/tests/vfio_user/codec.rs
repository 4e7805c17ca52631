//! Layouts against literal bytes, and the parser against any bytes.

use doorbell_vhost::vfio_user::protocol::{
    DeviceInfo, DmaUnmap, Header, IrqInfo, RegionAccess, RegionInfo, RegionIoFds, SparseArea,
};
use doorbell_vhost::vfio_user::reply::Reply;
use doorbell_vhost::vfio_user::request::{IrqAction, IrqData, Request, SetIrqs};
use proptest::prelude::*;
use rustix::io::Errno;
use zerocopy::FromBytes;

const HEADER: [u8; 16] = [0x34, 0x12, 0x05, 0x00, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn header(command: u16) -> Header {
    let mut bytes = HEADER;
    bytes[2..4].copy_from_slice(&command.to_le_bytes());
    Header::read_from_bytes(&bytes).unwrap()
}

fn encoded(reply: &Reply<'_>) -> Vec<u8> {
    let mut bytes = vec![0xee; 3];
    reply.encode(&header(5), &mut bytes);
    bytes
}

#[test]
fn requests_parse_from_their_bytes() {
    let version = [0, 0, 1, 0, b'{', b'}', 0];
    let expected = Request::Version { major: 0, minor: 1, json: b"{}" };
    assert_eq!(Request::parse(&header(1), &version, 0), Ok(expected));
    assert_eq!(Request::parse(&header(1), &version[..6], 0), Ok(expected), "no NUL");
    let without = Request::Version { major: 0, minor: 1, json: b"" };
    assert_eq!(Request::parse(&header(1), &version[..4], 0), Ok(without), "SPDK sends no JSON");

    let map = [
        32, 0, 0, 0, 3, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
    ];
    match Request::parse(&header(2), &map, 1) {
        Ok(Request::DmaMap { map, with_file: true }) => {
            assert_eq!((map.flags.get(), map.offset.get()), (3, 0x1000));
            assert_eq!((map.address.get(), map.size.get()), (0x1_0000_0000, 0x2000));
        }
        other => panic!("{other:?}"),
    }

    let mut info = [0; 32];
    info[..4].copy_from_slice(&64u32.to_le_bytes());
    info[8] = 7;
    let expected = Request::GetRegionInfo { index: 7, argsz: 64 };
    assert_eq!(Request::parse(&header(5), &info, 0), Ok(expected));
    let mut padded = info.to_vec();
    padded.resize(4064, 0);
    assert_eq!(Request::parse(&header(5), &padded, 0), Ok(expected), "SPDK pads it");

    let set = [20, 0, 0, 0, 0x24, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let expected = |data| SetIrqs { index: 2, start: 0, count: 1, action: IrqAction::Trigger, data };
    assert_eq!(
        Request::parse(&header(8), &set, 0),
        Ok(Request::SetIrqs(expected(IrqData::NoEventFds))),
        "QEMU's way to start MSI-X"
    );
    assert_eq!(Request::parse(&header(8), &set, 1), Ok(Request::SetIrqs(expected(IrqData::EventFds))));

    let write = [0x08, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 2, 3, 4];
    let expected = Request::RegionWrite { region: 0, offset: 0x1008, data: &[1, 2, 3, 4] };
    assert_eq!(Request::parse(&header(10), &write, 0), Ok(expected));

    let mut multi = vec![1, 0, 0, 0, 0, 0, 0, 0];
    multi.extend([0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 9, 8, 7, 6, 0, 0, 0, 0]);
    multi.resize(8 + 200 * 24, 0);
    match Request::parse(&header(15), &multi, 0) {
        Ok(Request::RegionWriteMulti([write])) => {
            assert_eq!((write.offset.get(), write.count.get()), (0x14, 4));
            assert_eq!(write.data[..4], [9, 8, 7, 6]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn replies_have_their_bytes() {
    assert_eq!(encoded(&Reply::Done), [0x34, 0x12, 5, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        encoded(&Reply::Error(Errno::INVAL)),
        [0x34, 0x12, 5, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]
    );
    let version = encoded(&Reply::Version { minor: 0, json: "{}" });
    assert_eq!(version[16..], [0, 0, 0, 0, b'{', b'}', 0]);
    assert_eq!(version[4], 23);
    let info = DeviceInfo { argsz: 16.into(), flags: 3.into(), num_regions: 9.into(), num_irqs: 5.into() };
    assert_eq!(encoded(&Reply::DeviceInfo(info))[16..], [16, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0]);
    let info = RegionInfo {
        argsz: 64.into(),
        flags: 15.into(),
        index: 0.into(),
        cap_offset: 32.into(),
        size: 0x4000.into(),
        offset: 0.into(),
    };
    let areas = [SparseArea { offset: 0x1000.into(), size: 0x1000.into() }];
    let region = encoded(&Reply::RegionInfo { info, areas: &areas });
    assert_eq!(region.len(), 80);
    assert_eq!(region[48..64], [1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(region[64..], [0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(&Reply::DmaUnmap(DmaUnmap::default())).len(), 40);
    assert_eq!(encoded(&Reply::IrqInfo(IrqInfo::default())).len(), 32);
    assert_eq!(encoded(&Reply::RegionIoFds { info: RegionIoFds::default(), entries: &[] }).len(), 32);
    assert_eq!(encoded(&Reply::RegionWriteMulti(3))[16..], [3, 0, 0, 0, 0, 0, 0, 0]);
    let access = RegionAccess { offset: 8.into(), region: 7.into(), count: 2.into() };
    let read = encoded(&Reply::RegionRead { access, data: &[5, 6] });
    assert_eq!(read[16..], [8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 5, 6]);
}

#[test]
fn an_error_never_has_errno_0() {
    for raw in [1, 22, 95] {
        let reply = header(5).error_reply(Errno::from_raw_os_error(raw));
        assert_eq!(reply.error.get(), raw as u32);
        assert_eq!(reply.result(), Err(Errno::from_raw_os_error(raw)));
    }
    let mut reply = header(5).error_reply(Errno::INVAL);
    reply.error = 0.into();
    assert_eq!(reply.result(), Err(Errno::IO), "a server that says 0 means an error all the same");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn any_bytes_parse_or_are_refused(
        command in 0u16..20,
        payload in prop::collection::vec(any::<u8>(), 0..200),
        fds in 0usize..20,
    ) {
        match Request::parse(&header(command), &payload, fds) {
            Ok(_) => {}
            Err(errno) => prop_assert!(errno.raw_os_error() > 0),
        }
    }

    #[test]
    fn nearly_right_requests_parse_or_are_refused(
        command in 1u16..16,
        words in prop::collection::vec(prop_oneof![
            Just(0u32), 1u32..40, Just(u32::MAX), Just(0x8000_0000), any::<u32>()
        ], 0..12),
        fds in 0usize..3,
    ) {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Err(errno) = Request::parse(&header(command), &payload, fds) {
            prop_assert!(errno.raw_os_error() > 0);
        }
    }
}
