//! Many tenants beside each other, some of them bad; and one after the other in the same memory.

use doorbell_core::testing::machine::CFS;
use doorbell_core::testing::{Machine, RamMemory};
use doorbell_wasm::{Engine, EngineConfig, Module, Sandbox};
use wasm_encoder::{BlockType, Instruction};

use crate::rig::{ENGINE, SandboxedMachine, config, layout, module};
use crate::sabotage::{at, endless, from_call, original, poke, sabotage};

/// Bytes of the module's memory (`host-wasm/module/build.rs`).
const MEMORY_BYTES: u32 = 128 << 10;

const PAGE_BYTES: u32 = 4096;

/// Tenants of one process.
const TENANTS: usize = 1000;

/// A machine with as little memory as it needs: a thousand of them exist at once.
fn small(module: &Module) -> (Sandbox, SandboxedMachine) {
    let sandbox = Sandbox::new(module, config(1));
    let controller = sandbox.controller().expect("a controller");
    let group = sandbox.group().expect("a group");
    let mut machine = Machine::new(controller, vec![group]);
    machine.memory = RamMemory::new(doorbell_core::testing::pair::RAM_BASE, 128 << 10);
    machine.add_namespace(64);
    (sandbox, machine)
}

/// Field case 43: whatever bad ones do, the others' data is right. (Their latencies are `cargo xtask bench
/// sandbox`'s.)
#[test]
fn a_thousand_tenants_keep_their_data_apart_while_some_of_them_are_bad() {
    let layout = layout();
    let bad: Vec<Module> = [
        sabotage("group_poll", |scene| from_call(8, BlockType::Empty, endless(), original(scene, 3))),
        sabotage("group_poll", |scene| {
            from_call(8, BlockType::Empty, vec![Instruction::Unreachable], original(scene, 3))
        }),
        sabotage("group_poll", |scene| {
            let mut garbage = original(scene, 3);
            garbage.extend(poke(layout[doorbell_abi::Field::Turn as usize], 0xffff));
            from_call(8, BlockType::Empty, garbage, original(scene, 3))
        }),
        sabotage("group_poll", |scene| {
            // Writes over the memory that it has, all of it.
            let erase = vec![
                Instruction::I32Const(1024),
                Instruction::I32Const(0xa5),
                Instruction::I32Const(MEMORY_BYTES as i32 - 1024),
                Instruction::MemoryFill(0),
            ];
            from_call(8, BlockType::Empty, erase, original(scene, 3))
        }),
    ]
    .iter()
    .map(|wasm| Module::new(&ENGINE, wasm).expect("a module that may run"))
    .collect();
    let mut tenants: Vec<_> = (0..TENANTS)
        .map(|index| small(if index % 10 == 3 { &bad[index / 10 % bad.len()] } else { module() }))
        .collect();
    for (sandbox, machine) in &mut tenants {
        assert!(machine.bring_up(1, 8), "{:?}", sandbox.last_fault());
    }
    for round in 0..4 {
        for (index, (sandbox, machine)) in tenants.iter_mut().enumerate() {
            let seed = (index * 7919 + round) as u64;
            let verified = machine.verify(1, 1, round as u64 * 8, 8, seed);
            assert!(verified || index % 10 == 3, "tenant {index}: {:?}", sandbox.last_fault());
        }
    }
    for (index, (sandbox, machine)) in tenants.iter_mut().enumerate() {
        assert_eq!(sandbox.is_failed(), index % 10 == 3, "tenant {index}: {:?}", sandbox.last_fault());
        assert_eq!(machine.csts() & CFS != 0, index % 10 == 3);
        // Each medium holds what its own tenant wrote last, and nothing of another's.
        if index % 10 != 3 {
            assert!(machine.verify(1, 1, 0, 1, index as u64));
        }
    }
}

/// What an instance leaves in its slot is not there for the next one.
#[test]
fn memory_that_is_used_again_reads_zero() {
    // One slot for each of two instances, so every tenant gets the same memory.
    let engine = Engine::new(EngineConfig { instances: 2, ..EngineConfig::DEFAULT }).expect("an engine");
    let secret = 0x5ec2_e7c0;
    // In every page, where nothing is initialised; in the first that is below what the stack has reached.
    let places: Vec<u32> = (0..MEMORY_BYTES / PAGE_BYTES).map(|page| page * PAGE_BYTES + 2048).collect();
    let mark = sabotage("group_init", |scene| {
        let mut body = Vec::new();
        for place in places.iter().copied() {
            body.extend([Instruction::I32Const(place as i32), Instruction::I32Load(at(0))]);
            // Something is there: the tenant before has left it.
            body.extend([Instruction::If(BlockType::Empty), Instruction::Unreachable, Instruction::End]);
            body.extend(poke(place, secret));
        }
        body.extend(original(scene, 2));
        body
    });
    let mark = Module::new(&engine, &mark).expect("a module that may run");
    for round in 0..50 {
        let sandbox = Sandbox::new(&mark, config(1));
        let group = sandbox.group();
        assert!(group.is_ok(), "round {round}: {:?}", group.err());
    }
}
