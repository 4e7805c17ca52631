//! The control socket of a disk: counters, and a size that changes under a frontend, which is told.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use doorbell_vhost::ctl::client::ask;
use doorbell_vhost::ctl::protocol::{Answer, Command, DiskStatistics};

use super::frontend::{Frontend, PROTOCOL, Served, code, pattern};

const IN: u32 = 0;
const OUT: u32 = 1;
const GET_ID: u32 = 8;

fn stat(socket: &Path) -> DiskStatistics {
    match ask(socket, Command::Stat) {
        Ok(Answer::Disk(statistics)) => *statistics,
        other => panic!("{other:?}"),
    }
}

fn resize(socket: &Path, nsid: u32, size_bytes: u64) -> Result<Answer, String> {
    ask(socket, Command::NamespaceResize { nsid, size_bytes }).map_err(|error| error.to_string())
}

/// A frontend whose queue runs, with a channel for the backend's messages, which this returns.
fn with_channel(socket: &Path) -> (Frontend, UnixStream) {
    let mut frontend = Frontend::connect(socket);
    frontend.negotiate(0);
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    frontend.command(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    frontend.add_ring(64);
    (frontend, ours)
}

fn sectors(frontend: &mut Frontend) -> u64 {
    u64::from_le_bytes(frontend.config(0, 60)[..8].try_into().unwrap())
}

/// CONFIG_CHANGE_MSG of version 1, without a wish for a reply, without a payload.
const CONFIG_CHANGE: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

fn message(channel: &mut UnixStream) -> [u8; 12] {
    let mut message = [0; 12];
    channel.read_exact(&mut message).unwrap();
    message
}

fn is_silent(channel: &mut UnixStream) -> bool {
    channel.set_nonblocking(true).unwrap();
    let silent = matches!(channel.read(&mut [0; 1]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    channel.set_nonblocking(false).unwrap();
    silent
}

#[test]
fn every_request_is_counted_and_counters_outlive_the_frontend() {
    let served = Served::new("ram=1M", 2, 2);
    let before = stat(&served.socket);
    assert_eq!((before.connected, before.connections, before.queues.len()), (false, 0, 0));
    assert_eq!(
        (before.disk.kind.as_str(), before.disk.size_bytes, before.disk.block_bytes),
        ("ram", 1 << 20, 512)
    );
    let mut frontend = served.frontend();
    for round in 0..100 {
        assert_eq!(frontend.write_blocks(8 * (round % 4), &pattern(1, 4096)), (0, 1));
        frontend.read_blocks(8 * (round % 4), 512);
    }
    assert_eq!(frontend.request(OUT, 1 << 40, 512).0, 1, "far behind the end");
    assert_eq!(frontend.request(IN, 1 << 40, 512).0, 1);
    assert_eq!(frontend.request(GET_ID, 0, 20).0, 0);
    let statistics = stat(&served.socket);
    assert!(statistics.connected && statistics.connections == 1);
    let [queue] = &statistics.queues[..] else { panic!("{statistics:?}") };
    assert_eq!((queue.queue, queue.poller, queue.running), (0, 0, true));
    assert_eq!((queue.requests, queue.errors), (203, 2));
    assert_eq!((queue.bytes_read, queue.bytes_written), (51_200, 409_600));
    assert_eq!(queue.kicks, 203, "one for each request of this driver");
    // The driver asks for all, and hears of those that end together at once.
    assert!((1..=203).contains(&queue.notifications), "{queue:?}");
    let sampled = queue.latency_ns_log2.iter().sum::<u64>();
    assert!((3..=203).contains(&sampled), "{queue:?}");
    assert!(queue.latency_p50_ns <= queue.latency_p99_ns && queue.latency_p50_ns > Some(0));
    assert_eq!(statistics.pollers.len(), 2);
    assert!(statistics.pollers[1].sleeps > 0);
    drop(frontend);
    let mut frontend = served.frontend();
    frontend.read_blocks(0, 512);
    let statistics = stat(&served.socket);
    assert_eq!(statistics.connections, 2);
    assert_eq!((statistics.queues[0].requests, statistics.queues[0].bytes_read), (204, 51_712));
}

#[test]
fn a_disk_grows_under_its_frontend_which_is_told() {
    let served = Served::new("ram=1M", 1, 1);
    let (mut frontend, mut channel) = with_channel(&served.socket);
    assert_eq!(sectors(&mut frontend), 2048);
    frontend.start(0, 0);
    assert_eq!(frontend.write_blocks(2048, &pattern(1, 512)).0, 1, "behind the end");
    assert!(is_silent(&mut channel));
    assert_eq!(resize(&served.socket, 1, 2 << 20), Ok(Answer::Namespace { nsid: 1 }));
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    assert_eq!(sectors(&mut frontend), 4096);
    assert_eq!(frontend.write_blocks(4095, &pattern(1, 512)), (0, 1));
    assert_eq!(frontend.read_blocks(4095, 512), pattern(1, 512));
    assert_eq!(frontend.write_blocks(4096, &pattern(1, 512)).0, 1, "behind the new end");
    assert_eq!(stat(&served.socket).disk.size_bytes, 2 << 20);
    // The same again is nothing new.
    assert_eq!(resize(&served.socket, 1, 2 << 20), Ok(Answer::Namespace { nsid: 1 }));
    assert!(is_silent(&mut channel));
}

#[test]
fn a_file_grows_too() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let served = Served::new(&format!("file={}", image.display()), 1, 1);
    let (mut frontend, mut channel) = with_channel(&served.socket);
    assert_eq!(sectors(&mut frontend), 2048);
    frontend.start(0, 0);
    resize(&served.socket, 1, 3 << 20).unwrap();
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    assert_eq!(frontend.write_blocks(6143, &pattern(1, 512)), (0, 1));
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 3 << 20);
}

#[test]
fn a_resize_before_the_device_runs_is_told_again_when_it_does() {
    let served = Served::new("ram=1M", 1, 1);
    let (mut frontend, mut channel) = with_channel(&served.socket);
    assert_eq!(sectors(&mut frontend), 2048);
    resize(&served.socket, 1, 2 << 20).unwrap();
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    // QEMU ignores that one, since its guest has not started the device.
    frontend.start(0, 0);
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    assert_eq!(sectors(&mut frontend), 4096);
    frontend.stop(0);
    frontend.start(0, 0);
    assert!(is_silent(&mut channel));
}

#[test]
fn what_a_disk_cannot_do_is_told() {
    let served = Served::new("ram=1M,block=4096", 1, 1);
    for (command, told) in [
        (Command::NamespaceResize { nsid: 1, size_bytes: 512 << 10 }, "can't shrink while it is served"),
        (
            Command::NamespaceResize { nsid: 1, size_bytes: (1 << 20) + 512 },
            "no whole number of blocks of 4096",
        ),
        (Command::NamespaceResize { nsid: 1, size_bytes: 0 }, "no whole number of blocks"),
        (Command::NamespaceResize { nsid: 2, size_bytes: 2 << 20 }, "there is no namespace 2"),
        (Command::NamespaceAdd { spec: "ram=1M".into() }, "one namespace for good"),
        (Command::NamespaceRemove { nsid: 1 }, "one namespace for good"),
    ] {
        let said = ask(&served.socket, command).unwrap_err().to_string();
        assert!(said.contains(told), "{said}");
    }
    assert_eq!(stat(&served.socket).disk.size_bytes, 1 << 20);
}

#[test]
fn a_frontend_that_does_not_listen_holds_nobody_up() {
    let served = Served::new("ram=1M", 1, 1);
    let (mut frontend, mut channel) = with_channel(&served.socket);
    assert_eq!(sectors(&mut frontend), 2048);
    frontend.start(0, 0);
    // It never reads its channel, whose buffer fills up.
    for step in 1..=2000 {
        resize(&served.socket, 1, (1 << 20) + 512 * step).unwrap();
    }
    assert_eq!(frontend.request(GET_ID, 0, 20).0, 0);
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    // And one that has none reads the new size by itself.
    drop(frontend);
    let mut frontend = served.frontend();
    assert_eq!(sectors(&mut frontend), 2048 + 2000);
    resize(&served.socket, 1, 4 << 20).unwrap();
    assert_eq!(sectors(&mut frontend), 8192);
}

#[test]
fn only_a_socket_is_a_channel_and_only_for_those_who_asked() {
    let served = Served::new("ram=1M", 1, 1);
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(0);
    let file = frontend.memory.file.try_clone().unwrap();
    assert!(!frontend.try_command(code::SET_BACKEND_REQ_FD, &[], &[file.as_fd()]));
    assert!(frontend.is_closed());
    let mut frontend = Frontend::connect(&served.socket);
    let (_ours, theirs) = UnixStream::pair().unwrap();
    frontend.send(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    assert!(frontend.is_closed(), "without the protocol feature");
    // QEMU hands it over before it takes the virtio features.
    let mut frontend = Frontend::connect(&served.socket);
    frontend.ask_u64(code::GET_FEATURES);
    frontend.ask_u64(code::GET_PROTOCOL_FEATURES);
    frontend.send(code::SET_PROTOCOL_FEATURES, &PROTOCOL.to_le_bytes(), &[]);
    frontend.command(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    drop(frontend);
    let mut frontend = served.frontend();
    assert_eq!(frontend.request(GET_ID, 0, 20).0, 0);
}
