//! A thousand tenants on one thread, with and without bad ones among them: how long the good ones wait for their turn.

use std::time::{Duration, Instant};

use doorbell_core::controller::ControllerConfig;
use doorbell_core::testing::pair::RAM_BASE;
use doorbell_core::testing::{Machine, RamMemory};
use doorbell_wasm::{
    Engine, Module, RESTART_INTERVAL, Sandbox, SandboxConfig, SandboxedController, SandboxedGroup,
};

use crate::percentile;

const TENANTS: usize = 1000;
const DURATION: Duration = Duration::from_secs(6);

type Tenant = Machine<SandboxedController, SandboxedGroup>;

fn tenant(module: &Module) -> Option<Tenant> {
    let controller = ControllerConfig { io_queues: 1, ..ControllerConfig::DEFAULT };
    let sandbox = Sandbox::new(module, SandboxConfig { controller, ..SandboxConfig::DEFAULT });
    let mut machine = Machine::new(sandbox.controller().ok()?, vec![sandbox.group().ok()?]);
    machine.memory = RamMemory::new(RAM_BASE, 128 << 10);
    machine.add_namespace(64);
    Some(machine)
}

/// Milliseconds between two turns of a good tenant, which is how long its requests wait at most, over all tenants.
fn waits(engine: &Engine, module: &Module, bad: bool) -> Vec<f64> {
    let endless = wat::parse_str(include_str!("endless.wat")).expect("WAT");
    let endless = Module::new(engine, &endless).expect("a module that may run");
    let (mut good, mut others) = (Vec::new(), Vec::new());
    for index in 0..TENANTS {
        if bad && index % 10 == 0 {
            others.push((Sandbox::new(&endless, SandboxConfig::DEFAULT), Instant::now()));
        } else {
            let mut machine = tenant(module).expect("a tenant");
            assert!(machine.bring_up(1, 8));
            good.push((machine, Instant::now()));
        }
    }
    let mut waits = Vec::new();
    let started = Instant::now();
    // A bad one runs until it is stopped whenever it is let, which is once in a second.
    for (index, (_, due)) in others.iter_mut().enumerate() {
        *due = started + RESTART_INTERVAL * index as u32 / 100;
    }
    let mut round = 0;
    while round < 3 || started.elapsed() < DURATION {
        for (index, (machine, served)) in good.iter_mut().enumerate() {
            if let Some((sandbox, due)) = others.get_mut(index / 9)
                && index % 9 == 0
                && *due <= Instant::now()
            {
                *due += RESTART_INTERVAL;
                assert!(sandbox.controller().is_err(), "it never ends");
            }
            assert!(machine.verify(1, 1, 0, 8, (round * TENANTS + index) as u64));
            let now = Instant::now();
            if round > 0 {
                waits.push((now - *served).as_secs_f64() * 1e3);
            }
            *served = now;
        }
        round += 1;
    }
    waits
}

pub(crate) fn run(engine: &Engine, module: &Module) {
    println!(
        "\n1,000 tenants on one thread, a verified write and read of 4 KiB each in turn; time between two turns:"
    );
    let mut tails = Vec::new();
    for (name, bad) in [("all good", false), ("100 of them bad", true)] {
        let mut waits = waits(engine, module, bad);
        let (median, tail) = (percentile(&mut waits, 50.0), percentile(&mut waits, 99.0));
        println!("{name:>16}: median {median:.2} ms, p99 {tail:.2} ms");
        tails.push(tail);
    }
    println!("p99 with bad ones: {:.2} times that without", tails[1] / tails[0]);
}
