//! `doorbell check`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use doorbell_vhost::devices_file::DevicesFile;

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file, as given to `doorbell serve --config`.
    file: PathBuf,
}

impl Check {
    pub(crate) fn run(self) -> Result<()> {
        let file = DevicesFile::read(&self.file)?;
        file.describe().for_each(|line| println!("{line}"));
        println!("{}: {} device(s), no mistake", file.path().display(), file.len());
        Ok(())
    }
}
