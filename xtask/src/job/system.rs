//! The whole-system tests: package `doorbell-tests`.

use std::ffi::OsStr;

use crate::command;

/// Runs test targets of the package. The harness starts several QEMUs, so on two cores one test at a time
/// is both quicker and steadier for guests; `threads` says how many.
pub(crate) fn run(targets: &[&str], threads: u32) -> anyhow::Result<()> {
    run_with(targets, threads, None, &[])
}

/// The same, only the tests with `filter` in their names, with these variables.
pub(crate) fn run_with(
    targets: &[&str],
    threads: u32,
    filter: Option<&str>,
    variables: &[(&str, &OsStr)],
) -> anyhow::Result<()> {
    let mut cargo = command::cargo(["test", "--package", "doorbell-tests", "--no-fail-fast"]);
    for target in targets {
        cargo.args(["--test", target]);
    }
    // An error here tells its own story; where in the harness it arose only buries it.
    cargo.env("RUST_LIB_BACKTRACE", "0");
    cargo.envs(variables.iter().copied());
    command::run(cargo.args(["--", "--nocapture"]).arg(format!("--test-threads={threads}")).args(filter))
}
