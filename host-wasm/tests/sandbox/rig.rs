//! Machines whose controller and groups are sandboxed.

use std::path::PathBuf;
use std::sync::LazyLock;

use doorbell_core::controller::ControllerConfig;
use doorbell_core::testing::Machine;
use doorbell_wasm::{
    Engine, EngineConfig, Fault, Module, Sandbox, SandboxConfig, SandboxedController, SandboxedGroup,
};

pub(crate) type SandboxedMachine = Machine<SandboxedController, SandboxedGroup>;

pub(crate) static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let config = EngineConfig { instances: 3000, ..EngineConfig::DEFAULT };
    Engine::new(config).expect("an engine")
});

static MODULE: LazyLock<Module> =
    LazyLock::new(|| Module::new(&ENGINE, &module_bytes()).expect("the module"));

/// The project's own module.
pub(crate) fn module() -> &'static Module {
    &MODULE
}

/// The one with the exports of a live upgrade, beside it.
pub(crate) fn upgrade_module() -> Module {
    static MODULE: LazyLock<Module> = LazyLock::new(|| {
        let path = module_path().with_file_name("doorbell-upgrade.wasm");
        let bytes = std::fs::read(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask module` builds it", path.display()));
        Module::new(&ENGINE, &bytes).expect("the module")
    });
    MODULE.clone()
}

fn module_path() -> PathBuf {
    std::env::var_os("DOORBELL_MODULE").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/module/doorbell.wasm"),
        PathBuf::from,
    )
}

/// Its bytes.
pub(crate) fn module_bytes() -> Vec<u8> {
    let path = module_path();
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask module` builds it, DOORBELL_MODULE names another", path.display())
    })
}

pub(crate) fn config(groups: u16) -> SandboxConfig {
    SandboxConfig {
        controller: ControllerConfig { groups, io_queues: 8, ..ControllerConfig::DEFAULT },
        ..SandboxConfig::DEFAULT
    }
}

/// A tenant that runs `module`, with a namespace of 2,048 blocks.
pub(crate) fn tenant(module: &Module, groups: u16) -> Result<(Sandbox, SandboxedMachine), Fault> {
    let sandbox = Sandbox::new(module, config(groups));
    let controller = sandbox.controller()?;
    let groups: Result<Vec<_>, _> = (0..groups).map(|_| sandbox.group()).collect();
    let mut machine = Machine::new(controller, groups?);
    machine.add_namespace(2048);
    Ok((sandbox, machine))
}

/// The layout table of the project's own module.
pub(crate) fn layout() -> [u32; doorbell_abi::LAYOUT_WORDS] {
    static LAYOUT: LazyLock<[u32; doorbell_abi::LAYOUT_WORDS]> = LazyLock::new(|| {
        let engine = wasmtime::Engine::default();
        let module = wasmtime::Module::from_binary(&engine, &module_bytes()).expect("a module");
        let mut linker = wasmtime::Linker::new(&engine);
        for import in ["dma_read", "dma_write"] {
            linker.func_wrap("doorbell", import, |_: u64, _: u32, _: u32| 1_u32).expect("an import");
        }
        let mut store = wasmtime::Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &module).expect("an instance");
        let layout = instance.get_typed_func::<(), u32>(&mut store, "layout").expect("an export");
        let at = layout.call(&mut store, ()).expect("an address") as usize;
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        let bytes = &memory.data(&store)[at..];
        std::array::from_fn(|word| {
            u32::from_le_bytes(bytes[word * 4..word * 4 + 4].try_into().expect("four bytes"))
        })
    });
    *LAYOUT
}
