//! What `controller_init` and `group_init` promise: whatever the instance has done before, its table is a new one.

use doorbell_abi::{ConfigRecord, Field, MessageRecord, NamespaceRecord};
use doorbell_core::controller::{ControllerConfig, NamespaceConfig};
use doorbell_core::message::{GroupMessage, GroupReply, GroupRequest};
use wasmtime::{Engine, Instance, Linker, Memory, Module, Store, WasmParams, WasmResults};
use zerocopy::{FromBytes, IntoBytes};

use crate::rig::{layout, module_bytes};

/// An instance of the project's own module without the host library. Its imports say that all is well.
struct Raw {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
}

impl Raw {
    fn new() -> Self {
        let engine = Engine::default();
        let module = Module::from_binary(&engine, &module_bytes()).expect("a module");
        let mut linker = Linker::new(&engine);
        for import in ["dma_read", "dma_write"] {
            linker.func_wrap("doorbell", import, |_: u64, _: u32, _: u32| 0_u32).expect("an import");
        }
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &module).expect("an instance");
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        Self { store, instance, memory }
    }

    /// Calls an export with a record in the scratch area.
    fn call<P: WasmParams, R: WasmResults>(&mut self, name: &str, parameters: P, scratch: &[u8]) -> R {
        let at = layout()[Field::Scratch as usize] as usize;
        self.memory.write(&mut self.store, at, scratch).expect("room");
        let export = self.instance.get_typed_func(&mut self.store, name).expect("an export");
        export.call(&mut self.store, parameters).expect("no trap")
    }

    /// Linear memory from the tables on: the stack holds what calls have left there.
    fn tables(&self) -> Vec<u8> {
        self.memory.data(&self.store)[layout()[Field::State as usize] as usize..].to_vec()
    }
}

#[test]
fn a_second_init_makes_the_controller_anew() {
    let mut raw = Raw::new();
    let config = ConfigRecord::encode(&ControllerConfig::DEFAULT);
    raw.call::<_, ()>("controller_init", (), config.as_bytes());
    let fresh = raw.tables();
    let namespace = NamespaceRecord::encode(&NamespaceConfig {
        size_blocks: 64,
        block_bytes: 512,
        read_only: false,
        deallocated_reads_zero: false,
        uuid: [7; 16],
        nguid: [0; 16],
        eui64: [0; 8],
    });
    assert_eq!(raw.call::<_, u64>("namespace_add", 1_u32, namespace.as_bytes()), 1);
    assert_ne!(raw.call::<_, u64>("namespace_add", 1_u32, namespace.as_bytes()), 1, "it is there");
    raw.call::<_, ()>("controller_counters", 1_u32, &[0x5a; 80]);
    raw.call::<_, ()>("controller_init", (), config.as_bytes());
    assert!(raw.tables() == fresh, "something is left of the first life");
    assert_eq!(raw.call::<_, u64>("namespace_add", 1_u32, namespace.as_bytes()), 1);
}

#[test]
fn a_second_init_makes_the_group_anew() {
    let mut raw = Raw::new();
    let request = MessageRecord::encode_request(
        0,
        &GroupRequest::CreateCompletionQueue {
            qid: 1,
            base: 0x1000,
            size: 16,
            vector: None,
            coalesce: false,
        },
    );
    let create = |raw: &mut Raw| {
        assert_eq!(raw.call::<_, u32>("group_request", (), request.as_bytes()), 0);
        let at = layout()[Field::Messages as usize] as usize;
        let (record, _) =
            MessageRecord::read_from_prefix(&raw.memory.data(&raw.store)[at..]).expect("a record");
        record.decode_message()
    };
    for _ in 0..3 {
        raw.call::<_, ()>("group_init", (1_u32 << 20, 0_u32), &[]);
        assert_eq!(create(&mut raw), Some(GroupMessage::Reply(GroupReply::Done)));
        // It is there now, so it can't be made again.
        assert!(matches!(create(&mut raw), Some(GroupMessage::Reply(GroupReply::Failed(_)))));
    }
}
