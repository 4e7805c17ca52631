//! The heart: a life that is moved to another instance any number of times, and its twin that isn't.

use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::message::GroupRequest;
use doorbell_core::namespace::Namespace;
use doorbell_core::state::StateError;
use proptest::prelude::*;

use crate::life::{Group, Life, cases, start, steps};

/// Saves, loads into a group of these sizes, saves again.
pub(crate) fn moved<
    const Q: usize,
    const C: usize,
    const N: usize,
    const Q2: usize,
    const C2: usize,
    const N2: usize,
>(
    group: &QueueGroup<Q, C, N>,
    config: GroupConfig,
) -> QueueGroup<Q2, C2, N2> {
    let mut state = vec![0xee; QueueGroup::<Q, C, N>::STATE_BYTES];
    let len = group.save(&mut state).expect("enough room");
    let mut next = QueueGroup::<Q2, C2, N2>::new(config);
    next.load(&state[..len], |_, _| true).expect("a state that was just saved");
    let mut again = vec![0xdd; QueueGroup::<Q2, C2, N2>::STATE_BYTES];
    let len_again = next.save(&mut again).expect("enough room");
    assert_eq!(state[..len], again[..len_again], "saved again it is the same");
    next
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn a_moved_group_does_byte_for_byte_what_it_would_have_done(
        steps in steps(160),
        start in start(),
        moves in proptest::collection::vec(any::<bool>(), 160),
    ) {
        let config = GroupConfig { posted_registers: start.posted, ..GroupConfig::DEFAULT };
        let (mut stays, mut moves_on) = (Life::new(start), Life::new(start));
        for (step, moves) in steps.iter().zip(moves) {
            stays.step(*step);
            moves_on.step(*step);
            if moves {
                // Through a larger engine, and back.
                let larger: QueueGroup<9, 40, 7> = moved(&moves_on.pair.group, config);
                moves_on.pair.group = moved(&larger, config);
            }
            prop_assert_eq!(&stays.told, &moves_on.told);
        }
        let (stayed, moved) = (stays.end(), moves_on.end());
        prop_assert_eq!(stayed.0, moved.0);
        prop_assert!(stayed.1 == moved.1, "guest memory differs");
        prop_assert_eq!(stayed.2, moved.2);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_an_empty_group() {
    let life = Life::new(crate::life::Start { sizes: [8, 8], posted: false });
    let mut state = vec![0; Group::STATE_BYTES];
    let len = life.pair.group.save(&mut state).expect("enough room");
    let state = &state[..len];
    let empty = |group: &dyn Fn(&mut [u8]) -> usize| {
        let mut bytes = vec![0; 4096];
        let len = group(&mut bytes);
        assert!(len < 200, "a group that failed to load holds something");
    };
    let mut few = QueueGroup::<2, 6, 3>::new(GroupConfig::DEFAULT);
    assert_eq!(few.load(state, |_, _| true), Err(StateError::TooSmall("queues")));
    empty(&|bytes| few.save(bytes).expect("enough room"));
    let mut few = QueueGroup::<4, 6, 1>::new(GroupConfig::DEFAULT);
    assert_eq!(few.load(state, |_, _| true), Err(StateError::TooSmall("namespaces")));
    empty(&|bytes| few.save(bytes).expect("enough room"));
    let small = GroupConfig { mdts_bytes: 1 << 19, ..GroupConfig::DEFAULT };
    let refused = QueueGroup::<4, 6, 3>::new(small).load(state, |_, _| true);
    assert!(matches!(refused, Err(StateError::Mismatch(_))), "{refused:?}");
    let has = |nsid, namespace: &Namespace| nsid == 1 && namespace.size_blocks == 8;
    let refused = Group::new(GroupConfig::DEFAULT).load(state, has);
    assert!(matches!(refused, Err(StateError::Mismatch(_))), "{refused:?}");
}

#[test]
fn a_buffer_that_is_too_small_is_not_written_past() {
    let life = Life::new(crate::life::Start { sizes: [8, 8], posted: false });
    let mut state = vec![0; Group::STATE_BYTES];
    let len = life.pair.group.save(&mut state).expect("enough room");
    for short in 0..len {
        let mut buffer = vec![0xee; len];
        assert_eq!(life.pair.group.save(&mut buffer[..short]), Err(StateError::BufferTooSmall));
        assert!(buffer[short..].iter().all(|&byte| byte == 0xee));
    }
}

#[test]
fn an_empty_group_of_any_size_fits_into_any_other() {
    let group = QueueGroup::<16, 256, 16>::new(GroupConfig::DEFAULT);
    let mut small: QueueGroup<1, 1, 1> = moved(&group, GroupConfig::DEFAULT);
    small.handle_request(&doorbell_core::testing::RamMemory::default(), &[], GroupRequest::Reset);
    assert!(small.poll_message().is_some());
}
