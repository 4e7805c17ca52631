//! `doorbell demo`.

use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// About how long the measurements take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    seconds: f64,
}

impl Demo {
    pub(crate) fn run(self) -> Result<()> {
        Ok(doorbell_vhost::demo::run(self.seconds)?)
    }
}
