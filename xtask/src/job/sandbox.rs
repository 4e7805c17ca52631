//! The sandbox: its module built and checked, and everything that its host library promises.

use anyhow::Result;

use crate::command;
use crate::job::{module, system};

/// The variable that tells the tests where the module is.
pub(crate) const MODULE: &str = "DOORBELL_MODULE";

/// The variable that makes the tests of the hosts run their controllers in the module that it names.
const ENGINE: &str = "DOORBELL_TEST_ENGINE";

/// Builds the module, runs the tests of the sandbox with it, and then the native host's own on sandboxed engines.
pub(crate) fn run() -> Result<()> {
    let module = module::run(None)?;
    let packages = ["test", "--package", "doorbell-abi", "--package", "doorbell-wasm"];
    command::run(command::cargo(packages).env(MODULE, &module))?;
    let example = ["run", "--package", "doorbell-wasm", "--example", "vmm", "--"];
    command::run(command::cargo(example).arg(&module))?;
    let host = ["test", "--package", "doorbell-vhost", "--features", "sandbox"];
    command::run(
        command::cargo(host).args(["--test", "device", "--test", "vhost_user"]).env(ENGINE, &module),
    )?;
    // The way of a virtio request through a queue group, without the sandbox.
    command::run(command::cargo(host).args(["--test", "vhost_user"]).env(ENGINE, "queue-group"))
}

/// Runs what needs QEMU on sandboxed engines: all of qtest, and one guest.
pub(crate) fn system() -> Result<()> {
    let module = module::run(None)?;
    system::run_with(&["qtest"], 2, None, &[(ENGINE, module.as_os_str())])?;
    system::run_with(
        &["guest"],
        1,
        Some("driver_probes_verifies_and_recovers"),
        &[(ENGINE, module.as_os_str())],
    )
}
