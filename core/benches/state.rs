//! Live upgrade: bytes of a state, and the time to save and to load it, with every queue made and commands in
//! flight.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use doorbell_core::controller::{Controller, ControllerConfig};
use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::testing::Pair;
use doorbell_core::testing::entry::flush;

/// A group with `queues` queue pairs and `depth` commands in flight.
fn group<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize>(
    bench: &mut Criterion,
    queues: u16,
    depth: usize,
) {
    let mut pair = Pair::<QUEUES, COMMANDS, NAMESPACES>::default();
    pair.add_namespace(1, 8, 9);
    for qid in 1..=queues {
        pair.create_cq(qid, 64, Some(qid));
        pair.create_sq(qid, qid, 64);
    }
    for command in 0..depth {
        pair.submit(1 + command as u16 % queues, flush(1));
    }
    assert_eq!(pair.fetch(), depth);
    let mut state = vec![0; QueueGroup::<QUEUES, COMMANDS, NAMESPACES>::STATE_BYTES];
    let len = pair.group.save(&mut state).unwrap();
    let name = format!("group<{QUEUES},{COMMANDS},{NAMESPACES}> {queues} queues depth {depth}: {len} bytes");
    let mut next = QueueGroup::<QUEUES, COMMANDS, NAMESPACES>::new(GroupConfig::DEFAULT);
    bench.bench_function(&format!("{name}, save"), |bencher| {
        bencher.iter(|| black_box(&pair.group).save(black_box(&mut state)).unwrap());
    });
    bench.bench_function(&format!("{name}, load"), |bencher| {
        bencher.iter(|| black_box(&mut next).load(black_box(&state[..len]), |_, _| true).unwrap());
    });
    println!("{name}, at most {}", QueueGroup::<QUEUES, COMMANDS, NAMESPACES>::STATE_BYTES);
}

fn controller(bench: &mut Criterion) {
    type Host = Controller<16, 64, 32>;
    let controller = Host::new(ControllerConfig::DEFAULT);
    let mut state = vec![0; Host::STATE_BYTES];
    let len = controller.save(&mut state).unwrap();
    let mut next = Host::new(ControllerConfig::DEFAULT);
    bench.bench_function(&format!("controller: {len} bytes, save"), |bencher| {
        bencher.iter(|| black_box(&controller).save(black_box(&mut state)).unwrap());
    });
    bench.bench_function(&format!("controller: {len} bytes, load"), |bencher| {
        bencher.iter(|| black_box(&mut next).load(black_box(&state[..len]), |_, _| true).unwrap());
    });
    println!("controller: {len} bytes, at most {}", Host::STATE_BYTES);
}

fn state(bench: &mut Criterion) {
    group::<2, 32, 1>(bench, 1, 32);
    group::<16, 256, 16>(bench, 8, 64);
    group::<16, 256, 16>(bench, 16, 256);
    group::<64, 1024, 32>(bench, 64, 1024);
    controller(bench);
}

criterion_group!(benches, state);
criterion_main!(benches);
