//! The core's own tests of the queue group, run with a group inside the module, and when the host calls it.
//!
//! The tables of the module have their own sizes; what a test says about them means nothing here.

#[path = "../../../core/tests/group/data.rs"]
mod data;
#[path = "../../../core/tests/group/doorbells.rs"]
mod doorbells;
mod group;
#[path = "../../../core/tests/group/life_cycle.rs"]
mod life_cycle;
#[expect(dead_code, reason = "shared with the sandbox's other tests")]
#[path = "../sandbox/rig.rs"]
mod rig;
mod turns;

use doorbell_core::testing::PairOf;

/// A pair of a driver and a group in the module.
type Pair<const QUEUES: usize, const COMMANDS: usize, const NAMESPACES: usize> = PairOf<group::ModuleGroup>;
