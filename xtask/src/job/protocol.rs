//! The tests that drive a crate from outside, on its own protocol, without a QEMU.

use crate::command;

/// Runs the integration tests of the core and of the native host.
pub(crate) fn run() -> anyhow::Result<()> {
    let packages = ["--package", "doorbell-core", "--package", "doorbell-vhost"];
    command::run(command::cargo(["test"]).args(packages).args(["--test", "*"]))
}
