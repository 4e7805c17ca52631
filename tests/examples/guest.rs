//! Runs scripts of `tests/guest/` in a guest and shows its console: `cargo run -p doorbell-tests --example
//! guest -- probe io`. The device is QEMU's own, or ours if `--socket PATH` comes first.

use std::path::PathBuf;

use anyhow::{Context, Result};
use doorbell_tests::guest::Guest;
use doorbell_tests::qemu::{Device, blank_image};

fn main() -> Result<()> {
    let mut scripts: Vec<String> = std::env::args().skip(1).collect();
    let folder = tempfile::tempdir()?;
    let device = if scripts.first().is_some_and(|word| word == "--socket") {
        let socket = PathBuf::from(scripts.get(1).context("--socket needs a path")?);
        scripts.drain(..2);
        Device::VfioUser(socket)
    } else {
        Device::emulated(&blank_image(folder.path(), 64 << 20)?)
    };
    let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
    let report = Guest::new(device, &scripts).run()?;
    println!("{}\n{:?}", report.console, report.values);
    Ok(())
}
