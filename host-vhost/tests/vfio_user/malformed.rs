//! Field case 37: every malformed message is answered with an errno, and the stream stays in step.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use crate::dummy::serve;
use crate::raw::{access, ask, dma, dwords, message, negotiate, receive, send, with_header};

/// A message, what is wrong with it, the errno.
type Case = (&'static str, Vec<u8>, u32);

const EINVAL: u32 = 22;
const EEXIST: u32 = 17;
const ENOENT: u32 = 2;
const EMSGSIZE: u32 = 90;
const EOPNOTSUPP: u32 = 95;

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = vec![
        ("size 0", with_header(9, 4, 0, 0, &[]), EINVAL),
        ("size below the header", with_header(9, 4, 15, 0, &[]), EINVAL),
        ("no payload where one is due", message(9, 4, &[]), EINVAL),
        ("payload cut short", message(9, 4, &dwords(&[16, 0, 0])), EINVAL),
        ("payload of one byte", message(9, 9, &[0]), EINVAL),
        ("unknown command 0", message(9, 0, &[]), EOPNOTSUPP),
        ("unknown command 14", message(9, 14, &[0; 32]), EOPNOTSUPP),
        ("unknown command 16", message(9, 16, &dwords(&[8, 1])), EOPNOTSUPP),
        ("unknown command FFFFh", message(9, 0xffff, &[7; 100]), EOPNOTSUPP),
        ("too large to be kept", message(9, 10, &vec![0; 200 * 1024]), EMSGSIZE),
        ("a reply to nothing", with_header(9, 4, 32, 1, &[0; 16]), EINVAL),
        ("an error reply to nothing", with_header(9, 5, 16, 0x21, &[]), EINVAL),
        ("a message of type 7", with_header(9, 4, 32, 7, &dwords(&[16, 0, 0, 0])), EINVAL),
        ("a second VERSION", message(9, 1, &[0, 0, 0, 0]), EINVAL),
        ("device info, argsz too small", message(9, 4, &dwords(&[15, 0, 0, 0])), EINVAL),
        ("region info, argsz too small", message(9, 5, &dwords(&[31, 0, 0, 0, 0, 0, 0, 0])), EINVAL),
        ("region info, argsz 0", message(9, 5, &[0; 32]), EINVAL),
        ("region info, no such region", message(9, 5, &dwords(&[32, 0, 9, 0, 0, 0, 0, 0])), EINVAL),
        ("io fds, argsz too small", message(9, 6, &dwords(&[8, 0, 0, 0])), EINVAL),
        ("io fds, flags", message(9, 6, &dwords(&[16, 1, 0, 0])), EINVAL),
        ("io fds, no such region", message(9, 6, &dwords(&[16, 0, 77, 0])), EINVAL),
        ("irq info, no such type", message(9, 7, &dwords(&[16, 0, 5, 0])), EINVAL),
        ("irq info, argsz too small", message(9, 7, &dwords(&[4, 0, 0, 0])), EINVAL),
        ("region read, too much", message(9, 9, &access(0, 0, 0x20_0000, &[])), EINVAL),
        ("region read, count 4 GiB", message(9, 9, &access(0, 0, u32::MAX, &[])), EINVAL),
        ("region read, data after it", message(9, 9, &access(0, 0, 4, &[1, 2, 3, 4])), EINVAL),
        ("region read, no such region", message(9, 9, &access(0, 9, 4, &[])), EINVAL),
        ("region write, count above the data", message(9, 10, &access(0, 0, 8, &[0; 4])), EINVAL),
        ("region write, count below the data", message(9, 10, &access(0, 0, 2, &[0; 4])), EINVAL),
        ("region write, no such region", message(9, 10, &access(0, 400, 4, &[0; 4])), EINVAL),
        ("DMA read is not ours to answer", message(9, 11, &dma(0, 0, &[4])), EOPNOTSUPP),
        ("DMA write is not ours to answer", message(9, 12, &access(0, 0, 0, &[])), EOPNOTSUPP),
        ("reset with a payload", message(9, 13, &[0; 4]), EINVAL),
        ("write multi without a count", message(9, 15, &[0; 4]), EINVAL),
        ("write multi, count beyond the message", message(9, 15, &[2, 0, 0, 0, 0, 0, 0, 0]), EINVAL),
        ("write multi, count 2^64-1", message(9, 15, &[0xff; 32]), EINVAL),
    ];
    let mut nine = vec![1, 0, 0, 0, 0, 0, 0, 0];
    nine.extend(access(0, 0, 9, &[0; 8]));
    cases.push(("write multi, 9 bytes in one write", message(9, 15, &nine), EINVAL));
    let map = |argsz, flags, qwords: [u64; 3]| message(9, 2, &dma(argsz, flags, &qwords));
    cases.extend([
        ("map, argsz too small", map(31, 3, [0, 0x10_0000, 0x1000]), EINVAL),
        ("map, unknown flags", map(32, 0x103, [0, 0x10_0000, 0x1000]), EINVAL),
        ("map, size 0", map(32, 3, [0, 0x10_0000, 0]), EINVAL),
        ("map, wraps", map(32, 3, [0, u64::MAX - 0xfff, 0x2000]), EINVAL),
        ("map, to be mapped but no file", map(32, 7, [0, 0x10_0000, 0x1000]), EINVAL),
        ("map, overlaps", map(32, 3, [0, 0x1000, 0x1000]), EEXIST),
        ("map, overlaps at its end", map(32, 3, [0, 0, 0x1001]), EEXIST),
        ("map, longer than it is", message(9, 2, &dma(32, 3, &[0, 0x10_0000, 0x1000, 0])), EINVAL),
    ]);
    let unmap = |argsz, flags, qwords: [u64; 2]| message(9, 3, &dma(argsz, flags, &qwords));
    cases.extend([
        ("unmap, argsz too small", unmap(23, 0, [0x1000, 0x2000]), EINVAL),
        ("unmap, size 0", unmap(24, 0, [0x1000, 0]), EINVAL),
        ("unmap, nothing there", unmap(24, 0, [0x40_0000, 0x1000]), ENOENT),
        ("unmap, half of a region", unmap(24, 0, [0x1000, 0x1000]), ENOENT),
        ("unmap, wraps", unmap(24, 0, [u64::MAX, u64::MAX]), ENOENT),
        ("unmap all with an address", unmap(24, 2, [0x1000, 0]), EINVAL),
        ("unmap, unknown flags", unmap(24, 8, [0x1000, 0x2000]), EINVAL),
        ("unmap with dirty pages", unmap(24, 1, [0x1000, 0x2000]), EOPNOTSUPP),
    ]);
    let set =
        |argsz, flags, index, start, count| message(9, 8, &dwords(&[argsz, flags, index, start, count]));
    cases.extend([
        ("set irqs, argsz too small", set(19, 0x24, 2, 0, 1), EINVAL),
        ("set irqs, no data flag", set(20, 0x20, 2, 0, 1), EINVAL),
        ("set irqs, two data flags", set(20, 0x25, 2, 0, 1), EINVAL),
        ("set irqs, no action", set(20, 0x1, 2, 0, 1), EINVAL),
        ("set irqs, two actions", set(20, 0x31, 2, 0, 1), EINVAL),
        ("set irqs, unknown flag", set(20, 0x64, 2, 0, 1), EINVAL),
        ("set irqs, no such type", set(20, 0x24, 5, 0, 1), EINVAL),
        ("set irqs, beyond the last", set(20, 0x24, 2, 64, 1), EINVAL),
        ("set irqs, start wraps", set(20, 0x24, 2, u32::MAX, 2), EINVAL),
        ("set irqs, count 0 with eventfds", set(20, 0x24, 2, 0, 0), EINVAL),
        ("set irqs, MSI which isn't there", set(20, 0x24, 1, 0, 1), EINVAL),
        ("set irqs, bool without data", set(20, 0x22, 2, 0, 3), EINVAL),
        ("set irqs, mask an error interrupt", set(20, 0x9, 3, 0, 1), EINVAL),
    ]);
    cases
}

