//! Modules that answer what isn't so: the host compares with what it knows, and ends the tenant.

use doorbell_abi::Field;
use doorbell_core::controller::NamespaceConfig;
use doorbell_core::engine::{ControllerEngine as _, GroupEngine as _};
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::testing::entry::{DataPointer, flush, on_blocks};
use doorbell_wasm::{Fault, Module, Sandbox, SandboxConfig};
use wasm_encoder::{BlockType, Instruction};

use crate::rig::{ENGINE, SandboxedMachine, config, layout, module, tenant};
use crate::sabotage::{at, original, poke, sabotage};

/// Kinds of requests and answers (`ABI.md`).
const CREATE_CQ: u32 = 1;
const REMOVE_NAMESPACE: u32 = 9;
const RESET: u32 = 14;
const DONE: u32 = 32;
const ABORT: u32 = 34;
const RESET_DONE: u32 = 36;

/// A module that answers every request of this kind at once, or with `None` not at all.
fn answers(request: u32, answer: Option<u32>) -> Module {
    let layout = layout();
    let wasm = sabotage("group_request", |scene| {
        let mut body = original(scene, 0);
        let kind = layout[Field::Scratch as usize];
        body.extend([Instruction::I32Const(kind as i32), Instruction::I32Load16U(at(0))]);
        body.extend([Instruction::I32Const(request as i32), Instruction::I32Eq]);
        body.push(Instruction::If(BlockType::Empty));
        body.extend(poke(layout[Field::Turn as usize] + 8, answer.is_some().into()));
        body.extend(poke(layout[Field::Messages as usize], answer.unwrap_or(0)));
        body.push(Instruction::End);
        body
    });
    Module::new(&ENGINE, &wasm).expect("a module that may run")
}

/// A module that makes every command another one: the dword of operation, flags and page size.
fn commands_are(operation: u32) -> Module {
    let layout = layout();
    let wasm = sabotage("group_poll", |scene| {
        let mut body = original(scene, 3);
        body.extend(poke(layout[Field::Commands as usize] + 48, operation));
        body
    });
    Module::new(&ENGINE, &wasm).expect("a module that may run")
}

#[track_caller]
fn ended_by(sandbox: &Sandbox, expected: &str) {
    let fault = sandbox.last_fault();
    assert!(matches!(&fault, Some(Fault::Interface(text)) if text.contains(expected)), "{fault:?}");
}

/// A tenant that is up, and a flush of namespace 1 that the host works on.
fn with_a_command(module: &Module) -> (Sandbox, SandboxedMachine) {
    let (sandbox, mut machine) = tenant(module, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16), "{:?}", sandbox.last_fault());
    machine.hold = true;
    let _ = machine.submit(1, flush(1));
    machine.settle();
    assert_eq!((machine.in_flight.len(), sandbox.last_fault()), (1, None));
    (sandbox, machine)
}

#[test]
fn an_answer_to_another_request_ends_the_tenant() {
    let (sandbox, mut machine) = tenant(&answers(CREATE_CQ, Some(ABORT)), 1).expect("a tenant");
    assert!(!machine.bring_up(1, 16));
    ended_by(&sandbox, "an answer to another request");
}

#[test]
fn a_reset_is_not_over_before_the_commands_of_the_host_are() {
    let (sandbox, mut machine) = with_a_command(&answers(RESET, Some(RESET_DONE)));
    let _ = machine.disable();
    ended_by(&sandbox, "before its commands are");
}

#[test]
fn a_reset_that_has_nothing_to_wait_for_ends() {
    let (sandbox, mut machine) = tenant(&answers(RESET, None), 1).expect("a tenant");
    assert!(machine.bring_up(1, 16), "{:?}", sandbox.last_fault());
    let _ = machine.disable();
    ended_by(&sandbox, "a reset that doesn't end");
}

#[test]
fn a_namespace_is_not_gone_before_the_commands_of_the_host_are() {
    let (sandbox, mut machine) = with_a_command(&answers(REMOVE_NAMESPACE, Some(DONE)));
    machine.controller.remove_namespace(1).expect("a namespace");
    machine.settle();
    ended_by(&sandbox, "a namespace that is gone");
}

