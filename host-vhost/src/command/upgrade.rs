//! `doorbell upgrade`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use doorbell_vhost::ctl::client::ask;
use doorbell_vhost::ctl::protocol::{Answer, Command};

#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// The device's socket, as given to `doorbell serve`.
    socket: PathBuf,
    /// The module that a sandbox is to run from now on.
    #[arg(required_unless_present = "native", conflicts_with = "native")]
    module: Option<PathBuf>,
    /// Run the controller in the server itself from now on.
    #[arg(long)]
    native: bool,
}

impl Upgrade {
    pub(crate) fn run(self) -> Result<()> {
        // The server has a folder of its own, so paths go there whole.
        let module = self.module.map(std::path::absolute).transpose().context("the module's path")?;
        match ask(&self.socket, Command::Upgrade { module })? {
            Answer::Upgraded { engine, pause_ns } => {
                println!(
                    "the controller runs in {engine} now; longest pause {:.1} us",
                    pause_ns as f64 / 1000.0
                );
            }
            _ => bail!("the server answered another question; is it of another version?"),
        }
        Ok(())
    }
}
