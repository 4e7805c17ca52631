//! The sandbox module: built, and checked as a file, because what runs is the file and not its source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wasmparser::{ExternalKind, Operator, Parser, Payload, TypeRef};

use crate::{bare_metal, command, layout, setup};

/// Bytes that the file may have, with or without the exports of a live upgrade.
const MAX_BYTES: usize = 64 << 10;

/// Bytes of constants that it may have. Its tables are many times as long.
const MAX_DATA_BYTES: usize = 1 << 10;

/// What it may import, and must.
const IMPORTS: [(&str, &str); 2] = [("doorbell", "dma_read"), ("doorbell", "dma_write")];

/// Texts of panics.
const FORBIDDEN: [&str; 4] = ["panicked", "index out of bounds", "unwrap", "src/"];

/// Builds the module, checks it and puts it to `output`, or to `target/module/doorbell.wasm`. A compiler for it is
/// installed where there is none.
pub(crate) fn run(output: Option<&Path>) -> Result<PathBuf> {
    setup::host::for_module()?;
    let output = output.map_or_else(|| layout::target().join("module/doorbell.wasm"), Path::to_owned);
    make(&output, &[], None)?;
    let upgrade = output.with_file_name("doorbell-upgrade.wasm");
    make(&upgrade, &["--features", "upgrade"], Some("z"))?;
    Ok(output)
}

/// Builds one, all of it at `opt_level` or as its manifest says, checks it and puts it to `output`.
fn make(output: &Path, features: &[&str], opt_level: Option<&str>) -> Result<()> {
    let built = build(features, opt_level)?;
    let bytes = std::fs::read(&built).with_context(|| format!("{} can't be read", built.display()))?;
    let found = check(&bytes).context("the module isn't what it must be")?;
    std::fs::write(output, &bytes).with_context(|| format!("{} can't be written", output.display()))?;
    println!(
        "{}: {} bytes, {} functions, no path that panics, at most {} of {} bytes of stack",
        output.display(),
        bytes.len(),
        found.functions,
        found.depth_bytes,
        found.stack_bytes
    );
    Ok(())
}

fn build(features: &[&str], opt_level: Option<&str>) -> Result<PathBuf> {
    let output = layout::target().join("module");
    let mut cargo = bare_metal::build(bare_metal::WASM, &output)?;
    let manifest = layout::workspace().join("host-wasm/module/Cargo.toml");
    cargo.args(["--quiet", "--locked", "--release", "--manifest-path"]).arg(manifest);
    cargo.args(features);
    if let Some(level) = opt_level {
        for profile in ["profile.release", "profile.release.package.doorbell-turn"] {
            cargo.args(["--config", &format!("{profile}.opt-level={level:?}")]);
        }
    }
    command::output(&mut cargo)?;
    Ok(output.join(bare_metal::WASM).join("release/doorbell_module.wasm"))
}

/// What the check finds.
struct Found {
    /// Functions that can be reached.
    functions: usize,
    /// Bytes of stack that the deepest chain of calls needs.
    depth_bytes: u64,
    stack_bytes: u64,
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
    /// Where the stack pointer, the first global, begins. Nothing lies below the stack.
    stack_bytes: u64,
    data_bytes: usize,
}

#[derive(Default)]
struct Body {
    calls: Vec<u32>,
    unreachable: usize,
    indirect: bool,
    /// Bytes by which it lowers the stack pointer.
    frame_bytes: u64,
    /// It moves the stack pointer.
    has_frame: bool,
}

/// Checks size, imports and memory, that no instruction `unreachable` can be reached from an export, that the tables
/// are zero bytes, and that the stack can't overflow.
fn check(bytes: &[u8]) -> Result<Found> {
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
    ensure!(
        image.data_bytes <= MAX_DATA_BYTES,
        "{} bytes are initialised, more than {MAX_DATA_BYTES}: is one of the tables not zero bytes?",
        image.data_bytes
    );
    let mut depths = BTreeMap::new();
    let mut depth_bytes = 0;
    for &export in &image.exported {
        depth_bytes = depth_bytes.max(image.depth(export, &mut depths)?);
    }
    let stack_bytes = image.stack_bytes;
    ensure!(
        depth_bytes <= stack_bytes,
        "its deepest call needs {depth_bytes} bytes of stack of {stack_bytes}"
    );
    Ok(Found { functions: depths.len(), depth_bytes, stack_bytes })
}

impl Image {
    /// Bytes of stack that a function and what it calls need; none of them may hold an `unreachable`. `depths` holds what is known, and nothing for a function
    /// that is being looked at.
    fn depth(&self, function: u32, depths: &mut BTreeMap<u32, Option<u64>>) -> Result<u64> {
        let Some(index) = function.checked_sub(self.imported_functions) else { return Ok(0) };
        match depths.insert(function, None) {
            Some(Some(known)) => {
                depths.insert(function, Some(known));
                return Ok(known);
            }
            Some(None) => bail!("function {function} may call itself, so its stack has no bound"),
            None => {}
        }
        let body = self.bodies.get(index as usize).context("a function without a body")?;
        ensure!(
            body.unreachable == 0,
            "function {function}, which an export reaches, has {} instructions `unreachable`",
            body.unreachable
        );
        // One that calls nothing may use what lies below the pointer, and not move it.
        ensure!(
            body.frame_bytes > 0 || !body.has_frame,
            "function {function} doesn't take its stack as compilers do"
        );
        let mut deepest = 0;
        for &callee in body.calls.iter().chain(self.in_tables.iter().filter(|_| body.indirect)) {
            deepest = deepest.max(self.depth(callee, depths)?);
        }
        let depth = deepest + body.frame_bytes;
        depths.insert(function, Some(depth));
        Ok(depth)
    }
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
            Payload::GlobalSection(section) => {
                if let Some(pointer) = section.into_iter().next()
                    && let Operator::I32Const { value } = pointer?.init_expr.get_operators_reader().read()?
                {
                    image.stack_bytes = u64::from(value.cast_unsigned());
                }
            }
            Payload::DataSection(section) => {
                for data in section {
                    image.data_bytes += data?.data.len();
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
                // A frame is taken by `global.get 0; i32.const BYTES; i32.sub`.
                let mut taking = None;
                for operator in body.get_operators_reader()? {
                    let operator = operator?;
                    taking = match (&operator, taking) {
                        (Operator::GlobalGet { global_index: 0 }, _) => Some(0),
                        (Operator::I32Const { value }, Some(0)) => Some(value.cast_unsigned()),
                        (Operator::I32Sub, Some(bytes)) => {
                            found.frame_bytes = found.frame_bytes.max(u64::from(bytes));
                            None
                        }
                        _ => None,
                    };
                    found.has_frame |= matches!(operator, Operator::GlobalSet { global_index: 0 });
                    match operator {
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