#[test]
fn a_flush_of_all_names_no_namespace() {
    let (sandbox, mut machine) = tenant(&commands_are(0x000c_0001), 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    assert!(machine.execute(1, 1, flush(1)).is_none());
    ended_by(&sandbox, "a flush of all with a namespace");
}

#[test]
fn a_read_only_namespace_is_never_written() {
    let (sandbox, mut machine) = tenant(&commands_are(0x000c_0003), 1).expect("a tenant");
    let config = NamespaceConfig {
        size_blocks: 2048,
        block_bytes: 512,
        read_only: true,
        deallocated_reads_zero: true,
        uuid: [9; 16],
        nguid: [0; 16],
        eui64: [0; 8],
    };
    let nsid = machine.controller.add_namespace(None, config).expect("room for a namespace");
    machine.storage.media.insert(nsid, vec![0; 2048 * 512]);
    assert!(machine.bring_up(1, 16));
    let data = DataPointer { low: machine.allocate(4096), high: 0, is_sgl: false };
    assert!(machine.execute(1, 1, on_blocks(NvmOpcode::READ, nsid, 0, 8, data)).is_none());
    ended_by(&sandbox, "a write to a read-only namespace");
}

/// A module may have more slots than the VMM has places.
#[test]
fn a_slot_that_the_vmm_has_no_place_for_ends_the_tenant() {
    let config = SandboxConfig { command_slots: 4, ..config(1) };
    let sandbox = Sandbox::new(module(), config);
    let (controller, group) =
        (sandbox.controller().expect("a controller"), sandbox.group().expect("a group"));
    let mut machine = doorbell_core::testing::Machine::new(controller, vec![group]);
    machine.add_namespace(2048);
    assert!(machine.bring_up(1, 16));
    machine.hold = true;
    for _ in 0..4 {
        let _ = machine.submit(1, flush(1));
    }
    machine.settle();
    assert_eq!((machine.in_flight.len(), sandbox.last_fault()), (4, None));
    let _ = machine.submit(1, flush(1));
    machine.settle();
    ended_by(&sandbox, "a tag beyond the table");
}

#[test]
fn a_command_belongs_to_a_queue() {
    let layout = layout();
    let wasm = sabotage("group_poll", |scene| {
        let mut body = original(scene, 3);
        body.extend(poke(layout[Field::Commands as usize] + 44, 0xffff));
        body
    });
    let stranger = Module::new(&ENGINE, &wasm).expect("a module that may run");
    let (sandbox, mut machine) = tenant(&stranger, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    assert!(machine.execute(1, 1, flush(1)).is_none());
    ended_by(&sandbox, "a queue that isn't there");
}

/// What the module gave out is read when the host takes it; by then it may be something else.
#[test]
fn a_command_that_changes_while_it_waits_is_checked_as_it_is() {
    let layout = layout();
    let second = layout[Field::Commands as usize] + 64;
    let wasm = sabotage("group_statistics", |scene| {
        let mut body = original(scene, 0);
        body.extend(poke(second + 40, 9));
        body
    });
    let changing = Module::new(&ENGINE, &wasm).expect("a module that may run");
    let (sandbox, mut machine) = tenant(&changing, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    machine.hold = true;
    let _ = machine.submit(1, flush(1));
    let _ = machine.submit(1, flush(1));
    let group = &mut machine.groups[0];
    assert!(group.poll_command(&machine.memory, &machine.registers).is_some());
    let _ = group.statistics();
    assert!(group.poll_command(&machine.memory, &machine.registers).is_none());
    ended_by(&sandbox, "a namespace that isn't there");
}

#[test]
fn a_tenant_that_is_killed_is_not_called_for_its_commands_either() {
    let (sandbox, mut machine) = with_a_command(module());
    sandbox.kill();
    let polls = sandbox.statistics().polls;
    machine.hold = false;
    machine.settle();
    assert!(machine.in_flight.is_empty());
    assert_eq!(sandbox.statistics().polls, polls);
}
