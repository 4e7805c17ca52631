//! `doorbell demo`.
use anyhow::Result;
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {}
impl Demo {
    pub(crate) fn run(self) -> Result<()> {
        anyhow::bail!("not yet")
    }
}
