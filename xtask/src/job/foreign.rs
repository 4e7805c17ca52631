//! The core's unit tests on other machines: a big-endian one, emulated, and a 32-bit one.
//!
//! Debian's compiler builds the standard library for them from Debian's sources, so nothing but Debian packages
//! is needed; a part of the tests that can't be built is a failure.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{bare_metal, command, layout};

/// A machine that runs the tests.
struct Machine {
    target: &'static str,
    /// Debian's cross compiler, which links.
    linker: &'static str,
    /// What runs the tests where the machine itself can't.
    runner: Option<&'static str>,
    /// A file of its C library, and the Debian package that brings it.
    library: (&'static str, &'static str),
}

const MACHINES: [Machine; 2] = [
    Machine {
        target: "s390x-unknown-linux-gnu",
        linker: "s390x-linux-gnu-gcc",
        runner: Some("qemu-s390x-static -L /usr/s390x-linux-gnu"),
        library: ("/usr/s390x-linux-gnu/lib/crt1.o", "libc6-dev-s390x-cross"),
    },
    Machine {
        target: "i686-unknown-linux-gnu",
        linker: "i686-linux-gnu-gcc",
        runner: Some("qemu-i386-static -L /usr/i686-linux-gnu"),
        library: ("/usr/i686-linux-gnu/lib/crt1.o", "libc6-dev-i386-cross"),
    },
];

/// Seconds that a machine's tests may take, the standard library's build included.
const TIMEOUT: &str = "1800";

/// The C libraries and the compiler, where they are missing.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    let mut packages = bare_metal::missing_of_debian();
    for Machine { library: (file, package), .. } in &MACHINES {
        if !Path::new(file).exists() {
            packages.push(package);
        }
    }
    packages
}

/// Runs the tests on every machine.
pub(crate) fn run() -> Result<()> {
    for machine in &MACHINES {
        let cargo = test(machine)?;
        let mut bounded = Command::new("timeout");
        bounded.arg(TIMEOUT).arg(cargo.get_program()).args(cargo.get_args());
        bounded.current_dir(layout::workspace());
        for (name, value) in cargo.get_envs() {
            if let Some(value) = value {
                bounded.env(name, value);
            } else {
                bounded.env_remove(name);
            }
        }
        let printed = command::output(&mut bounded)
            .with_context(|| format!("the core's unit tests on {}", machine.target))?;
        let results = printed.lines().find(|line| line.starts_with("test result: ok. "));
        let results = results.with_context(|| format!("no tests ran on {}", machine.target))?;
        ensure!(!results.contains(" 0 passed"), "no tests ran on {}", machine.target);
        println!("{}: {results}", machine.target);
    }
    Ok(())
}

fn test(machine: &Machine) -> Result<Command> {
    let mut cargo = bare_metal::debian("test", "std", machine.target)?;
    let variable =
        |what: &str| format!("CARGO_TARGET_{}_{what}", machine.target.to_uppercase().replace('-', "_"));
    cargo.env(variable("LINKER"), machine.linker);
    if let Some(runner) = machine.runner {
        cargo.env(variable("RUNNER"), runner);
    }
    cargo.args(["--target", machine.target, "--target-dir"]).arg(layout::target().join("portability"));
    cargo.env_remove("RUSTFLAGS").args(["--quiet", "--locked", "--lib", "--manifest-path"]);
    cargo.arg(layout::workspace().join("core/portability/Cargo.toml"));
    Ok(cargo)
}
