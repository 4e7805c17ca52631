//! The benchmarks of the core.

use crate::command;

/// Runs Criterion's benches with the arguments given.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    command::run(command::cargo(["bench", "--package", "doorbell-core"]).args(arguments))
}
