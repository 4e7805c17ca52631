//! The sandbox: its module built and checked, and everything that its host library promises.

use std::process::Command;

use anyhow::Result;

use crate::job::{module, system};
use crate::{command, layout};

/// The variable that tells the tests where the module is.
pub(crate) const MODULE: &str = "DOORBELL_MODULE";

/// The variable that makes the tests of the hosts run their controllers in the module that it names.
const ENGINE: &str = "DOORBELL_TEST_ENGINE";

/// The variable that names the program that serves, for the whole-system tests.
const PROGRAM: &str = "DOORBELL_BIN";

/// Builds the module, runs the tests of the sandbox with it, and then the native host's own on sandboxed engines.
pub(crate) fn run() -> Result<()> {
    let module = module::run(None)?;
    let mut own = cargo("test");
    own.args(["--lib", "--test", "sandbox", "--test", "instances", "--test", "protocol"]);
    command::run(own.env(MODULE, &module))?;
    command::run(cargo("build").args(["--example", "vmm"]))?;
    command::run(Command::new(layout::target().join("debug/examples/vmm")).arg(&module))?;
    command::run(cargo("test").args(["--test", "device", "--test", "vhost_user"]).env(ENGINE, &module))?;
    // The way of a virtio request through a queue group, without the sandbox.
    command::run(cargo("test").args(["--test", "vhost_user"]).env(ENGINE, "queue-group"))
}

/// Runs what needs QEMU on sandboxed engines: all of qtest, and one guest.
pub(crate) fn system() -> Result<()> {
    let module = module::run(None)?;
    // With a test of its package the program is built too, from what the tests above have compiled.
    command::run(cargo("test").args(["--test", "device", "--no-run"]))?;
    let program = layout::target().join("debug/doorbell");
    let variables = [(ENGINE, module.as_os_str()), (PROGRAM, program.as_os_str())];
    system::run_with(&["qtest"], 2, None, &variables)?;
    system::run_with(&["guest"], 1, Some("driver_probes_verifies_and_recovers"), &variables)
}

/// Cargo, always for the same packages and features: another choice would compile the sandbox's compiler once more.
fn cargo(what: &str) -> Command {
    let mut cargo = command::cargo([what]);
    for package in ["doorbell-abi", "doorbell-wasm", "doorbell-vhost"] {
        cargo.args(["--package", package]);
    }
    cargo.args(["--features", "doorbell-vhost/sandbox"]);
    cargo
}
