//! How long instances take, how much memory they have, how long a module takes to compile and to load.

use std::path::Path;
use std::time::Instant;

use doorbell_wasm::{Engine, Module, Sandbox, SandboxConfig};

use crate::command::processor_time_ns;
use crate::percentile;

/// Tenants that exist at once.
const TENANTS: usize = 1500;

pub(crate) fn run(engine: &Engine, path: &Path) {
    let wasm = std::fs::read(path).expect("the module");
    let started = Instant::now();
    let (compiled, digest) = Module::compile(engine, &wasm).expect("compiles");
    let compile = started.elapsed();
    let started = Instant::now();
    let module = Module::precompiled(engine, &compiled, &digest).expect("loads");
    println!(
        "\nmodule: {} bytes, compiled in {compile:.1?}, loaded in {:.1?}",
        wasm.len(),
        started.elapsed()
    );

    // Each in a slot that nobody has used.
    let before = resident_kib();
    let mut cold = Vec::new();
    let tenants: Vec<_> = (0..TENANTS)
        .map(|_| {
            let sandbox = Sandbox::new(&module, SandboxConfig::DEFAULT);
            let started = Instant::now();
            let controller = sandbox.controller().expect("a controller");
            cold.push(started.elapsed().as_secs_f64() * 1e6);
            (controller, sandbox.group().expect("a group"))
        })
        .collect();
    let kib = (resident_kib() - before) as f64 / TENANTS as f64;
    drop(tenants);
    let mut warm = Vec::new();
    for _ in 0..5000 {
        let sandbox = Sandbox::new(&module, SandboxConfig::DEFAULT);
        let started = Instant::now();
        let controller = sandbox.controller().expect("a controller");
        warm.push(started.elapsed().as_secs_f64() * 1e6);
        drop(controller);
    }
    println!(
        "controller instance: {:.1} us cold, {:.1} us in a warm slot (medians, initialisation included)",
        percentile(&mut cold, 50.0),
        percentile(&mut warm, 50.0)
    );
    println!(
        "a tenant (controller and group): {kib:.0} KiB resident, {:.0} tenants a GiB",
        (1 << 20) as f64 / kib
    );
}

/// How long a module that never ends holds its thread up: on the clock, and in processor time.
pub(crate) fn run_runaways(engine: &Engine) {
    let endless = wat::parse_str(include_str!("endless.wat")).expect("WAT");
    let endless = Module::new(engine, &endless).expect("a module that may run");
    let (mut clock, mut processor) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let sandbox = Sandbox::new(&endless, SandboxConfig::DEFAULT);
        let (started, started_ns) = (Instant::now(), processor_time_ns());
        assert!(sandbox.controller().is_err(), "it never ends");
        processor.push((processor_time_ns() - started_ns) as f64 / 1e6);
        clock.push(started.elapsed().as_secs_f64() * 1e3);
    }
    println!(
        "a runaway is stopped after {:.1} ms of processor time (worst {:.1}), {:.1} ms on the clock (worst {:.1})",
        percentile(&mut processor, 50.0),
        percentile(&mut processor, 100.0),
        percentile(&mut clock, 50.0),
        percentile(&mut clock, 100.0)
    );
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}
