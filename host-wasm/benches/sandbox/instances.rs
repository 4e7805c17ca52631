//! How long instances take, how much memory they have, how long a module takes to compile and to load.

use std::path::Path;
use std::time::Instant;

use doorbell_core::testing::Machine;
use doorbell_wasm::{Engine, Module, Sandbox, SandboxConfig, SandboxedController, SandboxedGroup};

use crate::command::processor_time_ns;
use crate::percentile;

/// Tenants that exist at once.
const TENANTS: usize = 1500;

/// Tenants with a guest that exist at once.
const BUSY_TENANTS: usize = 400;

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

    let (mut cold, mut used, mut warm, mut drops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // Each in a slot that nobody has used.
    let before = resident_kib();
    let tenants: Vec<_> = (0..TENANTS).map(|_| idle(&module, &mut cold)).collect();
    let idle_kib = (resident_kib() - before) as f64 / TENANTS as f64;
    drop(tenants);
    // All of them once more, each in a slot that has had an instance.
    let tenants: Vec<_> = (0..TENANTS).map(|_| idle(&module, &mut used)).collect();
    let used_kib = (resident_kib() - before) as f64 / TENANTS as f64;
    // In new slots again, because those tenants have the others.
    let before_busy = resident_kib();
    let busy: Vec<_> = (0..BUSY_TENANTS).map(|_| busy(&module)).collect();
    let busy_kib = (resident_kib() - before_busy) as f64 / BUSY_TENANTS as f64;
    drop((tenants, busy));
    // One after the other, so always in the slot that was used last.
    for _ in 0..10_000 {
        let sandbox = Sandbox::new(&module, SandboxConfig::DEFAULT);
        let started = Instant::now();
        let controller = sandbox.controller().expect("a controller");
        let made = Instant::now();
        drop(controller);
        drops.push(made.elapsed().as_secs_f64() * 1e6);
        warm.push((made - started).as_secs_f64() * 1e6);
    }
    println!(
        "controller instance: {:.1} us in a new slot, {:.1} us in one of {TENANTS} used ones, {:.1} us in the one used last; \
         its end {:.1} us (medians, initialisation included)",
        percentile(&mut cold, 50.0),
        percentile(&mut used, 50.0),
        percentile(&mut warm, 50.0),
        percentile(&mut drops, 50.0)
    );
    println!("a tenant (controller and group), KiB resident, and tenants a GiB:");
    for (kib, when) in [
        (idle_kib, "made, in new slots"),
        (used_kib, "made, in used slots"),
        (busy_kib, "with a namespace and a queue pair, after verified reads and writes"),
    ] {
        println!("{kib:6.0} {:8.0}  {when}", (1 << 20) as f64 / kib);
    }
}

/// A tenant that no guest has touched, and how long its controller's instance took.
fn idle(module: &Module, times: &mut Vec<f64>) -> (SandboxedController, SandboxedGroup) {
    let sandbox = Sandbox::new(module, SandboxConfig::DEFAULT);
    let started = Instant::now();
    let controller = sandbox.controller().expect("a controller");
    times.push(started.elapsed().as_secs_f64() * 1e6);
    (controller, sandbox.group().expect("a group"))
}

/// A tenant whose guest has used its disk. Nothing is kept of the guest.
fn busy(module: &Module) -> (SandboxedController, Vec<SandboxedGroup>) {
    let sandbox = Sandbox::new(module, SandboxConfig::DEFAULT);
    let groups = vec![sandbox.group().expect("a group")];
    let mut machine = Machine::new(sandbox.controller().expect("a controller"), groups);
    machine.add_namespace(64);
    assert!(machine.bring_up(1, 8), "it comes up");
    for round in 0..4 {
        assert!(machine.verify(1, 1, round * 8, 8, round), "what was written is read");
    }
    (machine.controller, machine.groups)
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

/// What the process has resident, without what its heap has free.
#[expect(unsafe_code, reason = "a function of the C library")]
fn resident_kib() -> u64 {
    unsafe extern "C" {
        /// Gives pages of the heap that nothing is in back to the system (glibc).
        safe fn malloc_trim(pad: usize) -> i32;
    }
    malloc_trim(0);
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}
