//! The sandbox module: built, and checked as a file, because what runs is the file and not its source.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wasmparser::{ExternalKind, Operator, Parser, Payload, TypeRef};

use crate::{bare_metal, command, layout, setup};

/// Bytes that the file may have, with or without the exports of a live upgrade.
const MAX_BYTES: usize = 64 << 10;

/// What it may import, and must.
const IMPORTS: [(&str, &str); 2] = [("doorbell", "dma_read"), ("doorbell", "dma_write")];

/// Texts of panics.
const FORBIDDEN: [&str; 4] = ["panicked", "index out of bounds", "unwrap", "src/"];

/// Builds the module, checks it and puts it to `output`, or to `target/module/doorbell.wasm`. A compiler for it is
/// installed where there is none.
pub(crate) fn run(output: Option<&Path>) -> Result<PathBuf> {
    setup::host::for_module()?;
    let output = output.map_or_else(|| layout::target().join("module/doorbell.wasm"), Path::to_owned);
    make(&output, &[], "s")?;
    let upgrade = output.with_file_name("doorbell-upgrade.wasm");
    make(&upgrade, &["--features", "upgrade"], "z")?;
    Ok(output)
}

/// Builds one, checks it and puts it to `output`.
fn make(output: &Path, features: &[&str], opt_level: &str) -> Result<()> {
    let built = build(features, opt_level)?;
    let bytes = std::fs::read(&built).with_context(|| format!("{} can't be read", built.display()))?;
    let functions = check(&bytes).context("the module isn't what it must be")?;
    std::fs::write(output, &bytes).with_context(|| format!("{} can't be written", output.display()))?;
    println!("{}: {} bytes, {functions} functions, no path that panics", output.display(), bytes.len());
    Ok(())
}

fn build(features: &[&str], opt_level: &str) -> Result<PathBuf> {
    let output = layout::target().join("module");
    let mut cargo = bare_metal::build(bare_metal::WASM, &output)?;
    let manifest = layout::workspace().join("host-wasm/module/Cargo.toml");
    cargo.args(["--quiet", "--locked", "--release", "--manifest-path"]).arg(manifest);
    cargo.args(features).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", opt_level);
    command::output(&mut cargo)?;
    Ok(output.join(bare_metal::WASM).join("release/doorbell_module.wasm"))
}

/// What the check looks at.
#[derive(Default)]
struct Image {
    imports: Vec<(String, String)>,
    imported_functions: u32,
    exported: Vec<u32>,
    /// Functions in tables, which may be called through them.
    in_tables: Vec<u32>,
    start: Option<u32>,
    bodies: Vec<Body>,
    memory: Option<(u64, Option<u64>)>,
}

#[derive(Default)]
struct Body {
    calls: Vec<u32>,
    unreachable: usize,
    indirect: bool,
}

/// Checks size, imports and memory, and that no instruction `unreachable` can be reached from an export. Returns
/// how many functions can.
fn check(bytes: &[u8]) -> Result<usize> {
    ensure!(bytes.len() <= MAX_BYTES, "it has {} bytes, more than {MAX_BYTES}", bytes.len());
    let image = parse(bytes)?;
    let imports: BTreeSet<_> = image.imports.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    ensure!(imports == BTreeSet::from(IMPORTS), "it imports {:?}", image.imports);
    ensure!(image.start.is_none(), "it has a start function");
    match image.memory {
        Some((minimum, Some(maximum))) if minimum == maximum => {}
        other => bail!("its memory can grow: {other:?}"),
    }
    for text in FORBIDDEN {
        let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
        ensure!(!found, "it holds the text {text:?}");
    }
    let mut reached = BTreeSet::new();
    let mut next: Vec<u32> = image.exported.clone();
    while let Some(function) = next.pop() {
        let Some(index) = function.checked_sub(image.imported_functions) else { continue };
        if !reached.insert(function) {
            continue;
        }
        let body = image.bodies.get(index as usize).context("a function without a body")?;
        ensure!(
            body.unreachable == 0,
            "function {function}, which an export reaches, has {} instructions `unreachable`",
            body.unreachable
        );
        next.extend(&body.calls);
        if body.indirect {
            next.extend(&image.in_tables);
        }
    }
    Ok(reached.len())
}

fn parse(bytes: &[u8]) -> Result<Image> {
    let mut image = Image::default();
    for payload in Parser::new(0).parse_all(bytes) {
        match payload? {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import?;
                    ensure!(matches!(import.ty, TypeRef::Func(_)), "it imports more than functions");
                    image.imports.push((import.module.into(), import.name.into()));
                    image.imported_functions += 1;
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    if export.kind == ExternalKind::Func {
                        image.exported.push(export.index);
                    }
                }
            }
            Payload::StartSection { func, .. } => image.start = Some(func),
            Payload::MemorySection(section) => {
                for memory in section {
                    let memory = memory?;
                    image.memory = Some((memory.initial, memory.maximum));
                }
            }
            Payload::ElementSection(section) => {
                for element in section {
                    if let wasmparser::ElementItems::Functions(functions) = element?.items {
                        for function in functions {
                            image.in_tables.push(function?);
                        }
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                let mut found = Body::default();
                for operator in body.get_operators_reader()? {
                    match operator? {
                        Operator::Unreachable => found.unreachable += 1,
                        Operator::Call { function_index }
                        | Operator::ReturnCall { function_index }
                        | Operator::RefFunc { function_index } => found.calls.push(function_index),
                        Operator::CallIndirect { .. } | Operator::ReturnCallIndirect { .. } => {
                            found.indirect = true;
                        }
                        _ => {}
                    }
                }
                image.bodies.push(found);
            }
            _ => {}
        }
    }
    Ok(image)
}
