//! The concurrency models of the doorbells.

use crate::command;

/// Runs the core's loom models. They are built with other flags than everything else, so they have an
/// output folder of their own; without it each run would build the whole workspace anew.
pub(crate) fn run() -> anyhow::Result<()> {
    let arguments = ["test", "--package", "doorbell-core", "--release", "--test", "loom*"];
    let flags = match std::env::var("RUSTFLAGS") {
        Ok(flags) => format!("{flags} --cfg loom"),
        Err(_) => "--cfg loom".to_owned(),
    };
    let folder = crate::layout::target().join("loom");
    let mut cargo = command::cargo(arguments);
    command::run(cargo.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", folder))
}
