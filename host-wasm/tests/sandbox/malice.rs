//! Modules that behave badly: each is stopped or refused in bounded time, its guest sees CSTS.CFS, and the guest's
//! next reset brings it back (field cases 43 and 44).

use std::time::{Duration, Instant};

use doorbell_abi::Field;
use doorbell_core::engine::ControllerEngine as _;
use doorbell_core::spec::admin::AdminOpcode;
use doorbell_core::spec::queue_entry::SubmissionQueueEntry;
use doorbell_core::spec::register::CC;
use doorbell_core::testing::machine::{CFS, RDY};
use doorbell_core::testing::pair::{RAM_BASE, RAM_BYTES};
use doorbell_wasm::{Fault, Module, Sandbox};
use wasm_encoder::{BlockType, Instruction};

use crate::rig::{ENGINE, SandboxedMachine, config, layout, tenant};
use crate::sabotage::{Scene, at, endless, from_call, original, poke, sabotage};

/// Calls of `group_poll` that go well before the trouble begins; bringing up takes fewer.
const GOOD_POLLS: i32 = 40;

/// A group poll that goes wrong from the call with number `GOOD_POLLS` on.
fn bad_poll(body: impl FnOnce(Scene) -> Vec<Instruction<'static>>) -> Module {
    let wasm = sabotage("group_poll", |scene| {
        from_call(GOOD_POLLS, BlockType::Empty, body(scene), original(scene, 3))
    });
    Module::new(&ENGINE, &wasm).expect("a module that may run")
}

/// Works, fails with what `expected` accepts, shows CSTS.CFS, is reset, works again.
#[track_caller]
fn fails_and_comes_back(module: &Module, expected: impl Fn(&Fault) -> bool) {
    let (sandbox, mut machine) = tenant(module, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16), "{:?}", sandbox.last_fault());
    assert!(machine.verify(1, 1, 0, 8, 1));
    let longest = run_until_failed(&sandbox, &mut machine);
    let fault = sandbox.last_fault().expect("a fault");
    assert!(expected(&fault), "{fault:?}");
    // A tick, the quota, a tick; the machine that runs tests is busy.
    assert!(longest < Duration::from_millis(250), "{longest:?}");
    machine.settle();
    assert_eq!(machine.csts() & CFS, CFS);
    assert_eq!(sandbox.statistics().faults, 1);
    // The module fails again after as many polls, so it is given few.
    assert!(reset(&mut machine));
    assert_eq!(machine.csts() & (RDY | CFS), 0);
    assert!(machine.bring_up(1, 16), "{:?}", sandbox.last_fault());
    assert!(machine.verify(1, 1, 0, 8, 2));
    assert_eq!(sandbox.statistics().restarts, 1);
}

fn run_until_failed(sandbox: &Sandbox, machine: &mut SandboxedMachine) -> Duration {
    let mut longest = Duration::ZERO;
    for round in 0..200 {
        let started = Instant::now();
        // Whether it went well is not the question.
        let _ = machine.verify(1, 1, round % 1000, 4, round);
        longest = longest.max(started.elapsed());
        if sandbox.is_failed() {
            return longest;
        }
    }
    panic!("it doesn't fail");
}

/// A controller reset as a driver does it: with patience, since a module that fails is started anew only once a
/// second.
fn reset(machine: &mut SandboxedMachine) -> bool {
    (0..30).any(|_| {
        let down = machine.disable();
        if !down {
            std::thread::sleep(Duration::from_millis(100));
        }
        down
    })
}

fn is_interface(text: &'static str) -> impl Fn(&Fault) -> bool {
    move |fault| matches!(fault, Fault::Interface(found) if found.contains(text))
}

fn is_trap(text: &'static str) -> impl Fn(&Fault) -> bool {
    move |fault| matches!(fault, Fault::Trap(found) if found.contains(text))
}

/// Changes a dword of what a poll has left, where it has left a command.
fn tamper(field: Field, offset: u32, value: u32) -> Module {
    let layout = layout();
    let commands = layout[Field::Turn as usize];
    bad_poll(|scene| {
        let mut body = original(scene, 3);
        body.extend([Instruction::I32Const(commands as i32), Instruction::I32Load(at(0))]);
        body.push(Instruction::If(BlockType::Empty));
        body.extend(poke(layout[field as usize] + offset, value));
        body.push(Instruction::End);
        body
    })
}

#[test]
fn an_endless_loop_in_a_poll_is_stopped() {
    fails_and_comes_back(&bad_poll(|_| endless()), |fault| *fault == Fault::Overrun);
}

