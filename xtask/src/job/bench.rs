//! The benchmarks.

use anyhow::Result;

use crate::job::{demo, module, sandbox};
use crate::{command, layout, setup};

/// Runs Criterion's benches of the core with the arguments given, or what the first of them names.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [name] if name == "vhost" => vhost(),
        [name, rest @ ..] if name == "sandbox" => sandboxed(rest),
        arguments => command::run(command::cargo(["bench", "--package", "doorbell-core"]).args(arguments)),
    }
}

/// Our vhost-user-blk backend beside that of `qemu-storage-daemon`, which the set-up brings.
fn vhost() -> Result<()> {
    setup::run(false)?;
    command::run(&mut command::cargo(["build", "--release", "--package", "doorbell-vhost"]))?;
    let run = ["run", "--release", "--package", "doorbell-tests", "--example", "vhost_bench"];
    command::run(command::cargo(run).env("DOORBELL_BIN", layout::target().join("release/doorbell")))
}

/// Sandboxed engines beside native ones.
fn sandboxed(arguments: &[String]) -> Result<()> {
    let module = module::run(None)?;
    demo::sandbox(&module)?;
    let mut bench = command::cargo(["bench", "--package", "doorbell-wasm", "--bench", "sandbox"]);
    command::run(bench.args(arguments).env(sandbox::MODULE, module))
}
