//! `doorbell`: the command line of the native host. The work is in the library.

mod command;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let Some(cli) = command::Cli::of_process() else { return ExitCode::SUCCESS };
    let filter = EnvFilter::try_from_env("DOORBELL_LOG").unwrap_or_else(|_| EnvFilter::new(cli.log_level()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_target(false)
        // A reader of our log that goes away must not take the server with it.
        .log_internal_errors(false)
        .init();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("doorbell: {error:#}");
            ExitCode::FAILURE
        }
    }
}
