//! The tests inside the crates, and the examples in their documentation.

use crate::command;

/// Runs the unit and documentation tests of every crate but the whole-system ones and the sandbox's, which have parts of
/// their own.
pub(crate) fn run() -> anyhow::Result<()> {
    let packages = ["--workspace", "--exclude", "doorbell-tests", "--exclude", "doorbell-wasm"];
    command::run(command::cargo(["test"]).args(packages).args(["--lib", "--bins"]))?;
    command::run(command::cargo(["test"]).args(packages).arg("--doc"))
}
