//! The proof that no path of the core panics or allocates: an image that links only if that is so.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{bare_metal, command};

/// Below 2 the optimiser doesn't see that the checks can't fail.
const OPT_LEVELS: [&str; 2] = ["3", "s"];

/// The symbol that only the panic handler refers to.
const MARKER: &str = "a_path_of_the_core_can_panic";

/// Parts of names that have no place in the image.
const FORBIDDEN: [&str; 5] = ["core9panicking", "panic_fmt", "__rust_alloc", "__rg_alloc", "5alloc"];

/// Links the image for every target and level, checks its symbols, and shows that a planted panic is found.
pub(crate) fn run() -> Result<()> {
    covers_every_operation()?;
    println!("{:28} {:>5} {:>8} {:>8} {:>8}", "bytes of the core", "level", "text", "data", "bss");
    for target in bare_metal::TARGETS {
        for level in OPT_LEVELS {
            let image = build(target, level, false).with_context(|| {
                format!("a path of the core may panic or doesn't build ({target}, opt-level {level})")
            })?;
            check_symbols(&image)?;
            println!("{target:28} {level:>5} {}", sizes(&image)?);
            // Where one level finds it the other does: what is planted doesn't depend on the level.
            if level != OPT_LEVELS[0] {
                continue;
            }
            let planted = build(target, level, true);
            let error = planted.err().context("the image links although a panic is planted in it")?;
            ensure!(
                format!("{error:#}").contains(MARKER),
                "the planted panic broke something else: {error:#}"
            );
        }
    }
    Ok(())
}

fn folder() -> PathBuf {
    crate::layout::workspace().join("core/panic-proof")
}

fn build(target: &str, level: &str, planted: bool) -> Result<PathBuf> {
    let output = crate::layout::target().join("panic-proof");
    let mut cargo = bare_metal::build(target, &output)?;
    cargo.args(["--quiet", "--locked", "--release", "--manifest-path"]).arg(folder().join("Cargo.toml"));
    if planted {
        cargo.args(["--features", "planted"]);
    }
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level);
    command::output(&mut cargo)?;
    Ok(output.join(target).join("release/doorbell-panic-proof"))
}

fn check_symbols(image: &Path) -> Result<()> {
    let symbols = command::output(std::process::Command::new("nm").arg(image))?;
    let found: Vec<&str> =
        symbols.lines().filter(|line| FORBIDDEN.iter().any(|name| line.contains(name))).collect();
    if !found.is_empty() {
        bail!("{} holds what it must not:\n{}", image.display(), found.join("\n"));
    }
    Ok(())
}

/// Text, data and bss of the image.
fn sizes(image: &Path) -> Result<String> {
    let printed = command::output(std::process::Command::new("size").arg(image))?;
    let row = printed.lines().nth(1).context("`size` printed no row")?;
    let mut columns = row.split_whitespace();
    let mut next = || columns.next().unwrap_or("?");
    Ok(format!("{:>8} {:>8} {:>8}", next(), next(), next()))
}

/// Every public function of the core that isn't for tests must be called by the image; one that was added later
/// and forgotten would be outside the proof.
fn covers_every_operation() -> Result<()> {
    let image = sources(&folder().join("src"))?;
    let core = sources(&crate::layout::workspace().join("core/src"))?;
    let mut missing = Vec::new();
    for line in core.lines().map(str::trim) {
        // A `const fn` that takes no `&mut` is covered by those that call it, or runs at compile time.
        let Some(rest) = line.strip_prefix("pub fn ") else { continue };
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !image.contains(&format!("{name}(")) {
            missing.push(name);
        }
    }
    ensure!(missing.is_empty(), "core/panic-proof doesn't call: {}", missing.join(", "));
    Ok(())
}

/// All Rust source below a folder but what is for tests.
fn sources(folder: &Path) -> Result<String> {
    let mut text = String::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("{} can't be read", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "testing" && name != "tests" {
            text.push_str(&sources(&path)?);
        } else if name.ends_with(".rs") && !name.starts_with("tests") && name != "sync.rs" {
            let source = std::fs::read_to_string(&path)?;
            // Unit tests come last in a file.
            text.push_str(source.split("#[cfg(test)]").next().unwrap_or_default());
        }
    }
    Ok(text)
}
