//! States of version 1 that load for ever.
//!
//! Never change the bytes: they are what an engine of that version has written. A new version adds a file.

use doorbell_core::controller::{Controller, ControllerConfig};
use doorbell_core::group::{Completed, GroupConfig};
use doorbell_core::message::{CommandError, GroupEvent, GroupMessage, GroupReply};
use doorbell_core::namespace::Namespace;
use doorbell_core::pci::{ConfigSpace, PciConfig};
use doorbell_core::spec::status::Status;
use doorbell_core::state::{HEADER_BYTES, Header, MAGIC, VERSION};
use doorbell_core::tag::Tag;
use zerocopy::FromBytes;

use crate::life::{Group, Life, Start};

/// The bytes of a file of hexadecimal digits and blanks.
fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

const GROUP: &str = include_str!("group_v1.hex");
const CONTROLLER: &str = include_str!("controller_v1.hex");
const CONFIG_SPACE: &str = include_str!("config_space_v1.hex");

#[test]
fn a_header_of_version_1_is_these_bytes() {
    let state = bytes(GROUP);
    assert_eq!((MAGIC, VERSION, HEADER_BYTES), (*b"DBst", 1, 24));
    assert_eq!(state[..8], [b'D', b'B', b's', b't', 1, 0, 2, 0]);
    assert_eq!(state[8..12], (state.len() as u32).to_le_bytes());
    let (header, _) = Header::ref_from_prefix(&state).expect("a header");
    assert_eq!(header.tables.map(|entries| entries.get()), [3, 6, 2, 0], "queues, commands, namespaces");
    for (state, kind) in [(bytes(CONTROLLER), 1), (bytes(CONFIG_SPACE), 3)] {
        assert_eq!(state[..8], [b'D', b'B', b's', b't', 1, 0, kind, 0]);
    }
}

#[test]
fn a_group_of_version_1_goes_on() {
    let state = bytes(GROUP);
    let mut life = Life::new(Start { sizes: [8, 8], posted: false });
    let group = &mut life.pair.group;
    let has = |nsid: u32, namespace: &Namespace| namespace.size_blocks == 8 && (1..=2).contains(&nsid);
    group.load(&state, has).expect("a state of version 1");
    assert_eq!(group.in_flight(), 5);
    let statistics: Vec<_> =
        group.queue_statistics().map(|queue| (queue.sqid, queue.cqid, queue.commands)).collect();
    assert_eq!(statistics, [(1, 1, 1), (2, 1, 0), (3, 2, 1)]);
    assert_eq!(group.statistics().bytes_read, 512);
    // An Abort waits for the command in slot 2, which the host hasn't been told of.
    let tag = Tag { slot: 2, generation: 1 };
    assert_eq!(group.poll_cancel(), Some(tag));
    let completed = group.complete(&life.pair.memory, tag, Status::ABORT_REQUESTED);
    assert_eq!(completed, Completed::Posted);
    assert_eq!(group.poll_message(), Some(GroupMessage::Reply(GroupReply::Abort { aborted: true })));
    let error = CommandError { sqid: 3, cid: 2, status: Status::WRITE_FAULT, lba: 0, nsid: 0 };
    assert_eq!(group.poll_message(), Some(GroupMessage::Event(GroupEvent::CommandError(error))));
    let invalid = GroupEvent::InvalidDoorbell { qid: 2, completion: true, value: 1000 };
    assert_eq!(group.poll_message(), Some(GroupMessage::Event(invalid)));
    // Both completion queues owe an interrupt since nanosecond 7, which is held back for 100 microseconds.
    assert_eq!(group.interrupt_deadline_ns(), Some(100_007));
    assert_eq!(group.poll_interrupt(100_006), None);
    assert_eq!([group.poll_interrupt(100_007), group.poll_interrupt(100_007)], [Some(2), Some(1)]);
}

#[test]
fn a_controller_of_version_1_goes_on() {
    let state = bytes(CONTROLLER);
    let mut controller =
        Controller::<2, 64, 16, 64>::new(ControllerConfig { groups: 2, ..ControllerConfig::DEFAULT });
    controller
        .load(&state, |nsid, namespace| [1, 3].contains(&nsid) && namespace.size_blocks == 1_000)
        .expect("good");
    assert!(controller.is_ready());
    assert_eq!(controller.doorbell_buffer().map(|buffer| buffer.shadow), Some(0x30_0000));
    assert_eq!(controller.poll_interrupt(), Some(0));
    assert_eq!(controller.smart_counters().error_log_entries, 1);
    assert_eq!(controller.config().serial, doorbell_core::controller::Ascii::lossy("DOORBELL0"));
    let mut registers = [0; 0x38];
    controller.read_register(0, &mut registers);
    assert_eq!(registers[0x14..0x18], 0x0046_0001_u32.to_le_bytes(), "CC");
    assert_eq!(registers[0x1c..0x20], 1_u32.to_le_bytes(), "CSTS");
}

#[test]
fn a_configuration_space_of_version_1_goes_on() {
    let mut space = ConfigSpace::new(PciConfig::DEFAULT);
    space.load(&bytes(CONFIG_SPACE)).expect("a state of version 1");
    assert!(space.bus_master() && space.msix_enabled() && !space.is_d3hot());
    assert_eq!(space.bar0(), Some(0x12_fe00_0000));
    assert_eq!(space.config().revision_id, 7);
}

/// Prints what this engine would write: `cargo test -p doorbell-core --test state print -- --ignored --nocapture`.
#[test]
#[ignore = "makes a file for a new version"]
fn print_a_group() {
    print(&crate::hostile::busy());
    assert_eq!(Group::new(GroupConfig::DEFAULT).in_flight(), 0);
}

/// Likewise.
#[test]
#[ignore = "makes a file for a new version"]
fn print_a_configuration_space() {
    let mut space = ConfigSpace::new(PciConfig { revision_id: 7, ..PciConfig::DEFAULT });
    let _ = space.write(0x10, &0x12_fe00_0000_u64.to_le_bytes());
    let _ = space.write(4, &0x0406_u16.to_le_bytes());
    let _ = space.write(0x52, &0x8000_u16.to_le_bytes());
    let mut state = [0; ConfigSpace::STATE_BYTES];
    let len = space.save(&mut state).expect("enough room");
    print(&state[..len]);
}

fn print(state: &[u8]) {
    for line in state.chunks(32) {
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{}", digits.join(" "));
    }
}
