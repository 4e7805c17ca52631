//! The benchmarks.

use crate::command;
use crate::job::{module, sandbox};

/// Runs Criterion's benches of the core with the arguments given, or with `sandbox` as the first the sandbox's own.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    if let Some((first, rest)) = arguments.split_first()
        && first == "sandbox"
    {
        let module = module::run(None)?;
        let mut bench = command::cargo(["bench", "--package", "doorbell-wasm", "--bench", "sandbox"]);
        return command::run(bench.args(rest).env(sandbox::MODULE, module));
    }
    command::run(command::cargo(["bench", "--package", "doorbell-core"]).args(arguments))
}
