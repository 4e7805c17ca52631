//! QEMU's machines, and running an image on one.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::log::Decoder;

/// Seconds that an image may run; it needs a few.
const TIMEOUT: &str = "180";

/// A machine of QEMU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    pub(super) target: &'static str,
    /// In the ELF header's flags.
    pub(super) float_abi: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
}

/// The machines; the first two run the same image.
pub(super) const MACHINES: &[Machine] = &[
    Machine {
        name: "cortex-m4f",
        target: "thumbv7em-none-eabihf",
        float_abi: "hard-float ABI",
        program: "qemu-system-arm",
        arguments: &["-M", "mps2-an386", "-semihosting-config", "enable=on,target=native"],
    },
    Machine {
        name: "cortex-m7",
        target: "thumbv7em-none-eabihf",
        float_abi: "hard-float ABI",
        program: "qemu-system-arm",
        arguments: &["-M", "mps2-an500", "-semihosting-config", "enable=on,target=native"],
    },
    Machine {
        name: "riscv32imac",
        target: "riscv32imac-unknown-none-elf",
        float_abi: "soft-float ABI",
        program: "qemu-system-riscv32",
        arguments: &["-M", "virt", "-bios", "none"],
    },
];

/// Runs an image to its end, prints its log as it comes and returns its lines. With `counts` QEMU counts
/// instructions as nanoseconds.
pub(super) fn run(machine: &Machine, image: &Path, counts: bool) -> Result<Vec<String>> {
    let elf = std::fs::read(image).with_context(|| format!("{} can't be read", image.display()))?;
    let mut qemu = Command::new("timeout");
    qemu.args([TIMEOUT, machine.program]).args(machine.arguments);
    qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-kernel"]).arg(image);
    if counts {
        qemu.args(["-icount", "shift=0"]);
    }
    let mut child = qemu
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} can't be started", machine.program))?;
    let mut output = child.stdout.take().context("QEMU's output is piped")?;
    let lines = follow(&elf, &mut output);
    let status = child.wait()?;
    let lines = lines?;
    match status.code() {
        Some(0) => Ok(lines),
        Some(124) => bail!("the image on {} didn't end within {TIMEOUT} seconds", machine.name),
        _ => bail!("the image on {} failed ({status}); its log says why", machine.name),
    }
}

fn follow(elf: &[u8], output: &mut impl Read) -> Result<Vec<String>> {
    let mut decoder = Decoder::new(elf)?;
    let mut lines = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let count = output.read(&mut bytes)?;
        if count == 0 {
            return Ok(lines);
        }
        for line in decoder.decode(&bytes[..count])? {
            println!("{line}");
            lines.push(line);
        }
    }
}
