//! The images for microcontrollers: built, checked, run under QEMU with their logs decoded, weighed, and their
//! instructions counted.

mod image;
mod log;
mod machine;
mod measure;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::report::Report;
use image::{Bin, Sizes};
use machine::{MACHINES, Machine};

/// The smallest useful tables.
pub(crate) const SMALLEST: Sizes = Sizes { queues: 1, commands: 8, errors: 4 };

/// What `cargo xtask firmware` can be asked.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Weigh the images of four sizes instead of running one
    #[arg(long)]
    size: bool,
    /// Count the instructions of a command instead
    #[arg(long)]
    instructions: bool,
    /// What the images log
    #[arg(long, value_enum, default_value_t = Level::Info)]
    log: Level,
    /// I/O queue pairs of the image that is run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// I/O commands in flight of the image that is run
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    commands: u16,
}

/// defmt's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Nothing but what ends the run
    Off,
    Error,
    /// And what a driver did wrong
    Warn,
    /// And resets and enabling
    Info,
    /// And what controller and queues tell each other
    Debug,
    /// And every register write and command
    Trace,
}

/// Does what was asked.
pub(crate) fn run(options: &Options, report: &mut Report) {
    report.run("setup", crate::setup::host::run);
    if options.size {
        report.run("size", || measure::sizes(options.log));
    }
    if options.instructions {
        report.run("instructions", measure::instructions);
    }
    if !options.size && !options.instructions {
        let sizes = Sizes { queues: options.queues, commands: options.commands, errors: 8 };
        for machine in MACHINES {
            report.run(machine.name, || run_model(machine, sizes, options.log));
        }
    }
}

/// What CI does: the smallest image on every machine, weighed and counted.
pub(crate) fn test() -> Result<()> {
    for machine in MACHINES {
        run_model(machine, SMALLEST, Level::Info)?;
    }
    measure::smallest()?;
    measure::instructions()
}

/// Builds the model host's image, checks it and runs it to its end.
fn run_model(machine: &Machine, sizes: Sizes, level: Level) -> Result<()> {
    let image = image::build(machine, Bin::Model, sizes, level)?;
    image::check(machine, &image)?;
    let lines = machine::run(machine, &image, false)?;
    ensure!(
        lines.iter().any(|line| line.contains("verified: ")),
        "the image on {} ended without the model host's report",
        machine.name
    );
    Ok(())
}
