//! States that lie: each is refused, or is one in which nothing panics and no call does unbounded work.

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::message::{Coalescing, DoorbellBuffer, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use doorbell_core::state::{HEADER_BYTES, StateError};
use doorbell_core::tag::Tag;
use doorbell_core::testing::{CountingMemory, RamMemory, seal_state};
use proptest::prelude::*;

use crate::life::{Group, Life, Start, cases, start, steps};
use crate::twin::moved;

const CONFIG: GroupConfig = GroupConfig::DEFAULT;

/// The state of a group after these steps.
fn state_after(start: Start, steps: &[crate::life::Step]) -> Vec<u8> {
    let mut life = Life::new(start);
    steps.iter().for_each(|step| life.step(*step));
    let mut state = vec![0; Group::STATE_BYTES];
    let len = life.pair.group.save(&mut state).expect("enough room");
    state.truncate(len);
    state
}

/// xorshift64*: the same seed gives the same guest.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}

const BYTES: u64 = 1 << 16;

/// Loads a state; where it is accepted, a guest, a controller and a host do anything with the group.
fn load_and_torment(state: &[u8], seed: u64, turns: u32) -> Result<(), StateError> {
    let mut group = Group::new(CONFIG);
    group.load(state, |_, _| true)?;
    let mut random = Random(seed | 1);
    let memory = CountingMemory::new(RamMemory::new(0, BYTES));
    let registers: Vec<_> = (0..10).map(|_| AtomicU32::new(0)).collect();
    for turn in 0..turns {
        memory.take();
        match random.below(12) {
            0..=2 => {
                let value = if random.below(4) == 0 { random.below(1 << 32) } else { random.below(9) };
                registers[random.below(10) as usize].store(value as u32, Ordering::Relaxed);
            }
            3..=4 => {
                let value = random.below(1 << 40) & random.below(1 << 40);
                memory.inner().poke(random.below(BYTES / 8) * 8, &value.to_le_bytes());
            }
            5..=7 => {
                let tag = Tag { slot: random.below(6) as u16, generation: random.below(60) as u32 };
                let status = Status(random.below(3) as u16);
                let _ = group.complete(&memory, tag, status);
                assert!(memory.take() <= 4);
            }
            8 => {
                let _ = group.arm(&memory, &registers, random.below(2) == 0);
                let _ = group.is_level_asserted(&memory, &registers);
                assert!(memory.take() <= 60);
            }
            9 => {
                let request = request(&mut random);
                // Nothing is asked of a group that hasn't answered a reset.
                if !group.is_resetting() || request == GroupRequest::Reset {
                    group.handle_request(&memory, &registers, request);
                }
                assert!(memory.take() <= 200);
            }
            10 => {
                let mut interrupts = 0;
                let now_ns = random.below(u64::MAX);
                while group.poll_interrupt(now_ns).is_some() {
                    interrupts += 1;
                }
                assert!(interrupts <= 4, "one for each completion queue");
                let _ = (group.interrupt_deadline_ns(), group.poll_cancel());
            }
            _ => {
                let mut messages = 0;
                while group.poll_message().is_some() {
                    messages += 1;
                }
                assert!(messages <= 10);
            }
        }
        memory.take();
        let command = group.poll_command(&memory, &registers);
        assert!(memory.take() <= 33 * 10 + 30);
        if let Some(command) = command {
            let _ = group.complete(&memory, command.tag, Status::SUCCESS);
        }
        assert!(group.in_flight() <= 6);
        // Loading checks every invariant there is.
        if turn % 16 == 0 {
            group = moved(&group, CONFIG);
        }
    }
    Ok(())
}

fn request(random: &mut Random) -> GroupRequest {
    let (qid, other) = (random.below(5) as u16, random.below(5) as u16);
    let base = random.below(16) * 4096;
    match random.below(14) {
        0..=1 => {
            let size = random.below(9) as u32 + 2;
            GroupRequest::CreateCompletionQueue { qid, base, size, vector: Some(other), coalesce: true }
        }
        2..=4 => {
            let size = random.below(9) as u32 + 2;
            GroupRequest::CreateSubmissionQueue { qid, cqid: other, base, size, page_shift: 12 }
        }
        5 => GroupRequest::DeleteCompletionQueue { qid },
        6 => GroupRequest::DeleteSubmissionQueue { qid },
        7 => GroupRequest::Abort { sqid: qid, cid: other },
        8 => GroupRequest::SetDoorbellBuffer(DoorbellBuffer { shadow: base, event_idx: base ^ 4096 }),
        9 => GroupRequest::ClearDoorbellBuffer,
        10 => GroupRequest::RemoveNamespace { nsid: qid.into() },
        11 => {
            let namespace = Namespace { size_blocks: 8, block_shift: 9, read_only: false };
            GroupRequest::SetNamespace { nsid: qid.into(), namespace }
        }
        12 => GroupRequest::SetCoalescing(Coalescing { threshold_z: 2, time_100us: 1 }),
        _ => GroupRequest::Reset,
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn a_changed_state_is_refused_or_breaks_nothing(
        steps in steps(120),
        start in start(),
        changes in proptest::collection::vec((any::<u16>(), prop_oneof![0_u8..8, any::<u8>()]), 1..4),
        cut in proptest::option::weighted(0.1, any::<u16>()),
        seed in any::<u64>(),
    ) {
        let mut state = state_after(start, &steps);
        for (at, value) in changes {
            let records = state.len() - HEADER_BYTES;
            state[HEADER_BYTES + usize::from(at) % records] = value;
        }
        if let Some(cut) = cut {
            let len = usize::from(cut) % (state.len() + 20);
            state.resize(len, 0);
        }
        if state.len() >= HEADER_BYTES {
            seal_state(&mut state);
        }
        let _refused_or_not = load_and_torment(&state, seed, 1000);
    }
}

/// Enough of everything: commands in flight, waiting events, shadow doorbells, an interrupt owed.
pub(crate) fn busy() -> Vec<u8> {
    use crate::life::{Command, Step};
    use doorbell_core::testing::{Ring, ShadowRule};
    let ring = Ring::Shadow(ShadowRule::Linux);
    let steps = [
        Step::Configure(0),
        Step::Message,
        Step::Coalescing { threshold_z: 2, time_100us: 1 },
        Step::Message,
        Step::Submit { queue: 3, count: 3, ring, nsid: 1, command: Command::FlushAll },
        Step::Fetch(2),
        Step::Submit { queue: 1, count: 5, ring, nsid: 1, command: Command::Read },
        Step::Submit { queue: 2, count: 2, ring, nsid: 2, command: Command::Write },
        Step::Fetch(3),
        Step::Finish { place: 2, fails: true },
        Step::Fetch(3),
        Step::Finish { place: 3, fails: false },
        Step::Interrupts { later_ns: 7 },
        Step::BadDoorbell { index: 5 },
        Step::Level,
        Step::Abort(4),
    ];
    state_after(Start { sizes: [8, 8], posted: false }, &steps)
}

#[test]
fn every_flipped_bit_is_noticed_or_harmless() {
    let state = busy();
    let mut accepted = 0;
    for bit in 0..state.len() * 8 {
        let mut state = state.clone();
        state[bit / 8] ^= 1 << (bit % 8);
        let damaged = Group::new(CONFIG).load(&state, |_, _| true);
        assert!(damaged.is_err(), "bit {bit}: the checksum doesn't cover it");
        if bit / 8 < HEADER_BYTES {
            continue;
        }
        seal_state(&mut state);
        accepted += usize::from(load_and_torment(&state, bit as u64, 100).is_ok());
    }
    // Most bits are counters, addresses and identifiers, of which any is possible.
    assert!(accepted > state.len() && accepted < state.len() * 8, "{accepted} of {}", state.len() * 8);
}

#[test]
fn other_bytes_are_refused_by_name() {
    let state = busy();
    let load = |state: &[u8]| Group::new(CONFIG).load(state, |_, _| true);
    for len in 0..state.len() {
        assert_eq!(load(&state[..len]), Err(StateError::WrongLength), "{len}");
    }
    let mut longer = state.clone();
    longer.push(0);
    assert_eq!(load(&longer), Err(StateError::WrongLength));
    let changed = |at: usize, value: u8| {
        let mut state = state.clone();
        state[at] = value;
        seal_state(&mut state);
        state
    };
    assert_eq!(load(&changed(0, b'X')), Err(StateError::NotThatState));
    assert_eq!(load(&changed(4, 2)), Err(StateError::UnknownVersion(2)));
    assert_eq!(load(&changed(4, 0)), Err(StateError::UnknownVersion(0)));
    assert_eq!(load(&changed(6, 1)), Err(StateError::NotThatState));
    let mut damaged = state.clone();
    damaged[100] ^= 1;
    assert_eq!(load(&damaged), Err(StateError::WrongChecksum));
    assert_eq!(load(&state), Ok(()));
}

#[test]
fn a_table_of_lies() {
    let state = busy();
    let record = size_of::<doorbell_core::state::group::QueueGroupRecord>();
    // Three submission queues, two completion queues behind the fixed record; offsets are the layout's.
    let submission = HEADER_BYTES + record;
    let completion = submission + 3 * 108;
    let lies: [(&str, usize, &[u8]); 19] = [
        ("a fatal queue where there is no fatal event", HEADER_BYTES + 18, &[1, 0]),
        ("a reserved byte of a submission queue", submission + 7, &[1]),
        ("a burst that is over", HEADER_BYTES + 6, &[32, 0]),
        ("pages of 2 bytes", HEADER_BYTES + 8, &[1]),
        ("a pending deletion of nothing", HEADER_BYTES + 13, &[1, 9, 0]),
        ("an abort of an empty slot", HEADER_BYTES + 13, &[3, 200, 0]),
        ("buffers at odd addresses", HEADER_BYTES + 20, &[1]),
        ("buffers at the end of memory", HEADER_BYTES + 20, &0xffff_ffff_ffff_fff8_u64.to_le_bytes()),
        ("an unknown reply", HEADER_BYTES + 36, &[9]),
        ("a queue in no place", submission, &[200, 0]),
        ("a queue without completion queue", submission + 4, &[3, 0]),
        ("a queue of one entry", submission + 16, &[1, 0, 0, 0]),
        ("a queue of 65,537 entries", submission + 16, &[1, 0, 1, 0]),
        ("a head outside", submission + 20, &[200]),
        ("a tail outside", submission + 24, &[200]),
        ("two queues in a place", submission + 108, &state[submission..submission + 2].to_vec().leak()[..]),
        ("a completion queue at an odd address", completion + 12, &[1]),
        (
            "a full completion queue with commands in flight",
            completion + 24,
            &[state[completion + 28] + 1, 0, 0, 0],
        ),
        ("a flag of 2", completion + 6, &[2]),
    ];
    for (lie, at, bytes) in lies {
        let mut state = state.clone();
        state[at..at + bytes.len()].copy_from_slice(bytes);
        seal_state(&mut state);
        let refused = QueueGroup::<4, 6, 3>::new(CONFIG).load(&state, |_, _| true);
        assert!(refused.is_err(), "{lie}");
    }
}