#[test]
fn a_trap_ends_the_tenant() {
    fails_and_comes_back(&bad_poll(|_| vec![Instruction::Unreachable]), is_trap("unreachable"));
}

#[test]
fn endless_recursion_ends_at_the_bound_of_the_stack() {
    let recursion = |scene: Scene| {
        let mut body: Vec<_> = (0..3).map(Instruction::LocalGet).collect();
        body.push(Instruction::Call(scene.myself));
        body
    };
    fails_and_comes_back(&bad_poll(recursion), is_trap("stack"));
}

#[test]
fn memory_that_is_asked_for_is_refused_and_doesn_t_exist() {
    let grow = |_| {
        let mut body = vec![Instruction::I32Const(1000), Instruction::MemoryGrow(0)];
        body.extend([Instruction::I32Const(-1), Instruction::I32Ne]);
        // Where it was granted: a loop, which is another fault.
        body.push(Instruction::If(BlockType::Empty));
        body.extend(endless());
        body.push(Instruction::End);
        body.extend([Instruction::I32Const(8 << 20), Instruction::I32Load(at(0)), Instruction::Drop]);
        body
    };
    fails_and_comes_back(&bad_poll(grow), is_trap("out of bounds"));
}

#[test]
fn guest_memory_is_moved_within_the_quota() {
    let flood = |scene: Scene| {
        vec![
            Instruction::Loop(BlockType::Empty),
            Instruction::I64Const(0x10_0000),
            Instruction::I32Const(0x1000),
            Instruction::I32Const(0x8000),
            Instruction::Call(scene.dma_read),
            Instruction::Drop,
            Instruction::Br(0),
            Instruction::End,
        ]
    };
    let stopped = |fault: &Fault| matches!(fault, Fault::DmaQuota | Fault::Overrun);
    fails_and_comes_back(&bad_poll(flood), stopped);
}

#[test]
fn an_import_that_names_memory_outside_of_the_module_ends_the_tenant() {
    let outside = |scene: Scene| {
        vec![
            Instruction::I64Const(0x10_0000),
            Instruction::I32Const(-16),
            Instruction::I32Const(64),
            Instruction::Call(scene.dma_write),
            Instruction::Drop,
        ]
    };
    fails_and_comes_back(&bad_poll(outside), is_interface("memory that isn't there"));
}

/// The module may ask; it gets nothing, and that alone is no fault.
#[test]
fn guest_memory_outside_of_the_guest_is_refused() {
    let layout = layout();
    let module = bad_poll(|scene| {
        let mut body = Vec::new();
        for address in [0, 1 << 40, -64] {
            body.extend([
                Instruction::I64Const(address),
                Instruction::I32Const(layout[Field::Scratch as usize] as i32),
                Instruction::I32Const(64),
                Instruction::Call(scene.dma_read),
                // 1 is the answer that it must get; anything else ends in a trap.
                Instruction::I32Const(1),
                Instruction::I32Ne,
                Instruction::If(BlockType::Empty),
                Instruction::Unreachable,
                Instruction::End,
            ]);
        }
        body.extend(original(scene, 3));
        body
    });
    let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    for round in 0..100 {
        assert!(machine.verify(1, 1, round, 4, round));
    }
    assert_eq!(sandbox.last_fault(), None);
}

/// Tag, generation, offset, length, namespace, operation: all garbage.
#[test]
fn garbage_in_a_command_is_never_carried_out() {
    for (offset, value, expected) in [
        (0, 0x0000_ffff, "a tag beyond the table"),
        (8, 0xffff_fe00, "outside of its namespace"),
        (12, 0x8000_0000, "outside of its namespace"),
        (16, 0x7fff_fe00, "outside of its namespace"),
        (16, 1, "outside of its namespace"),
        (16, 0, "outside of its namespace"),
        (40, 9, "isn't there"),
        (40, 0, "isn't there"),
        (44, 0xffff_0001, "ranges"),
        (48, 0xff, "means nothing"),
        (48, 0x0000_0002, "means nothing"),
        (48, 0x00ff_0002, "means nothing"),
    ] {
        let module = tamper(Field::Commands, offset, value);
        fails_and_comes_back(&module, is_interface(expected));
    }
}

