//! The tests inside the crates, and the examples in their documentation.

use crate::command;

/// Runs the unit and documentation tests of every crate but the whole-system ones.
pub(crate) fn run() -> anyhow::Result<()> {
    let inside = ["test", "--workspace", "--exclude", "doorbell-tests", "--lib", "--bins"];
    command::run(&mut command::cargo(inside))?;
    command::run(&mut command::cargo(["test", "--workspace", "--exclude", "doorbell-tests", "--doc"]))
}
