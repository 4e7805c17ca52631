//! The sandbox: its module built and checked, and everything that its host library promises.

use anyhow::Result;

use crate::command;
use crate::job::module;

/// The variable that tells the tests where the module is.
pub(crate) const MODULE: &str = "DOORBELL_MODULE";

/// Builds the module and runs the tests of the sandbox with it.
pub(crate) fn run() -> Result<()> {
    let module = module::run(None)?;
    let packages = ["test", "--package", "doorbell-abi", "--package", "doorbell-wasm"];
    command::run(command::cargo(packages).env(MODULE, &module))?;
    let example = ["run", "--package", "doorbell-wasm", "--example", "vmm", "--"];
    command::run(command::cargo(example).arg(module))
}