/// The stream is in step if a question gets its answer.
fn in_step(stream: &mut UnixStream, what: &str) {
    let answer = ask(stream, 0x77, 4, &dwords(&[16, 0, 0, 0]));
    assert_eq!((answer.id, answer.command, answer.flags), (0x77, 4, 1), "after {what}");
    assert_eq!(answer.payload, dwords(&[16, 3, 9, 5]), "after {what}");
}

#[test]
fn every_malformed_message_is_refused_in_step() {
    let (mut stream, server) = serve(true);
    negotiate(&mut stream);
    let map = message(2, 2, &dma(32, 3, &[0, 0x1000, 0x2000]));
    send(&stream, &map, &[]);
    assert_eq!(receive(&mut stream).flags, 1);
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    for (what, bytes, errno) in &cases {
        send(&stream, bytes, &[]);
        let answer = receive(&mut stream);
        assert_eq!((answer.id, answer.flags, answer.error), (9, 0x21, *errno), "{what}");
        assert!(answer.payload.is_empty(), "{what}");
        in_step(&mut stream, what);
    }
    // One byte at a time, and all at once, they are the same messages.
    for (what, bytes, errno) in cases.iter().filter(|(_, bytes, _)| bytes.len() < 100) {
        for byte in bytes {
            send(&stream, &[*byte], &[]);
        }
        assert_eq!(receive(&mut stream).error, *errno, "{what}");
    }
    let pipelined: Vec<_> = cases.iter().filter(|(_, bytes, _)| bytes.len() < 100).collect();
    send(&stream, &pipelined.iter().flat_map(|(_, bytes, _)| bytes.clone()).collect::<Vec<_>>(), &[]);
    for (what, _, errno) in pipelined {
        assert_eq!(receive(&mut stream).error, *errno, "{what}");
    }
    in_step(&mut stream, "all");
    drop(stream);
    let ended = server.join().unwrap();
    assert!(ended.released && ended.device.resets == 0);
}

