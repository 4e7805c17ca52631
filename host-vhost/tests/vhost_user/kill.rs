//! SIGKILL of the server under verified writes, restart, resume: nothing lost, nothing doubled.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::frontend::{F_EVENT_IDX, Frontend, code, data_place};
use super::process::Process;

const PLACES: u16 = 20;
const BLOCKS: u64 = 256;
const LEN: u32 = 4096;
const KILLS: u32 = 20;

fn block(number: u64, version: u64) -> Vec<u8> {
    [number, version].iter().flat_map(|word| word.to_le_bytes()).cycle().take(LEN as usize).collect()
}

/// A write under way: which block, which version.
type Writing = Option<(u64, u64)>;

/// Takes what is used: each entry has to be of a request that is under way, so none can come twice.
fn collect(frontend: &mut Frontend, writing: &mut [Writing], done: &mut [u64]) -> usize {
    let mut taken = 0;
    while let Some((id, len)) = frontend.queues[0].ring.try_used(&frontend.memory) {
        assert_eq!((id % 3, len), (0, 1));
        let place = (id / 3) as u16;
        let (number, version) = writing[usize::from(place)].take().expect("a request completed twice");
        assert_eq!(frontend.status(0, place), 0);
        done[number as usize] = version;
        taken += 1;
    }
    taken
}

fn survives(options: &[&str], features: u64) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = directory.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(BLOCKS * u64::from(LEN)).unwrap();
    let socket = tempfile::tempdir().unwrap();
    let socket = socket.path().join("blk");
    let arguments: Vec<&str> =
        ["--file", image.to_str().unwrap(), "--queues", "1"].iter().chain(options).copied().collect();
    let mut process = Process::start(&socket, &arguments);
    let mut frontend = Frontend::connect(&socket);
    frontend.negotiate(features);
    frontend.add_ring(64);
    let mut ask = vec![0; 16];
    ask.extend([1, 0, 64, 0, 0, 0, 0, 0]);
    frontend.send(code::GET_INFLIGHT_FD, &ask, &[]);
    let (told, inflight) = frontend.receive(code::GET_INFLIGHT_FD);
    let inflight = inflight.unwrap();
    frontend.command(code::SET_INFLIGHT_FD, &told, &[inflight.as_fd()]);
    frontend.start(0, 0);
    let mut writing: Vec<Writing> = vec![None; PLACES.into()];
    let mut done = vec![0; BLOCKS as usize];
    let (mut offered, mut completed, mut left_over, mut version) = (0_u64, 0_u64, 0, 0);
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for life in 0..=KILLS {
        let until = Instant::now() + Duration::from_micros(20_000 + next() % 60_000);
        while Instant::now() < until {
            for place in 0..PLACES {
                let number = next() % BLOCKS;
                let taken = writing.iter().flatten().any(|(other, _)| *other == number);
                if writing[usize::from(place)].is_some() || taken {
                    continue;
                }
                version += 1;
                let head = frontend.prepare(0, place, 1, number * 8, LEN);
                frontend.memory.write(data_place(0, place), &block(number, version));
                writing[usize::from(place)] = Some((number, version));
                frontend.queues[0].ring.offer(&frontend.memory, head);
                offered += 1;
            }
            frontend.kick(0);
            completed += collect(&mut frontend, &mut writing, &mut done) as u64;
        }
        if life == KILLS {
            break;
        }
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        left_over += offered - completed;
        process = Process::start(&socket, &arguments);
        frontend.reconnect(&socket);
        frontend.negotiate(features);
        frontend.command(code::SET_INFLIGHT_FD, &told, &[inflight.as_fd()]);
        // QEMU knows no better than the used index either.
        let base = frontend.queues[0].ring.used_index(&frontend.memory);
        frontend.start(0, base);
    }
    let start = Instant::now();
    while completed < offered {
        completed += collect(&mut frontend, &mut writing, &mut done) as u64;
        assert!(start.elapsed() < Duration::from_secs(30), "{completed} of {offered} completed");
    }
    assert!(writing.iter().all(Option::is_none));
    assert_eq!(u64::from(frontend.stop(0)), offered % 65_536);
    frontend.start(0, (offered % 65_536) as u16);
    for (number, version) in (0..).zip(&done) {
        let wanted = if *version > 0 { block(number, *version) } else { vec![0; LEN as usize] };
        assert!(frontend.read_blocks(number * 8, LEN as usize) == wanted, "block {number}");
    }
    assert!(left_over > 0, "no kill met a request in flight");
    println!("{completed} writes over {KILLS} kills, {left_over} of them resumed or done again");
}

#[test]
fn every_write_is_completed_once_over_twenty_kills() {
    survives(&[], F_EVENT_IDX);
}

#[test]
fn the_same_through_the_page_cache_and_without_event_indices() {
    survives(&["--direct", "off"], 0);
}
