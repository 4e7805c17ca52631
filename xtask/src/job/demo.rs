//! The demonstration: our own server and our own driver on one socket.

use crate::command;

/// Runs `doorbell demo`, built for speed.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let mut cargo = command::cargo(["run", "--release", "--package", "doorbell-vhost", "--", "demo"]);
    command::run(cargo.args(arguments))
}
