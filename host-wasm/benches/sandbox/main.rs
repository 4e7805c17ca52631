//! What the sandbox costs: a command's way through it, instances, memory, and what bad tenants do to the others.
//!
//! `cargo xtask bench sandbox`. Times of commands are processor time of the thread, native and sandboxed in turns on
//! the same input, the median of many rounds.

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
    command::run(&module);
    instances::run(&engine, &path);
    instances::run_runaways(&engine);
    neighbours::run(&engine, &module);
}

/// The value below which `percent` of the values lie.
fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() - 1) as f64 * percent / 100.0;
    values[index.round() as usize]
}