#[test]
fn more_data_than_mdts_is_never_moved() {
    // Within the namespace of 1 MiB, and more than the 64 KiB that are allowed.
    let module = tamper(Field::Commands, 16, 0x2_0000);
    let mut config = config(1);
    config.controller.mdts_bytes = 0x1_0000;
    let sandbox = Sandbox::new(&module, config);
    let controller = sandbox.controller().expect("a controller");
    let group = sandbox.group().expect("a group");
    let mut machine = doorbell_core::testing::Machine::new(controller, vec![group]);
    machine.add_namespace(2048);
    assert!(machine.bring_up(1, 16));
    run_until_failed(&sandbox, &mut machine);
    assert!(is_interface("more data")(&sandbox.last_fault().expect("a fault")));
}

/// The same tag again while the host works on it.
#[test]
fn a_tag_is_given_out_once() {
    let module = tamper(Field::Commands, 0, 0);
    let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    machine.hold = true;
    for _ in 0..GOOD_POLLS + 10 {
        let _ = machine.submit(1, doorbell_core::testing::entry::flush(1));
        machine.step();
        if machine.driver.is_full(1) || sandbox.is_failed() {
            machine.hold = false;
            machine.settle();
            machine.reap(1);
            machine.hold = true;
        }
    }
    assert!(is_interface("a tag that is in use")(&sandbox.last_fault().expect("a fault")));
}

#[test]
fn lists_that_are_too_long_are_not_read() {
    for word in 0..5 {
        let module = tamper(Field::Turn, word * 4, 0xffff);
        fails_and_comes_back(&module, is_interface("longer than its place"));
    }
}

#[test]
fn an_interrupt_that_no_queue_has_is_not_raised() {
    let layout = layout();
    let module = bad_poll(|scene| {
        let mut body = original(scene, 3);
        body.extend(poke(layout[Field::Turn as usize] + 12, 1));
        body.extend(poke(layout[Field::Interrupts as usize], 77));
        body
    });
    fails_and_comes_back(&module, is_interface("an interrupt that no queue has"));
}

#[test]
fn an_answer_to_nothing_is_not_passed_on() {
    let layout = layout();
    let module = bad_poll(|scene| {
        let mut body = original(scene, 3);
        body.extend(poke(layout[Field::Turn as usize] + 8, 1));
        body.extend(poke(layout[Field::Messages as usize], 36));
        body
    });
    fails_and_comes_back(&module, is_interface("an answer to nothing"));
}

/// Events without end cost the host a bounded list, whatever it does with them.
#[test]
fn a_flood_of_events_stays_bounded() {
    let layout = layout();
    let module = bad_poll(|scene| {
        let mut body = original(scene, 3);
        body.extend(poke(layout[Field::Turn as usize] + 8, 16));
        for message in 0..16 {
            body.extend(poke(layout[Field::Messages as usize] + message * 64, 48));
        }
        body
    });
    let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    for round in 0..200 {
        assert!(machine.verify(1, 1, round, 4, round));
    }
    assert_eq!(sandbox.last_fault(), None);
}

/// Field case 44: the data is there, the completion never comes, and the driver is told by CSTS.CFS.
#[test]
fn a_trap_between_the_data_and_its_completion_posts_nothing() {
    let module = bad_poll(|scene| {
        let mut body =
            vec![Instruction::LocalGet(0), Instruction::If(BlockType::Empty), Instruction::Unreachable];
        body.push(Instruction::End);
        body.extend(original(scene, 3));
        body
    });
    fails_and_comes_back(&module, is_trap("unreachable"));
}

/// A trap after the completions were staged posts none of them.
#[test]
fn a_trap_at_the_end_of_a_poll_undoes_what_it_has_staged() {
    let module = bad_poll(|scene| {
        let mut body = original(scene, 3);
        body.push(Instruction::Unreachable);
        body
    });
    let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    let mut good = 0;
    while machine.verify(1, 1, 0, 4, good) {
        good += 1;
    }
    assert!(good > 5 && sandbox.is_failed());
    machine.settle();
    machine.reap(1);
    assert!(machine.taken.is_empty(), "a completion of a poll that failed");
}

