//! `doorbell demo`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// About how long the measurements take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    seconds: f64,
    /// Instead: a device that runs in the sandbox module in this file, beside a native one.
    #[arg(long, value_name = "FILE")]
    sandbox: Option<PathBuf>,
}

impl Demo {
    pub(crate) fn run(self) -> Result<()> {
        match self.sandbox {
            Some(module) => doorbell_vhost::demo::run_sandbox(&module, self.seconds)?,
            None => doorbell_vhost::demo::run(self.seconds)?,
        }
        Ok(())
    }
}
