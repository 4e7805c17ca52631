//! What may be loaded at all, and what a start function can do.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use doorbell_wasm::{
    Engine, EngineConfig, Fault, LoadError, MAX_MODULE_BYTES, Module, Sandbox, SandboxConfig,
};

use crate::rig::{ENGINE, module_bytes, tenant};

/// Exports with their types, as `ABI.md` lists them.
const EXPORTS: &str = r#"
    (func (export "abi_version") (result i32) i32.const 1)
    (func (export "layout") (result i32) i32.const 0)
    (func (export "controller_init"))
    (func (export "controller_read") (param i32 i32))
    (func (export "controller_write") (param i32 i32))
    (func (export "controller_doorbell") (param i32 i32))
    (func (export "controller_poll") (param i64) (result i32) i32.const 0)
    (func (export "controller_message") (param i32) (result i32) i32.const 0)
    (func (export "controller_reset") (param i32))
    (func (export "controller_unmap") (param i64 i64))
    (func (export "controller_flushed") (param i32))
    (func (export "controller_statistics") (param i32))
    (func (export "controller_counters") (param i32))
    (func (export "controller_busy") (param i64))
    (func (export "controller_temperature") (param i32))
    (func (export "namespace_add") (param i32) (result i64) i64.const 1)
    (func (export "namespace_resize") (param i32 i64) (result i64) i64.const 0)
    (func (export "namespace_remove") (param i32) (result i64) i64.const 0)
    (func (export "group_init") (param i32 i32))
    (func (export "group_request") (result i32) i32.const 0)
    (func (export "group_poll") (param i32 i32 i64))
    (func (export "group_arm") (param i32) (result i32) i32.const 1)
    (func (export "group_level") (result i32) i32.const 0)
    (func (export "group_pause") (param i32))
    (func (export "group_abandon"))
"#;

fn load(imports: &str, memory: &str, more: &str) -> Result<Module, LoadError> {
    let text = format!("(module {imports} {memory} {EXPORTS} {more})");
    Module::new(&ENGINE, &wat::parse_str(text).expect("WAT"))
}

const MEMORY: &str = r#"(memory (export "memory") 2 2)"#;

#[test]
fn a_module_imports_guest_memory_and_nothing_else() {
    assert!(load("", MEMORY, "").is_ok());
    let dma = r#"(import "doorbell" "dma_read" (func (param i64 i32 i32) (result i32)))"#;
    assert!(load(dma, MEMORY, "").is_ok());
    for import in [
        r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#,
        r#"(import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))"#,
        r#"(import "doorbell" "log" (func (param i32 i32)))"#,
        r#"(import "env" "dma_read" (func (param i64 i32 i32) (result i32)))"#,
        r#"(import "doorbell" "dma_read" (func (param i32 i32 i32) (result i32)))"#,
        r#"(import "doorbell" "dma_read" (global i32))"#,
        r#"(import "doorbell" "memory" (memory 1 1))"#,
    ] {
        let memory = if import.contains("(memory") { "" } else { MEMORY };
        assert!(matches!(load(import, memory, ""), Err(LoadError::Import(_))), "{import}");
    }
}

