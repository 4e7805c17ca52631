//! What the sandbox costs: a command's way through it, instances, memory, and what bad tenants do to the others.
//!
//! `cargo xtask bench sandbox`, with `command`, `instances`, `runaways` or `neighbours` for some of it. Times of commands
//! are processor time of the thread, native and sandboxed in turns on the same input, the median of many rounds.

mod command;
mod flat;
mod instances;
mod neighbours;

use std::path::PathBuf;

use doorbell_wasm::{Engine, EngineConfig, Module};

fn main() {
    let path = std::env::var_os("DOORBELL_MODULE").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/module/doorbell.wasm"),
        PathBuf::from,
    );
    let engine = Engine::new(EngineConfig { instances: 4000, ..EngineConfig::DEFAULT }).expect("an engine");
    let module = Module::from_file(&engine, &path).expect("`cargo xtask module` builds the module");
    // Cargo adds options of its own.
    let parts: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    if wanted("command") {
        command::run(&module);
    }
    if wanted("instances") {
        instances::run(&engine, &path);
    }
    if wanted("runaways") {
        instances::run_runaways(&engine);
    }
    if wanted("neighbours") {
        neighbours::run(&engine, &module);
    }
}

/// The value below which `percent` of the values lie.
fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() - 1) as f64 * percent / 100.0;
    values[index.round() as usize]
}
