//! How poller threads are named on a command line.

use anyhow::{Result, bail};
use clap::Args;
use doorbell_vhost::cpus::CpuList;
use doorbell_vhost::device::MAX_GROUPS;

#[derive(Debug, Args)]
pub(crate) struct PollerArgs {
    /// Poller threads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pollers: usize,
    /// Processors for the pollers, one each: 2,3 or 4-7.
    #[arg(long, value_name = "LIST")]
    cpu: Option<CpuList>,
}

impl PollerArgs {
    /// How many.
    pub(crate) fn count(&self) -> Result<usize> {
        if self.pollers == 0 || self.pollers > MAX_GROUPS {
            bail!("--pollers {} is not between 1 and {MAX_GROUPS}", self.pollers);
        }
        Ok(self.pollers)
    }

    /// One processor for each poller, or none at all.
    pub(crate) fn cpus(&self) -> Result<Vec<usize>> {
        match &self.cpu {
            None => Ok(Vec::new()),
            Some(CpuList(cpus)) if cpus.len() == self.pollers => Ok(cpus.clone()),
            Some(CpuList(cpus)) => bail!(
                "--cpu names {} processors for {} pollers: name one for each, or leave --cpu out",
                cpus.len(),
                self.pollers
            ),
        }
    }
}