#[test]
fn a_memory_that_could_grow_or_is_too_large_is_refused() {
    for memory in [r#"(memory (export "memory") 2)"#, r#"(memory (export "memory") 2 3)"#] {
        assert!(matches!(load("", memory, ""), Err(LoadError::Memory { .. })), "{memory}");
    }
    let large = load("", r#"(memory (export "memory") 17 17)"#, "").expect_err("more than the pool has");
    assert!(large.to_string().contains("memory"), "{large}");
    for memory in [r#"(memory 2 2)"#, r#"(memory (export "ram") 2 2)"#] {
        assert!(matches!(load("", memory, ""), Err(LoadError::Export("memory"))), "{memory}");
    }
    for memory in [
        r#"(memory (export "memory") 2 2 shared)"#,
        r#"(memory (export "memory") i64 2 2)"#,
        r#"(memory (export "memory") 2 2) (memory 2 2)"#,
    ] {
        assert!(matches!(load("", memory, ""), Err(LoadError::Invalid(_))), "{memory}");
    }
}

#[test]
fn files_that_are_no_modules_are_refused() {
    assert!(matches!(Module::new(&ENGINE, b"\x7fELF"), Err(LoadError::Invalid(_))));
    assert!(matches!(Module::new(&ENGINE, b""), Err(LoadError::Invalid(_))));
    assert!(matches!(Module::new(&ENGINE, &vec![0; MAX_MODULE_BYTES + 1]), Err(LoadError::TooLarge(_))));
    let own = module_bytes();
    for cut in [8, 100, own.len() / 2, own.len() - 1] {
        assert!(Module::new(&ENGINE, &own[..cut]).is_err(), "{cut}");
    }
    let without = wat::parse_str(format!("(module {MEMORY})")).expect("WAT");
    assert!(matches!(Module::new(&ENGINE, &without), Err(LoadError::Export("abi_version"))));
}

#[test]
fn the_project_s_module_imports_exactly_two_functions() {
    let engine = wasmtime::Engine::default();
    let module = wasmtime::Module::from_binary(&engine, &module_bytes()).expect("a module");
    let mut imports: Vec<_> =
        module.imports().map(|import| format!("{}.{}", import.module(), import.name())).collect();
    imports.sort();
    assert_eq!(imports, ["doorbell.dma_read", "doorbell.dma_write"]);
    assert!(module_bytes().len() <= 64 << 10);
}

#[test]
fn an_endless_start_function_is_stopped() {
    let module = load("", MEMORY, "(func $main (loop br 0)) (start $main)").expect("it may be loaded");
    let started = Instant::now();
    let fault = Sandbox::new(&module, SandboxConfig::DEFAULT).controller().expect_err("it never ends");
    assert_eq!(fault, Fault::Overrun);
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    let module = load("", MEMORY, "(func $main unreachable) (start $main)").expect("it may be loaded");
    assert!(matches!(tenant(&module, 1), Err(Fault::Trap(_))));
}

#[test]
fn a_layout_outside_of_the_memory_is_refused() {
    // All zeroes: no magic.
    let module = load("", MEMORY, "").expect("it may be loaded");
    assert_eq!(tenant(&module, 1).expect_err("no layout"), Fault::Interface("layout"));
}

#[test]
fn compiled_modules_are_run_only_by_their_digest() {
    let (mut compiled, digest) = Module::compile(&ENGINE, &module_bytes()).expect("compiles");
    assert!(Module::precompiled(&ENGINE, &compiled, &digest).is_ok());
    let middle = compiled.len() / 2;
    compiled[middle] ^= 1;
    assert!(matches!(Module::precompiled(&ENGINE, &compiled, &digest), Err(LoadError::Digest { .. })));
    compiled[middle] ^= 1;
    let other = Engine::new(EngineConfig { instances: 1, ..EngineConfig::DEFAULT }).expect("an engine");
    assert!(Module::precompiled(&other, &compiled, &digest).is_ok());
}

#[test]
fn compiled_modules_are_kept_in_a_private_folder_only() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("modules");
    let wasm = module_bytes();
    Module::cached(&ENGINE, &wasm, &folder).expect("compiles");
    let files = || std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("a file").path());
    let kept: Vec<_> = files().collect();
    assert_eq!(kept.len(), 1);
    Module::cached(&ENGINE, &wasm, &folder).expect("loads");
    // A file that was damaged is compiled again.
    let good = std::fs::read(&kept[0]).expect("the file");
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    std::fs::write(&kept[0], &bad).expect("writes");
    Module::cached(&ENGINE, &wasm, &folder).expect("compiles again");
    assert_ne!(std::fs::read(&kept[0]).expect("the file"), bad);
    assert_eq!(files().count(), 1);
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    assert!(matches!(Module::cached(&ENGINE, &wasm, &folder), Err(LoadError::CacheNotPrivate(_))));
}
