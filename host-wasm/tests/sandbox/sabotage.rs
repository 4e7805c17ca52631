//! The project's own module with one export replaced: it works, until it doesn't.
//!
//! The replacement is a function of the same type that is appended to the file. It may call the original.

use std::borrow::Cow;

use wasm_encoder::{BlockType, Encode, Function, Instruction, MemArg, RawSection, SectionId};
use wasmparser::{ExternalKind, Parser, Payload};

use crate::rig::module_bytes;

/// A place in linear memory that the module doesn't use: the far end of its stack.
const COUNTER: u64 = 64;

/// What the saboteur knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// Index of the function that the export named.
    pub(crate) original: u32,
    /// Index of the replacement itself.
    pub(crate) myself: u32,
    /// Indices of the two imports.
    pub(crate) dma_read: u32,
    pub(crate) dma_write: u32,
}

/// The module's bytes with `export` replaced.
pub(crate) fn sabotage(export: &str, body: impl FnOnce(Scene) -> Vec<Instruction<'static>>) -> Vec<u8> {
    let wasm = module_bytes();
    let mut types = Vec::new();
    let mut imports = 0;
    let mut scene = Scene { original: 0, myself: 0, dma_read: 0, dma_write: 0 };
    for payload in Parser::new(0).parse_all(&wasm) {
        match payload.expect("a module") {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    match import.expect("an import").name {
                        "dma_read" => scene.dma_read = imports,
                        _ => scene.dma_write = imports,
                    }
                    imports += 1;
                }
            }
            Payload::FunctionSection(section) => types = section.into_iter().map(Result::unwrap).collect(),
            Payload::ExportSection(section) => {
                for found in section {
                    let found = found.expect("an export");
                    if found.name == export && found.kind == ExternalKind::Func {
                        scene.original = found.index;
                    }
                }
            }
            _ => {}
        }
    }
    assert_ne!(scene.original, 0, "no export {export}");
    scene.myself = imports + types.len() as u32;
    let mut function = Function::new([]);
    for instruction in body(scene) {
        function.instruction(&instruction);
    }
    function.instruction(&Instruction::End);
    let mut result = wasm_encoder::Module::new();
    for payload in Parser::new(0).parse_all(&wasm) {
        let payload = payload.expect("a module");
        let Some((id, range)) = payload.as_section() else { continue };
        let mut data: Cow<'_, [u8]> = Cow::Borrowed(&wasm[range]);
        if id == SectionId::Function as u8 {
            let mut section = wasm_encoder::FunctionSection::new();
            for &kind in &types {
                section.function(kind);
            }
            section.function(types[(scene.original - imports) as usize]);
            result.section(&section);
            continue;
        } else if id == SectionId::Code as u8 {
            data = Cow::Owned(append_body(&data, &function));
        } else if id == SectionId::Export as u8 {
            let mut section = wasm_encoder::ExportSection::new();
            let Payload::ExportSection(exports) = payload else { unreachable!("the export section") };
            for found in exports {
                let found = found.expect("an export");
                let index = if found.name == export { scene.myself } else { found.index };
                section.export(found.name, wasm_encoder::ExportKind::from(found.kind), index);
            }
            result.section(&section);
            continue;
        } else if matches!(payload, Payload::CodeSectionEntry(_)) {
            continue;
        }
        result.section(&RawSection { id, data: &data });
    }
    result.finish()
}

/// The code section with one more body.
fn append_body(section: &[u8], function: &Function) -> Vec<u8> {
    let (count, rest) = leb(section);
    let mut bytes = Vec::new();
    (count + 1).encode(&mut bytes);
    bytes.extend_from_slice(rest);
    function.encode(&mut bytes);
    bytes
}

fn leb(mut bytes: &[u8]) -> (u32, &[u8]) {
    let mut value = 0;
    let mut shift = 0;
    while let Some((&byte, rest)) = bytes.split_first() {
        bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    (value, bytes)
}

pub(crate) const fn at(offset: u64) -> MemArg {
    MemArg { offset, align: 0, memory_index: 0 }
}

/// Calls the original with the parameters of the replacement.
pub(crate) fn original(scene: Scene, parameters: u32) -> Vec<Instruction<'static>> {
    let mut body: Vec<_> = (0..parameters).map(Instruction::LocalGet).collect();
    body.push(Instruction::Call(scene.original));
    body
}

/// Runs `then` from the call with this number (from 1) of the instance on, and `otherwise` before. Both leave as
/// much on the stack as `result` says.
pub(crate) fn from_call(
    number: i32,
    result: BlockType,
    then: Vec<Instruction<'static>>,
    otherwise: Vec<Instruction<'static>>,
) -> Vec<Instruction<'static>> {
    use Instruction::{Else, End, I32Add, I32Const, I32GeS, I32Load, I32Store, If};
    let mut body =
        vec![I32Const(0), I32Const(0), I32Load(at(COUNTER)), I32Const(1), I32Add, I32Store(at(COUNTER))];
    body.extend([I32Const(0), I32Load(at(COUNTER)), I32Const(number), I32GeS, If(result)]);
    body.extend(then);
    body.push(Else);
    body.extend(otherwise);
    body.push(End);
    body
}

/// An endless loop that has nothing to do.
pub(crate) fn endless() -> Vec<Instruction<'static>> {
    vec![Instruction::Loop(BlockType::Empty), Instruction::Br(0), Instruction::End]
}

/// Stores a dword.
pub(crate) fn poke(address: u32, value: u32) -> Vec<Instruction<'static>> {
    vec![
        Instruction::I32Const(address as i32),
        Instruction::I32Const(value as i32),
        Instruction::I32Store(at(0)),
    ]
}
