//! Debian packages of another release, downloaded and unpacked without installing them.
//!
//! The machine's apt does the work, with lists, cache and an empty installed state of its own, so that it
//! resolves every dependency and touches nothing of the machine. The mirror is the one the machine uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{output, run};
use crate::setup::host::KEYRING;

/// The release that everything comes from.
const RELEASE: &str = "trixie";

/// Where a package is taken from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Suite {
    /// The release itself.
    Release,
    /// What was added to the release later, where it has a newer version.
    Backports,
}

/// An apt of our own.
#[derive(Debug)]
pub(super) struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Makes the state in `folder` and fetches the lists.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        for part in ["etc/none", "lists/partial", "cache/archives/partial", "log"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let mirror = mirror()?;
        println!("packages come from {mirror}");
        let source = |suite: &str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        let sources = source(RELEASE) + &source(&format!("{RELEASE}-backports"));
        fs::write(folder.join("etc/sources.list"), sources)?;
        fs::write(folder.join("status"), "")?;
        fs::write(folder.join("apt.conf"), configuration(folder))?;
        let archive = Self { folder: folder.to_owned() };
        run(archive.apt().arg("update")).with_context(|| {
            format!("{mirror} has no {RELEASE}; set DOORBELL_DEBIAN_MIRROR to a Debian mirror that has")
        })?;
        Ok(archive)
    }

    /// Downloads `packages` with everything they depend on and unpacks them into `root`.
    pub(super) fn unpack(&self, suite: Suite, packages: &[&str], root: &Path) -> Result<()> {
        let archives = self.folder.join("cache/archives");
        let mut apt = self.apt();
        apt.args(["--yes", "--download-only", "install"]);
        if matches!(suite, Suite::Backports) {
            apt.arg(format!("--target-release={RELEASE}-backports"));
        }
        run(apt.args(packages))?;
        fs::create_dir_all(root)?;
        let mut count = 0_usize;
        for entry in fs::read_dir(&archives)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                output(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(root))?;
                fs::remove_file(&path)?;
                count = count.saturating_add(1);
            }
        }
        println!("{count} packages unpacked into {}", root.display());
        Ok(())
    }

    /// An apt-get that knows this folder only. The file is read after the machine's own configuration,
    /// so that what that says about proxies stays true.
    fn apt(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-qq").arg("--config-file").arg(self.folder.join("apt.conf"));
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"Dir::Etc "{folder}/etc";
Dir::Etc::SourceList "{folder}/etc/sources.list";
Dir::Etc::SourceParts "{folder}/etc/none";
Dir::Etc::Preferences "{folder}/etc/preferences";
Dir::Etc::PreferencesParts "{folder}/etc/none";
Dir::State "{folder}";
Dir::State::Lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Log "{folder}/log";
APT::Sandbox::User "";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "3";
"#
    )
}

/// The Debian mirror that the machine's own apt is set up with.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("DOORBELL_DEBIAN_MIRROR") {
        return Ok(mirror);
    }
    if let Some(mirror) = configured()? {
        return Ok(mirror);
    }
    // A machine that never fetched its lists doesn't know yet who is behind an address.
    run(Command::new("apt-get").args(["-qq", "update"]))?;
    match configured()? {
        Some(mirror) => Ok(mirror),
        None => bail!(
            "this machine's apt knows no Debian mirror; set DOORBELL_DEBIAN_MIRROR to the address of one"
        ),
    }
}

/// The first source that calls itself Debian; security updates have another label and other folders.
fn configured() -> Result<Option<String>> {
    let format = "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)";
    let targets = output(Command::new("apt-get").args(["indextargets", "--format", format]))?;
    Ok(targets.lines().find_map(|line| line.strip_prefix("Packages|Debian|Debian|")).map(str::to_owned))
}
