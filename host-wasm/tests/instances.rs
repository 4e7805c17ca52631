//! Instances come and go, in a process of their own so that what they leave behind can be seen.

#[expect(dead_code, reason = "shared with the sandbox's other tests")]
#[path = "sandbox/rig.rs"]
mod rig;

use doorbell_wasm::{Engine, EngineConfig, Module, Sandbox};

use rig::{config, module_bytes};

/// Field case 44.
#[test]
fn twenty_thousand_instances_leave_nothing_behind() {
    let engine = Engine::new(EngineConfig { instances: 64, ..EngineConfig::DEFAULT }).expect("an engine");
    let module = Module::new(&engine, &module_bytes()).expect("the module");
    let mut before = None;
    for count in 0..10_000 {
        // A controller and a group each.
        let sandbox = Sandbox::new(&module, config(1));
        let controller = sandbox.controller().expect("a controller");
        let group = sandbox.group().expect("a group");
        if count == 1000 {
            before = Some(resources());
        }
        drop((controller, group));
    }
    let (memory_kib, descriptors) = resources();
    let (memory_kib_before, descriptors_before) = before.expect("seen on the way");
    assert!(memory_kib < memory_kib_before + 4096, "{memory_kib_before} KiB became {memory_kib} KiB");
    assert_eq!(descriptors, descriptors_before);
}

/// Resident memory in KiB, and open descriptors.
fn resources() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kib = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    (kib, std::fs::read_dir("/proc/self/fd").expect("procfs").count())
}
