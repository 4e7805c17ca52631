//! The demonstration: our own server and our own driver on one socket, then the same with a sandbox.

use std::path::Path;

use crate::command;
use crate::job::module;

/// Runs `doorbell demo`, built for speed; without arguments also its part about sandboxes, which takes a compiler for
/// the module and a few minutes to build the first time.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let demo = ["run", "--release", "--package", "doorbell-vhost", "--", "demo"];
    command::run(command::cargo(demo).args(arguments))?;
    if arguments.is_empty() { sandbox(&module::run(None)?) } else { Ok(()) }
}

/// Native and sandboxed devices side by side.
pub(crate) fn sandbox(module: &Path) -> anyhow::Result<()> {
    let run = ["run", "--release", "--package", "doorbell-vhost", "--features", "sandbox"];
    command::run(command::cargo(run).args(["--", "demo", "--sandbox"]).arg(module))
}