#[test]
fn wrong_file_descriptors_are_refused_and_closed() {
    if let Some(passed) = crate::child::in_child("malformed::wrong_file_descriptors_are_refused_and_closed") {
        assert!(passed);
        return;
    }
    let (mut stream, server) = serve(true);
    negotiate(&mut stream);
    let before = descriptors();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let fd = file.as_fd();
    let memory = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 0x1000).unwrap();
    let memfd = memory.as_fd();
    let map = |offset: u64, size: u64| message(9, 2, &dma(32, 3, &[offset, 0x10_0000, size]));
    let set = |count| message(9, 8, &dwords(&[20, 0x24, 2, 0, count]));
    let many = [fd; 17];
    let most = [fd; 200];
    let cases: Vec<(&str, Vec<u8>, Vec<_>)> = vec![
        ("map with two files", map(0, 0x1000), vec![memfd, memfd]),
        ("map of more than the file has", map(0, 0x2000), vec![memfd]),
        ("map at an odd offset", map(0x800, 0x800), vec![memfd]),
        ("map with 17 files", map(0, 0x1000), many.to_vec()),
        ("map with 200 files", map(0, 0x1000), most.to_vec()),
        ("eventfds: one too few", set(3), vec![fd, fd]),
        ("eventfds: one too many", set(1), vec![fd, fd]),
        ("eventfds that are files", set(1), vec![memfd]),
        ("a region read with 17 files", message(9, 9, &access(0, 0, 4, &[])), many.to_vec()),
    ];
    for (what, bytes, fds) in &cases {
        send(&stream, bytes, fds);
        let answer = receive(&mut stream);
        assert_eq!((answer.flags, answer.error), (0x21, EINVAL), "{what}");
        in_step(&mut stream, what);
    }
    // The two files of this test, and nothing that was sent.
    assert_eq!(descriptors(), before + 2);
    drop(stream);
    server.join().unwrap();
}

#[test]
fn nothing_but_version_comes_first() {
    let (mut stream, server) = serve(true);
    let answer = ask(&mut stream, 3, 4, &dwords(&[16, 0, 0, 0]));
    assert_eq!((answer.flags, answer.error), (0x21, EINVAL));
    for (payload, errno) in [
        (&b"\0\0\0"[..], EINVAL),
        (b"\x01\0\0\0", EOPNOTSUPP),
        (b"\0\0\0\0{", EINVAL),
        (b"\0\0\0\0[1,2]\0", EINVAL),
        (b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":\"x\"}}\0", EINVAL),
    ] {
        let answer = ask(&mut stream, 3, 1, payload);
        assert_eq!((answer.flags, answer.error), (0x21, errno), "{payload:?}");
    }
    let answer = ask(&mut stream, 3, 1, b"\0\0\x05\0{\"capabilities\":{}}");
    assert_eq!(answer.flags, 1);
    assert_eq!(answer.payload[..4], [0; 4]);
    assert_eq!(answer.payload.last(), Some(&0));
    in_step(&mut stream, "VERSION");
    drop(stream);
    server.join().unwrap();
}

#[test]
fn posted_messages_are_never_answered() {
    let (mut stream, server) = serve(true);
    negotiate(&mut stream);
    for (command, payload) in [
        (10, access(0x14, 0, 4, &[1, 2, 3, 4])),
        (10, access(0x14, 99, 4, &[1, 2, 3, 4])),
        (10, access(0x14, 0, 5, &[1, 2, 3, 4])),
        (9, access(0x14, 0, 4, &[])),
        (13, vec![]),
        (77, vec![1, 2, 3]),
    ] {
        send(&stream, &with_header(5, command, 16 + payload.len() as u32, 0x10, &payload), &[]);
    }
    in_step(&mut stream, "posted messages");
    assert_eq!(ask(&mut stream, 6, 9, &access(0x14, 0, 4, &[])).payload[16..], [1, 2, 3, 4]);
    drop(stream);
    assert_eq!(server.join().unwrap().device.resets, 1);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
