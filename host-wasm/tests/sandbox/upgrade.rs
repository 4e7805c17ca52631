//! States between the sandbox and the core's own tables, with commands in flight.

use doorbell_core::controller::Controller;
use doorbell_core::engine::{ControllerEngine, GroupEngine};
use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::register;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::entry::{DataPointer, on_blocks};
use doorbell_core::testing::machine::{CFS, RDY};
use doorbell_wasm::Sandbox;

use crate::rig::{SandboxedMachine, config, module, tenant, upgrade_module};

type NativeController = Controller<16, 64, 32>;
type NativeGroup = QueueGroup<64, 1024, 32>;

/// Moves every part of a machine to native tables and from there to another sandbox.
fn move_over(machine: &mut SandboxedMachine, groups: u16) -> Sandbox {
    let next = Sandbox::new(&upgrade_module(), config(groups));
    let mut bytes = vec![0; NativeController::STATE_BYTES];
    let len = machine.controller.save(&mut bytes).expect("a controller's state");
    let mut native = Box::new(NativeController::new(config(groups).controller));
    native.load(&bytes[..len], |_, _| true).expect("native tables take it");
    let mut again = vec![0; NativeController::STATE_BYTES];
    assert_eq!(native.save(&mut again), Ok(len));
    assert!(again == bytes);
    machine.controller = next.controller().expect("a controller");
    ControllerEngine::load(&mut machine.controller, &again[..len], |_, _| true)
        .expect("the next one takes it");
    for group in &mut machine.groups {
        let mut bytes = vec![0; NativeGroup::STATE_BYTES];
        let len = group.save(&mut bytes).expect("a group's state");
        let in_flight = group.in_flight();
        let mdts_bytes = config(groups).controller.mdts_bytes;
        let mut native = Box::new(NativeGroup::new(GroupConfig { mdts_bytes, posted_registers: false }));
        native.load(&bytes[..len], |_, _| true).expect("native tables take it");
        assert_eq!(native.in_flight(), in_flight);
        let mut again = vec![0; NativeGroup::STATE_BYTES];
        assert_eq!(native.save(&mut again), Ok(len));
        assert!(again == bytes);
        *group = next.group().expect("a group");
        GroupEngine::load(group, &again[..len], |_, _| true).expect("the next one takes it");
        assert_eq!(group.in_flight(), in_flight);
    }
    next
}

#[test]
fn commands_in_flight_end_in_the_engine_that_they_have_moved_to() {
    let (_first, mut machine) = tenant(&upgrade_module(), 2).expect("a tenant");
    assert!(machine.bring_up(4, 64));
    let data = machine.allocate(4096);
    for round in 0..10 {
        machine.hold = true;
        let mut cids = Vec::new();
        for at in 0..40 {
            let pointer = DataPointer { low: data, high: 0, is_sgl: false };
            let qid = 1 + at as u16 % 4;
            cids.push((qid, machine.submit(qid, on_blocks(NvmOpcode::READ, 1, at, 1, pointer))));
        }
        machine.settle();
        assert_eq!(machine.groups.iter().map(GroupEngine::in_flight).sum::<usize>(), 40);
        let sandbox = move_over(&mut machine, 2);
        assert_eq!(machine.csts() & (RDY | CFS), RDY);
        machine.hold = false;
        machine.settle();
        (1..=4).for_each(|qid| machine.reap(qid));
        assert_eq!(machine.taken.len(), 40, "round {round}: {:?}", sandbox.last_fault());
        for entry in machine.taken.drain(..) {
            assert_eq!(entry.status, Status::SUCCESS);
            let place = cids.iter().position(|&(qid, cid)| (qid, cid) == (entry.sqid, entry.cid));
            cids.swap_remove(place.expect("one completion for each command"));
        }
        for qid in 1..=4 {
            assert!(machine.verify(qid, 1, round * 16, 16, round), "round {round}");
        }
        assert_eq!((machine.fatal, sandbox.last_fault()), (0, None));
    }
    assert!(machine.disable());
    assert!(machine.bring_up(1, 4) && machine.verify(1, 1, 0, 8, 99));
}

#[test]
fn a_reset_that_waits_for_commands_ends_after_the_move() {
    let (_first, mut machine) = tenant(&upgrade_module(), 1).expect("a tenant");
    assert!(machine.bring_up(1, 64));
    let data = machine.allocate(4096);
    machine.hold = true;
    let pointer = DataPointer { low: data, high: 0, is_sgl: false };
    machine.submit(1, on_blocks(NvmOpcode::READ, 1, 0, 1, pointer));
    machine.settle();
    // CC.EN 0; the reset waits for the host's command.
    machine.controller.write_register(register::CC, &0_u32.to_le_bytes());
    machine.settle();
    assert!(machine.groups[0].is_resetting());
    let _next = move_over(&mut machine, 1);
    machine.settle();
    assert!(machine.groups[0].is_resetting() && !machine.controller.quiesced());
    assert!(machine.disable());
    assert!(machine.controller.quiesced());
    assert!(machine.bring_up(1, 4) && machine.verify(1, 1, 0, 8, 1));
}

#[test]
fn a_module_without_the_exports_refuses_and_goes_on() {
    let (sandbox, mut machine) = tenant(module(), 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    let mut bytes = vec![0; NativeGroup::STATE_BYTES];
    let refused = machine.groups[0].save(&mut bytes).unwrap_err().to_string();
    assert!(refused.contains("can't be upgraded"), "{refused}");
    assert!(machine.verify(1, 1, 0, 8, 1));
    assert_eq!(sandbox.last_fault(), None);
}
