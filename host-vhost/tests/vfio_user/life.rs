//! Field case 36: clients come and go, and nothing stays behind.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::interrupt::new_eventfd;
use doorbell_vhost::vfio_user::connection::Lost;

use crate::dummy::serve;
use crate::raw::{access, dma, dwords, message, send};

/// The messages of a session, with file descriptors.
fn conversation(stream: &UnixStream, guest: &ClientMemory, stop_after_bytes: usize) -> usize {
    let eventfd = new_eventfd().unwrap();
    let messages = [
        (message(1, 1, b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":8}}\0"), None),
        (message(2, 2, &dma(32, 3, &[0, 0, guest.size()])), Some(guest.as_fd())),
        (message(3, 4, &dwords(&[16, 0, 0, 0])), None),
        (message(4, 5, &dwords(&[64, 0, 0, 0, 0, 0, 0, 0])), None),
        (message(5, 8, &dwords(&[20, 0x24, 2, 0, 1])), Some(eventfd.as_fd())),
        (message(6, 9, &access(0, 7, 4096, &[])), None),
        (message(7, 10, &access(0, 0, 4, &[1, 2, 3, 4])), None),
        (message(8, 3, &dma(24, 0, &[0, guest.size()])), Some(guest.as_fd())),
        (message(9, 13, &[]), None),
    ];
    let mut left = stop_after_bytes;
    for (bytes, fd) in &messages {
        let count = bytes.len().min(left);
        if count == 0 {
            break;
        }
        send(stream, &bytes[..count], fd.as_slice());
        left -= count;
    }
    messages.iter().map(|(bytes, _)| bytes.len()).sum()
}

fn counts() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), threads, shared)
}

#[test]
fn a_client_lost_at_any_byte_leaves_nothing_behind() {
    if let Some(passed) = crate::child::in_child("life::a_client_lost_at_any_byte_leaves_nothing_behind") {
        assert!(passed);
        return;
    }
    let guest = ClientMemory::new(0, 0x20_0000, false).unwrap();
    let one_life = |stop: usize| {
        let (stream, server) = serve(true);
        let total = conversation(&stream, &guest, stop);
        drop(stream);
        let ended = server.join().unwrap();
        assert!(matches!(ended.lost, Lost::Closed), "{:?}", ended.lost);
        assert!(ended.released);
        total
    };
    let total = one_life(usize::MAX);
    let before = counts();
    let mut lives = 0;
    for stop in 0..=total {
        one_life(stop);
        lives += 1;
    }
    assert!(lives > 300, "{lives}");
    assert_eq!(counts(), before, "descriptors, threads, mappings");
}

#[test]
fn a_client_that_does_not_read_is_given_up_and_one_that_reads_late_is_not() {
    let (mut stream, server) = serve(true);
    crate::raw::negotiate(&mut stream);
    stream.set_nonblocking(true).unwrap();
    let read = message(6, 9, &access(0, 0, 0x4000, &[]));
    let mut asked = 0;
    // The server stops taking requests when its replies aren't taken, so the socket fills up.
    while rustix::net::send(&stream, &read, rustix::net::SendFlags::DONTWAIT) == Ok(read.len()) {
        asked += 1;
        if asked % 64 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(asked < 1_000_000);
    }
    stream.set_nonblocking(false).unwrap();
    for _ in 0..asked {
        assert_eq!(crate::raw::receive(&mut stream).payload.len(), 16 + 0x4000);
    }
    drop(stream);
    server.join().unwrap();
}
