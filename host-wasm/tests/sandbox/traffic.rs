//! The project's own module serves a driver as the native core does.

use doorbell_core::testing::machine::{CFS, RDY};

use crate::rig::{module, tenant};

#[test]
fn a_controller_and_its_groups_serve_verified_io() {
    let (sandbox, mut machine) = tenant(module(), 2).expect("a tenant");
    assert!(machine.bring_up(4, 64), "csts {:x} fault {:?}", machine.csts(), sandbox.last_fault());
    for round in 0..200 {
        let qid = 1 + round as u16 % 4;
        assert!(machine.verify(qid, 1, round * 7 % 2032, 1 + round as u32 % 16, round), "round {round}");
    }
    assert!(machine.interrupts > 400);
    assert_eq!(sandbox.last_fault(), None);
    assert!(sandbox.statistics().commands == 400);
    assert!(machine.disable());
    assert_eq!(machine.csts() & (RDY | CFS), 0);
    assert!(machine.bring_up(1, 4));
    assert!(machine.verify(1, 1, 0, 8, 99));
}
