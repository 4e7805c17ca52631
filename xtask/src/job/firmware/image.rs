//! Building an image, and what must not be in one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::Level;
use super::machine::Machine;
use crate::{bare_metal, command, layout};

/// The tables of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// I/O queue pairs.
    pub(crate) queues: u16,
    /// I/O commands in flight.
    pub(crate) commands: u16,
    /// Entries of the Error Information log.
    pub(crate) errors: u16,
}

/// An image of the package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bin {
    /// With the model host, which verifies.
    Model,
    /// With the model host, which counts instructions.
    Measure,
    /// The controller alone.
    Skeleton,
}

impl Bin {
    const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Measure => "measure",
            Self::Skeleton => "skeleton",
        }
    }
}

/// Parts of symbol names that have no place in an image: an allocator's, and floating point done by software,
/// which would mean that something was compiled for another ABI.
const FORBIDDEN: [&str; 12] = [
    "__rust_alloc",
    "__rust_realloc",
    "__rg_alloc",
    "5alloc5alloc",
    "malloc",
    "__aeabi_f",
    "__aeabi_d",
    "__aeabi_i2f",
    "__addsf3",
    "__adddf3",
    "__muldf3",
    "__floatun",
];

/// Builds an image; the path of its ELF file.
pub(super) fn build(machine: &Machine, bin: Bin, sizes: Sizes, level: Level) -> Result<PathBuf> {
    let output = layout::target().join("firmware");
    let mut cargo = bare_metal::build(machine.target, &output)?;
    let manifest = layout::workspace().join("host-mcu/image/Cargo.toml");
    cargo.args(["--quiet", "--locked", "--release", "--manifest-path"]).arg(manifest);
    cargo.args(["--bin", bin.name()]);
    if bin != Bin::Skeleton {
        cargo.args(["--features", "defmt"]);
    }
    let value = level.to_possible_value().context("every level has a name")?;
    cargo.env("DEFMT_LOG", value.get_name());
    cargo.env("DOORBELL_QUEUES", sizes.queues.to_string());
    cargo.env("DOORBELL_COMMANDS", sizes.commands.to_string());
    cargo.env("DOORBELL_ERRORS", sizes.errors.to_string());
    command::output(&mut cargo)
        .with_context(|| format!("the {} image for {} doesn't build", bin.name(), machine.target))?;
    Ok(output.join(machine.target).join("release").join(bin.name()))
}

/// Fails where an image holds an allocator, software floating point, or is for another float ABI.
pub(super) fn check(machine: &Machine, image: &Path) -> Result<()> {
    let symbols = command::output(Command::new("nm").arg(image))?;
    let found: Vec<&str> = symbols
        .lines()
        .filter(|line| {
            let name = line.rsplit(' ').next().unwrap_or_default();
            FORBIDDEN.iter().any(|forbidden| name.contains(forbidden))
        })
        .collect();
    if !found.is_empty() {
        bail!("{} holds what it must not:\n{}", image.display(), found.join("\n"));
    }
    let header = command::output(Command::new("readelf").arg("-h").arg(image))?;
    let flags = header.lines().find(|line| line.trim_start().starts_with("Flags:")).unwrap_or_default();
    ensure!(
        flags.contains(machine.float_abi),
        "{} is for another float ABI: `{}` has no `{}`",
        image.display(),
        flags.trim(),
        machine.float_abi
    );
    Ok(())
}

/// The bytes of an image's sections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sections {
    /// Instructions, the vector table included.
    pub(super) text: u64,
    pub(super) rodata: u64,
    pub(super) data: u64,
    pub(super) bss: u64,
}

impl Sections {
    /// What has to be in flash.
    pub(super) const fn flash(&self) -> u64 {
        self.text + self.rodata + self.data
    }
}

/// Reads the section headers.
pub(super) fn sections(image: &Path) -> Result<Sections> {
    let printed = command::output(Command::new("size").args(["-A", "-d"]).arg(image))?;
    let mut sections = Sections::default();
    for line in printed.lines() {
        let mut columns = line.split_whitespace();
        let (Some(name), Some(bytes)) = (columns.next(), columns.next()) else { continue };
        let Ok(bytes) = bytes.parse::<u64>() else { continue };
        match name {
            ".vector_table" | ".text" | ".init" | ".trap" => sections.text += bytes,
            ".rodata" | ".srodata" => sections.rodata += bytes,
            ".data" | ".sdata" => sections.data += bytes,
            ".bss" | ".sbss" | ".uninit" => sections.bss += bytes,
            _ => {}
        }
    }
    ensure!(sections.text > 0, "{} has no text", image.display());
    Ok(sections)
}
