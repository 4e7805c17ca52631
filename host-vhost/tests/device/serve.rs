//! `doorbell serve` as a process of its own: its errors, its end by signals, sockets that are handed over.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::{DoorbellMode, Nvme};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{IOVA, LONG, MEMORY_BYTES, READ, WRITE, await_that, driver, image, run, transfer, verify};

struct Served(Child);

impl Served {
    /// Starts `doorbell serve` and waits until it says that it serves.
    fn start(arguments: &[&str]) -> Self {
        let mut child = serve(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving"), "{line}");
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it doesn't end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.arg("serve").args(arguments);
    command
}

fn output(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + LONG;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{command:?} doesn't end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_mistake_is_one_line_and_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    image(&folder.path().join("empty"), 0);
    image(&folder.path().join("odd"), 1000);
    std::fs::write(at("text"), "no socket").unwrap();
    let _served = Served::start(&["--socket", &at("taken"), "--null", "1G"]);
    let (socket, taken) = (at("s"), at("taken"));
    for (arguments, text) in [
        (vec!["--socket", &socket, "--file", &at("missing")], "missing"),
        (vec!["--socket", &socket, "--file", &at("empty")], "empty"),
        (vec!["--socket", &socket, "--namespace", "ram=1G,block=520"], "block size"),
        (vec!["--socket", &socket, "--qcow2", &at("odd")], "odd"),
        (vec!["--socket", &socket], "no namespace"),
        (vec!["--socket", &taken, "--null", "1G"], "another process is listening"),
        (vec!["--socket", &at("text"), "--null", "1G"], "isn't a socket"),
        (vec!["--socket", &at("no/such/folder"), "--null", "1G"], "no/such/folder"),
        (vec!["--socket", &socket, "--null", "1G", "--pollers", "0"], "--pollers"),
        (vec!["--socket", &socket, "--null", "1G", "--cpu", "0,1"], "--cpu"),
        (vec!["--socket", &socket, "--null", "1G", "--cpu", "4000"], "--cpu"),
        (vec!["--socket", &socket, "--null", "1G", "--serial", "0123456789012345678901"], "serial"),
        (vec!["--fd", "77", "--null", "1G"], "--fd"),
        (vec!["--fd", "0", "--null", "1G"], "--fd"),
    ] {
        let output = output(serve(&arguments));
        let error = String::from_utf8_lossy(&output.stderr);
        // What clap refuses by itself has its own form and code.
        let by_clap = error.contains("For more information");
        assert_eq!(output.status.code(), Some(if by_clap { 2 } else { 1 }), "{arguments:?}: {error}");
        assert!(error.contains(text), "{arguments:?}: {error}");
        assert!(by_clap || error.lines().count() == 1, "{arguments:?}: {error}");
        assert!(!Path::new(&socket).exists(), "{arguments:?} left its socket");
    }
    // What was in the way is still there.
    assert_eq!(std::fs::read_to_string(at("text")).unwrap(), "no socket");
    assert!(driver(Path::new(&taken)).is_ready().unwrap());
}

/// Blocks of 4 KiB with a version in each word; returns the last acknowledged version of each.
fn write_until(nvme: &mut Nvme, acknowledged: &mut [u32], mut done: impl FnMut() -> bool) {
    let buffer = nvme.allocate(32 * 4096).unwrap();
    let memory = Arc::clone(nvme.memory());
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    // By command identifier: the block and the version.
    let mut writing = [(0, 0); 32];
    let mut idle: Vec<usize> = (0..32).rev().collect();
    let mut at = 0;
    while !done() {
        while let Some(slot) = idle.pop() {
            at = (at + 611) % acknowledged.len();
            if writing.iter().any(|(block, version)| *block == at && *version > acknowledged[at]) {
                idle.push(slot);
                break;
            }
            let version = acknowledged[at] + 1;
            let place = buffer + slot as u64 * 4096;
            let word = u64::from(version) << 32 | at as u64;
            memory.qwords(place, 512).iter().for_each(|qword| {
                qword.store(word, std::sync::atomic::Ordering::Relaxed);
            });
            // The queue gives its identifiers out last in, first out, as `idle` does.
            let command = transfer(WRITE, at as u64 * 8, IOVA + place, 4096);
            let cid = queue.submit(&command).unwrap();
            writing[usize::from(cid)] = (at, version);
            assert_eq!(usize::from(cid), slot);
        }
        queue.ring().unwrap();
        queue
            .poll(32, &mut |entry| {
                assert!(entry.status.is_success());
                let (block, version) = writing[usize::from(entry.cid)];
                acknowledged[block] = version;
                idle.push(usize::from(entry.cid));
            })
            .unwrap();
    }
    // Nothing was said of the rest; those blocks may hold either version.
    queue
        .poll(32, &mut |entry| {
            let (block, version) = writing[usize::from(entry.cid)];
            acknowledged[block] = version;
        })
        .unwrap();
}

/// Every acknowledged version is there, or in its place the one that was on its way.
fn check(nvme: &mut Nvme, acknowledged: &mut [u32]) {
    let buffer = nvme.allocate(4096).unwrap();
    let memory = Arc::clone(nvme.memory());
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    for (block, version) in acknowledged.iter_mut().enumerate() {
        let read = transfer(READ, block as u64 * 8, IOVA + buffer, 4096);
        assert!(run(nvme, &mut queue, &read).is_success());
        let words: Vec<u64> = memory
            .qwords(buffer, 512)
            .iter()
            .map(|qword| qword.load(std::sync::atomic::Ordering::Relaxed))
            .collect();
        for word in &words {
            let (found, holds) = ((word >> 32) as u32, *word as u32);
            let known = found == *version || found == *version + 1;
            assert!(known, "block {block}: version {found}, {version} acknowledged");
            assert!(found == 0 || holds == block as u32, "block {block} holds {holds}");
        }
        // One that was on its way may be there, or half of it: the next write overwrites it all.
        let found = words.iter().map(|word| (word >> 32) as u32).min().unwrap_or(0);
        *version = found;
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_sigkill_or_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    image(&folder.path().join("f"), 16 << 20);
    let socket = at("s");
    let mut acknowledged = vec![0; 4096];
    for round in 0..8 {
        let mut served = Served::start(&["--socket", &socket, "--file", &at("f"), "--pollers", "2"]);
        let mut nvme = driver(Path::new(&socket));
        check(&mut nvme, &mut acknowledged);
        let start = Instant::now();
        let after = Duration::from_millis(40 + 23 * round);
        let signal = if round % 3 == 2 { Signal::TERM } else { Signal::KILL };
        let mut signalled = false;
        write_until(&mut nvme, &mut acknowledged, || {
            if start.elapsed() > after && !signalled {
                served.signal(signal);
                signalled = true;
            }
            start.elapsed() > after + Duration::from_millis(20)
        });
        assert_eq!(served.wait(), (signal == Signal::TERM).then_some(0));
        assert_eq!(Path::new(&socket).exists(), signal == Signal::KILL);
    }
    assert!(acknowledged.iter().map(|version| u64::from(*version)).sum::<u64>() > 1000);
    // A process that is killed under its guest is an unsafe shutdown, and so is one that ends under it.
    let kept = std::fs::read_to_string(at("f.smart.json")).unwrap();
    assert!(kept.contains("\"unsafe_shutdowns\": 7") || kept.contains("\"unsafe_shutdowns\": 8"), "{kept}");
}

#[test]
fn sigterm_ends_a_server_without_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut served = Served::start(&["--socket", &socket.display().to_string(), "--ram", "16M"]);
    served.signal(Signal::TERM);
    assert_eq!(served.wait(), Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_connected_socket_is_served_until_its_client_goes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let fd = theirs.as_raw_fd().to_string();
    let mut served = Served::start(&["--fd", &fd, "--ram", "16M"]);
    drop(theirs);
    let memory = ClientMemory::new(IOVA, MEMORY_BYTES, false).unwrap();
    let mut nvme = Nvme::new(Client::new(ours).unwrap(), memory).unwrap();
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    verify(&mut nvme, &mut queue, buffer, &[3, 9999], 4096);
    drop((queue, nvme));
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn a_listening_socket_serves_one_client_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listening = UnixListener::bind(&path).unwrap();
    rustix::io::fcntl_setfd(listening.as_fd(), FdFlags::empty()).unwrap();
    let fd = listening.as_raw_fd().to_string();
    let mut served = Served::start(&["--fd", &fd, "--ram", "16M"]);
    drop(listening);
    for at in 0..3 {
        let mut nvme = driver(&path);
        let buffer = nvme.allocate(4096).unwrap();
        let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
        verify(&mut nvme, &mut queue, buffer, &[at], 4096);
    }
    served.signal(Signal::TERM);
    assert_eq!(served.wait(), Some(0));
    await_that("its path is somebody else's", || path.exists());
}
