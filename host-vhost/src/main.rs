//! `doorbell`: the command line of the native host. The work is in the library.

mod command;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = command::Cli::parse();
    let filter = EnvFilter::try_from_env("DOORBELL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("doorbell: {error:#}");
            ExitCode::FAILURE
        }
    }
}
