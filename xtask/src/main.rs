//! Set-up and jobs that people and CI share. `cargo xtask help` lists them.
//!
//! One job is one file in `job/`; everything that a fresh machine needs is in `setup/`. A part that is
//! missing on the machine is a failure with a message that says what to do, never a silent skip.

mod bare_metal;
mod command;
mod job;
mod layout;
mod report;
mod setup;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::job::test::Part;

/// Set-up and jobs that people and CI share.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Bring a QEMU with vfio-user, firmware, a Linux kernel and a guest image under `target/guest`
    Setup {
        /// Build everything again although it is there
        #[arg(long)]
        force: bool,
    },
    /// Serve a RAM namespace, drive it over its own socket, print the tables
    Demo {
        /// Passed on to `doorbell demo`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build for speed and install: `bin/doorbell`, the vhost-user backend, its description for management tools
    Install {
        /// Where it will be found
        #[arg(long, default_value = "/usr/local")]
        prefix: PathBuf,
        /// A folder that stands for the root of the file system, for those who make packages
        #[arg(long, default_value = "/")]
        destdir: PathBuf,
    },
    /// Run the set-up and the tests: every part, or the parts named
    Test {
        /// The parts to run; none means all of them
        #[arg(value_enum)]
        parts: Vec<Part>,
    },
    /// Build the sandbox module and check the built file
    Module {
        /// Where to put it; `target/module/doorbell.wasm` where nothing is said
        #[arg(short, long)]
        output: Option<std::path::PathBuf>,
    },
    /// Check formatting, clippy and rustdoc; warnings are errors
    Lint,
    /// Run the benchmarks of the core, or with `sandbox` those of the sandbox
    Bench {
        /// Passed on to `cargo bench`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut report = report::Report::new();
    match arguments.task {
        Task::Setup { force } => report.run("setup", || setup::run(force)),
        Task::Demo { arguments } => report.run("demo", || job::demo::run(&arguments)),
        Task::Install { prefix, destdir } => report.run("install", || job::install::run(&destdir, &prefix)),
        Task::Test { parts } => job::test::run(&parts, &mut report),
        Task::Module { output } => report.run("module", || job::module::run(output.as_deref()).map(|_| ())),
        Task::Lint => job::lint::run(&mut report),
        Task::Bench { arguments } => report.run("bench", || job::bench::run(&arguments)),
    }
    report.finish()
}
