//! Everything that says whether the project works, whole or in parts.

use clap::ValueEnum;

use crate::job::{concurrency, firmware, foreign, lint, panic_proof, protocol, sandbox, system, unit};
use crate::report::Report;
use crate::setup;

/// A part of the tests that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Tests inside the crates and in their documentation
    Unit,
    /// Tests of the core and of the native host from outside, without QEMU
    Protocol,
    /// Concurrency models of the doorbells
    Loom,
    /// The proof that no path of the core panics or allocates
    Panic,
    /// The WASM sandbox: its module built and checked, its host library with good and bad modules
    Sandbox,
    /// QEMU and a Linux guest on sandboxed controllers
    SandboxSystem,
    /// The core's unit tests on a big-endian and on a 32-bit machine
    Portability,
    /// The microcontroller images: run under QEMU, weighed, instructions counted
    Mcu,
    /// Clients without a guest: QEMU with our driver's and Windows' steps, SPDK, qemu-io, blkio; and the harness's own test
    Qtest,
    /// SeaBIOS and OVMF read from our disk
    Firmware,
    /// A Linux guest
    Guest,
    /// Every part, and formatting, clippy and rustdoc
    All,
}

type Job = fn() -> anyhow::Result<()>;

/// Runs the parts named; none named means all. The set-up runs first when a part needs it.
pub(crate) fn run(parts: &[Part], report: &mut Report) {
    let all = parts.is_empty() || parts.contains(&Part::All);
    let wants = |part| all || parts.contains(&part);
    if [Part::Qtest, Part::Firmware, Part::Guest, Part::SandboxSystem].into_iter().any(wants) {
        report.run("setup", || setup::run(false));
    } else if [Part::Unit, Part::Protocol, Part::Panic, Part::Sandbox, Part::Portability, Part::Mcu]
        .into_iter()
        .any(wants)
    {
        report.run("setup", setup::host::run);
    }
    if all {
        lint::run(report);
    }
    // One line a part. The order is from quick to slow.
    let jobs: [(Part, &str, Job); 11] = [
        (Part::Unit, "unit", unit::run),
        (Part::Protocol, "protocol", protocol::run),
        (Part::Loom, "loom", concurrency::run),
        (Part::Panic, "panic", panic_proof::run),
        (Part::Sandbox, "sandbox", sandbox::run),
        (Part::Portability, "portability", foreign::run),
        (Part::Mcu, "mcu", firmware::test),
        (Part::Qtest, "qtest", || system::run(&["harness", "qtest", "windows", "spdk", "clients"], 2)),
        (Part::Firmware, "firmware", || system::run(&["firmware"], 1)),
        (Part::Guest, "guest", || system::run(&["guest"], 1)),
        (Part::SandboxSystem, "sandbox-system", sandbox::system),
    ];
    for (part, name, job) in jobs {
        if wants(part) {
            report.run(name, job);
        }
    }
}