#[test]
fn endless_loops_anywhere_in_the_controller_are_stopped() {
    for (export, parameters, calls, result) in [
        ("controller_read", 2, 60, BlockType::Empty),
        ("controller_write", 2, 20, BlockType::Empty),
        ("controller_poll", 1, 60, BlockType::Result(wasm_encoder::ValType::I32)),
        ("controller_message", 1, 8, BlockType::Result(wasm_encoder::ValType::I32)),
    ] {
        let wasm = sabotage(export, |scene| {
            let mut then = endless();
            then.push(Instruction::Unreachable);
            from_call(calls, result, then, original(scene, parameters))
        });
        let module = Module::new(&ENGINE, &wasm).expect("a module that may run");
        let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
        assert!(machine.bring_up(1, 16), "{export}");
        let started = Instant::now();
        for round in 0..200 {
            let _ = machine.csts();
            let _ = machine.admin(smart_log());
            // What is written is what is there.
            machine.controller.write_register(CC, &0x0046_0001_u32.to_le_bytes());
            if sandbox.is_failed() {
                break;
            }
            assert!(round < 199, "{export}: it doesn't fail");
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{export}");
        assert_eq!(sandbox.last_fault(), Some(Fault::Overrun), "{export}");
        assert_eq!(machine.csts() & CFS, CFS, "{export}");
        machine.settle();
        assert!(reset(&mut machine), "{export}");
        assert!(machine.bring_up(1, 16), "{export}");
        assert!(machine.verify(1, 1, 0, 8, 2), "{export}");
    }
}

/// Get Log Page, SMART, which asks every group for its statistics.
fn smart_log() -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        opcode: AdminOpcode::GET_LOG_PAGE.0,
        nsid: u32::MAX.into(),
        prp1: (RAM_BASE + RAM_BYTES - 4096).into(),
        cdw10: (2 | 127 << 16).into(),
        ..SubmissionQueueEntry::default()
    }
}

#[test]
fn a_controller_that_floods_or_talks_nonsense_is_stopped() {
    let layout = layout();
    let (state, outputs) = (layout[Field::State as usize], layout[Field::Outputs as usize]);
    for (pokes, expected) in [
        (vec![(state + 24, 0xffff)], "longer than its place"),
        (vec![(state + 24, 1), (outputs, 999)], "means nothing"),
        // A completion queue with an identifier that no host has room for.
        (vec![(state + 24, 1), (outputs, 0xffff_0001), (outputs + 8, 16), (outputs + 12, 0)], "out of range"),
        // A group that isn't there.
        (vec![(state + 24, 1), (outputs, 13), (outputs + 12, 5)], "a group that isn't there"),
        // Interrupt 5.
        (vec![(state + 24, 1), (outputs, 5 << 16 | 64)], "an interrupt that no queue has"),
        // A namespace of another shape.
        (vec![(state + 24, 1), (outputs, 12 << 16 | 8), (outputs + 8, 1), (outputs + 12, 0)], "out of range"),
        // A namespace that isn't there is gone.
        (vec![(state + 24, 1), (outputs, 68), (outputs + 8, 7)], "isn't there"),
    ] {
        let wasm = sabotage("controller_poll", |scene| {
            let mut then = original(scene, 1);
            for &(address, value) in &pokes {
                then.extend(poke(address, value));
            }
            from_call(30, BlockType::Result(wasm_encoder::ValType::I32), then, original(scene, 1))
        });
        let module = Module::new(&ENGINE, &wasm).expect("a module that may run");
        let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
        assert!(machine.bring_up(1, 16), "{:?}", sandbox.last_fault());
        for _ in 0..100 {
            machine.step();
        }
        let fault = sandbox.last_fault();
        assert!(matches!(&fault, Some(Fault::Interface(found)) if found.contains(expected)), "{fault:?}");
        assert_eq!(machine.csts() & CFS, CFS);
        assert!(reset(&mut machine));
    }
}

/// A module that fails over and over is started anew once a second and no more often.
#[test]
fn fresh_starts_are_rationed() {
    let module = bad_poll(|_| vec![Instruction::Unreachable]);
    let (sandbox, mut machine) = tenant(&module, 1).expect("a tenant");
    let started = Instant::now();
    let mut lives = 0;
    while started.elapsed() < Duration::from_millis(2500) {
        if machine.disable() && machine.bring_up(1, 16) {
            lives += 1;
            let _ = run_until_failed(&sandbox, &mut machine);
            machine.settle();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!((2..=4).contains(&lives), "{lives} lives");
}

#[test]
fn a_tenant_that_is_killed_stays_dead() {
    let (sandbox, mut machine) = tenant(crate::rig::module(), 1).expect("a tenant");
    assert!(machine.bring_up(1, 16));
    sandbox.kill();
    machine.settle();
    assert_eq!(machine.csts() & CFS, CFS);
    assert_eq!(sandbox.last_fault(), Some(Fault::Killed));
    assert!(!machine.disable());
}
