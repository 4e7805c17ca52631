//! Random drivers against the queue group: well-behaved ones lose nothing, hostile ones break nothing.

use std::collections::{BTreeMap, VecDeque};

use doorbell_core::group::{Armed, GroupConfig, QueueGroup};
use doorbell_core::message::{DoorbellBuffer, GroupReply, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::status::Status;
use doorbell_core::testing::entry::{DataPointer, flush, on_blocks};
use doorbell_core::testing::prp::{self, ListPages};
use doorbell_core::testing::sgl::{self, Descriptor};
use doorbell_core::testing::{CountingMemory, RamMemory, Ring, ShadowRule, Storage};
use proptest::prelude::*;

use crate::Pair;

/// `PROPTEST_CASES` or this many.
fn cases(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// What happens next between a driver and the device.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Some entries are written and rung by one way.
    Submit { queue: u16, count: u8, ring: Ring },
    /// The device fetches.
    Fetch,
    /// One command ends, wherever it is in the order.
    Finish(u8),
    /// The driver takes some completions and rings the head.
    Reap { queue: u16, count: u8, ring: Ring },
    /// The device wants to sleep.
    Sleep,
    /// Doorbell Buffer Config on other pages.
    Configure,
    /// A posted register write arrives.
    Deliver,
}

fn steps(rings: Vec<Ring>) -> impl Strategy<Value = Vec<Step>> {
    let ring = proptest::sample::select(rings);
    let step = prop_oneof![
        6 => (1_u16..4, 1_u8..12, ring.clone())
            .prop_map(|(queue, count, ring)| Step::Submit { queue, count, ring }),
        6 => Just(Step::Fetch),
        12 => any::<u8>().prop_map(Step::Finish),
        6 => (1_u16..3, 1_u8..12, ring).prop_map(|(queue, count, ring)| Step::Reap { queue, count, ring }),
        4 => Just(Step::Sleep),
        1 => Just(Step::Configure),
        3 => Just(Step::Deliver),
    ];
    proptest::collection::vec(step, 1..200)
}

type Three = Pair<4, 6, 2>;

/// Runs the steps, then lets everything drain; every command must have completed exactly once.
fn play(steps: &[Step], sizes: [u32; 2], shadow_at: Option<usize>, posted: bool, final_ring: Ring) {
    let mut pair = Three::new(GroupConfig { posted_registers: posted, ..GroupConfig::DEFAULT });
    pair.add_namespace(1, 8, 9);
    pair.create_cq(1, sizes[0], Some(1));
    pair.create_cq(2, sizes[1], Some(2));
    pair.create_sq(1, 1, sizes[1]);
    pair.create_sq(2, 1, sizes[0]);
    pair.create_sq(3, 2, 16);
    pair.driver.posted = posted.then(VecDeque::new);
    let pages: Vec<u64> = (0..4).map(|_| pair.allocate(4096)).collect();
    let configure = |pair: &mut Three, turn: usize| {
        // The command comes through the admin queue, whose doorbell is behind all posted writes.
        while pair.deliver() {}
        let buffer = DoorbellBuffer { shadow: pages[turn % 2 * 2], event_idx: pages[turn % 2 * 2 + 1] };
        assert_eq!(pair.request(GroupRequest::SetDoorbellBuffer(buffer)), Some(GroupReply::Done));
        pair.driver.buffer = Some(buffer);
    };
    let mut outstanding: BTreeMap<(u16, u16), u32> = BTreeMap::new();
    let mut taken = Vec::new();
    for (turn, step) in steps.iter().enumerate() {
        if shadow_at == Some(turn) {
            configure(&mut pair, 0);
        }
        match *step {
            Step::Submit { queue, count, ring } => {
                let mut pushed = false;
                for _ in 0..count {
                    if pair.driver.is_full(queue) {
                        break;
                    }
                    let cid = pair.push(queue, flush(1));
                    *outstanding.entry((queue, cid)).or_default() += 1;
                    pushed = true;
                }
                if pushed {
                    pair.ring_tail(queue, ring);
                }
            }
            Step::Fetch => {
                pair.fetch();
            }
            Step::Finish(place) if !pair.in_flight.is_empty() && !pair.asleep => {
                let place = usize::from(place) % pair.in_flight.len();
                let _ = pair.finish(place);
            }
            Step::Reap { queue, count, ring } => {
                let before = taken.len();
                for _ in 0..count {
                    taken.extend(pair.driver.pop(&pair.memory, queue));
                }
                if taken.len() > before {
                    pair.ring_head(queue, ring);
                }
            }
            Step::Sleep if pair.in_flight.is_empty() => {
                pair.sleep();
            }
            // A driver changes pages only while nothing is under way; the positions go on.
            Step::Configure if pair.driver.buffer.is_some() && !posted => configure(&mut pair, turn),
            Step::Deliver => {
                pair.deliver();
            }
            _ => {}
        }
    }
    // Everything is delivered, nothing more is submitted: each command must come out by itself.
    pair.driver.ring = final_ring;
    loop {
        let got = pair.run();
        taken.extend(&got);
        if got.is_empty() && !pair.deliver() {
            break;
        }
    }
    for entry in taken {
        assert_eq!(entry.status, Status::SUCCESS);
        let count = outstanding.get_mut(&(entry.sqid, entry.cid)).expect("a command that was submitted");
        *count = count.checked_sub(1).expect("a command completes once");
    }
    assert!(outstanding.values().all(|&count| count == 0), "commands were lost: {outstanding:?}");
    assert!(pair.events.is_empty(), "{:?}", pair.events);
}

proptest! {
    #![proptest_config(cases(400))]

    /// Field case 4: any mix of ways, on every doorbell.
    #[test]
    fn any_mix_of_shadow_and_register_loses_and_repeats_nothing(
        steps in steps(vec![
            Ring::Register, Ring::Both, Ring::Shadow(ShadowRule::Linux), Ring::Shadow(ShadowRule::Spdk),
        ]),
        sizes in proptest::sample::select(vec![[2, 2], [3, 8], [8, 3], [64, 5], [5, 64]]),
        shadow_at in proptest::option::of(0_usize..20),
        last in proptest::sample::select(vec![Ring::Register, Ring::Shadow(ShadowRule::Linux)]),
    ) {
        play(&steps, sizes, shadow_at, false, last);
    }

    /// A driver that keeps to one rule, over register writes that arrive when they like.
    #[test]
    fn posted_register_writes_lose_and_repeat_nothing(
        steps in steps(vec![Ring::Shadow(ShadowRule::Linux)]),
        spdk in any::<bool>(),
        sizes in proptest::sample::select(vec![[2, 2], [3, 8], [8, 3], [64, 5], [5, 64]]),
        shadow_at in proptest::option::of(0_usize..20),
    ) {
        let rule = if spdk { ShadowRule::Spdk } else { ShadowRule::Linux };
        let steps: Vec<Step> = steps.into_iter().map(|step| match step {
            Step::Submit { queue, count, .. } => Step::Submit { queue, count, ring: Ring::Shadow(rule) },
            Step::Reap { queue, count, .. } => Step::Reap { queue, count, ring: Ring::Shadow(rule) },
            step => step,
        }).collect();
        play(&steps, sizes, shadow_at, true, Ring::Shadow(rule));
    }
}

/// One transfer with its layout in guest memory.
#[derive(Clone, Debug)]
enum Layout {
    Prp {
        order: Vec<usize>,
        offset: u64,
        list_offset: u64,
    },
    /// Pieces as page, offset in it, and whether it is a bit bucket; and where segments end.
    Sgl {
        pieces: Vec<(usize, u16, bool)>,
        cuts: Vec<bool>,
    },
}

const BLOCKS: u64 = 4096;
const PAGES: usize = 600;

fn layout() -> impl Strategy<Value = (u32, Layout)> {
    let pages = Just((0..PAGES).collect::<Vec<_>>());
    let order = prop_oneof![pages.clone().prop_shuffle(), pages];
    let prp = (1_u32..=2048, order, 0_u64..1024, 0_u64..512).prop_map(|(blocks, order, offset, list)| {
        (blocks, Layout::Prp { order, offset: offset * 4, list_offset: list * 8 })
    });
    let piece = (0..PAGES, any::<u16>(), proptest::bool::weighted(0.2));
    let sgl = (1_u32..=256, proptest::collection::vec((piece, any::<bool>()), 1..60)).prop_map(
        |(blocks, pieces)| {
            let (pieces, cuts) = pieces.into_iter().unzip();
            (blocks, Layout::Sgl { pieces, cuts })
        },
    );
    prop_oneof![prp, sgl]
}

/// Puts the layout into guest memory; the pieces in order as address (none: bit bucket) and length.
fn place(
    memory: &RamMemory,
    base: u64,
    lists: u64,
    blocks: u32,
    layout: &Layout,
) -> (DataPointer, Vec<(Option<u64>, u64)>) {
    let len = u64::from(blocks) * 512;
    match layout {
        Layout::Prp { order, offset, list_offset } => {
            let pages: Vec<u64> = order.iter().map(|&page| base + page as u64 * 4096).collect();
            let free = ListPages {
                pages: (0..4).map(|page| lists + page * 4096).collect(),
                offset_bytes: *list_offset,
            };
            let pointer = prp::build(memory, &pages, *offset, len, free);
            let pieces = prp::pieces(&pages, *offset, len).into_iter();
            (pointer, pieces.map(|(address, len)| (Some(address), len)).collect())
        }
        Layout::Sgl { pieces, cuts } => {
            // The bytes are dealt out evenly, the rest goes to the last piece. Each piece has a place of its own.
            let share = len / pieces.len() as u64;
            let room = PAGES as u64 * 4096 / pieces.len() as u64;
            let mut expected = Vec::new();
            let mut segments = vec![(lists, Vec::new())];
            for (index, ((_, offset, bucket), cut)) in pieces.iter().zip(cuts).enumerate() {
                let is_last = index + 1 == pieces.len();
                let now = if is_last { len - share * (pieces.len() as u64 - 1) } else { share };
                let slack = room.saturating_sub(now).max(1);
                let address = base + index as u64 * room + u64::from(*offset) % slack;
                let descriptor = if *bucket {
                    Descriptor::BitBucket(now as u32)
                } else {
                    Descriptor::Data(address, now as u32)
                };
                let at = segments.len() as u64;
                segments.last_mut().unwrap().1.push(descriptor);
                if *cut && !is_last {
                    segments.push((lists + at * 2048, Vec::new()));
                }
                if now > 0 {
                    expected.push(((!bucket).then_some(address), now));
                }
            }
            (sgl::build(memory, &segments), expected)
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]

    /// The walk against a model of its own: every byte is where the driver said, and no other byte is touched.
    #[test]
    fn random_layouts_move_exactly_their_bytes((blocks, layout) in layout(), slba in 0_u64..BLOCKS - 2048) {
        let mut pair = Pair::<4, 8, 2>::with_queues(8, 8);
        pair.add_namespace(1, BLOCKS, 9);
        let base = pair.allocate(PAGES as u64 * 4096);
        let lists = pair.allocate(128 * 2048);
        pair.memory.fill(base, PAGES as u64 * 4096, 0xc3);
        let (pointer, pieces) = place(&pair.memory, base, lists, blocks, &layout);
        let at = slba as usize * 512;
        let mut expected = vec![0xc3; PAGES * 4096];
        let mut from = at;
        for (address, len) in &pieces {
            let len = *len as usize;
            if let Some(address) = address {
                let to = (address - base) as usize;
                expected[to..to + len].copy_from_slice(&pair.storage.media[&1][from..from + len]);
            }
            from += len;
        }
        prop_assert_eq!(from - at, blocks as usize * 512);
        prop_assert_eq!(pair.execute(1, on_blocks(NvmOpcode::READ, 1, slba, blocks, pointer)), Status::SUCCESS);
        prop_assert!(pair.memory.peek(base, expected.len()) == expected);
        if pieces.iter().all(|(address, _)| address.is_some()) {
            prop_assert_eq!(pair.execute(1, on_blocks(NvmOpcode::COMPARE, 1, slba, blocks, pointer)), Status::SUCCESS);
            prop_assert_eq!(pair.execute(1, on_blocks(NvmOpcode::WRITE, 1, 0, blocks, pointer)), Status::SUCCESS);
            let medium = &pair.storage.media[&1];
            let bytes = blocks as usize * 512;
            let moved = if at >= bytes { medium[..bytes] == medium[at..at + bytes] } else { true };
            prop_assert!(moved);
        }
    }
}

const HOSTILE_BYTES: u64 = 1 << 16;

/// What a hostile guest and a careless controller do.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Register { index: u32, value: u32 },
    Memory { at: u64, value: u64 },
    Complete(u16),
    Request { kind: u8, qid: u16, other: u16, page: u8, size: u32 },
    Arm(bool),
    Pause(bool),
}

fn attack() -> impl Strategy<Value = Attack> {
    let value = prop_oneof![0_u32..20, any::<u32>()];
    let word = prop_oneof![
        any::<u64>(),
        // Addresses in RAM, descriptors, plausible commands.
        (0..HOSTILE_BYTES).prop_map(|at| at & !3),
        (0_u64..64, 0_u64..=255).prop_map(|(len, kind)| (len * 16) | (kind << 56)),
        (0_u64..=0x0f, 0_u64..4, 0_u64..4, 0_u64..3)
            .prop_map(|(opcode, psdt, cid, nsid)| opcode | psdt << 14 | cid << 16 | nsid << 32),
    ];
    let size = prop_oneof![2_u32..16, Just(65_536)];
    prop_oneof![
        6 => (0_u32..20, value).prop_map(|(index, value)| Attack::Register { index, value }),
        12 => (0..HOSTILE_BYTES / 8, word).prop_map(|(at, value)| Attack::Memory { at: at * 8, value }),
        4 => any::<u16>().prop_map(Attack::Complete),
        3 => (0_u8..12, 0_u16..6, 0_u16..6, 0_u8..20, size)
            .prop_map(|(kind, qid, other, page, size)| Attack::Request { kind, qid, other, page, size }),
        2 => any::<bool>().prop_map(Attack::Arm),
        1 => any::<bool>().prop_map(Attack::Pause),
    ]
}

proptest! {
    #![proptest_config(cases(400))]

    /// Random entries, doorbells, memory and requests: no panic, and every call touches memory boundedly often.
    #[test]
    fn a_hostile_guest_costs_bounded_work_and_never_a_panic(
        seed in proptest::collection::vec(any::<u8>(), HOSTILE_BYTES as usize / 16),
        attacks in proptest::collection::vec(attack(), 1..300),
    ) {
        let ram = RamMemory::new(0, HOSTILE_BYTES);
        ram.poke(0, &seed);
        let memory = CountingMemory::new(ram);
        let registers: Vec<_> = (0..10).map(|_| std::sync::atomic::AtomicU32::new(0)).collect();
        let mut group = QueueGroup::<3, 5, 2>::new(GroupConfig::DEFAULT);
        let mut storage = Storage::default();
        for (nsid, size_blocks) in [(1, 64), (2, 8)] {
            let namespace = Namespace { size_blocks, block_shift: 9, read_only: nsid == 2 };
            group.handle_request(&memory, &registers, GroupRequest::SetNamespace { nsid, namespace });
            storage.media.insert(nsid, vec![0; size_blocks as usize * 512]);
        }
        let mut in_flight = Vec::new();
        for attack in attacks {
            match attack {
                Attack::Register { index, value } => {
                    if let Some(register) = registers.get(index as usize) {
                        register.store(value, std::sync::atomic::Ordering::Relaxed);
                    }
                }
                Attack::Memory { at, value } => memory.inner().poke(at, &value.to_le_bytes()),
                Attack::Complete(place) if !in_flight.is_empty() => {
                    let place = usize::from(place) % in_flight.len();
                    let command: doorbell_core::command::IoCommand = in_flight.remove(place);
                    memory.take();
                    let status = match group.is_resetting() {
                        true => Status::SUCCESS,
                        false => storage.execute(&memory, command),
                    };
                    // A PRP list for 64 blocks, or as many descriptors as an SGL may have; as many pieces.
                    prop_assert!(memory.take() <= 2 * 520 + 10);
                    let _ = group.complete(&memory, command.tag, status);
                    prop_assert!(memory.take() <= 4);
                    let _ = group.complete(&memory, command.tag, status);
                    prop_assert_eq!(memory.take(), 0);
                }
                Attack::Complete(_) => {}
                Attack::Request { kind, qid, other, page, size } => {
                    let base = u64::from(page) * 4096;
                    let buffer = DoorbellBuffer { shadow: base, event_idx: u64::from(qid) * 4096 };
                    let request = match kind {
                        0 | 1 => GroupRequest::CreateCompletionQueue { qid, base, size, vector: Some(other), coalesce: true },
                        2..=4 => GroupRequest::CreateSubmissionQueue { qid, cqid: other, base, size, page_shift: 12 },
                        5 => GroupRequest::DeleteCompletionQueue { qid },
                        6 => GroupRequest::DeleteSubmissionQueue { qid },
                        7 => GroupRequest::Abort { sqid: qid, cid: other },
                        8 | 9 => GroupRequest::SetDoorbellBuffer(buffer),
                        10 => GroupRequest::ClearDoorbellBuffer,
                        _ => GroupRequest::Reset,
                    };
                    group.handle_request(&memory, &registers, request);
                    prop_assert!(memory.take() <= 200);
                }
                Attack::Arm(level) => {
                    let _: Armed = group.arm(&memory, &registers, level);
                    let _ = group.is_level_asserted(&memory, &registers);
                    prop_assert!(memory.take() <= 60);
                }
                Attack::Pause(true) => group.pause(),
                Attack::Pause(false) => group.resume(),
            }
            memory.take();
            in_flight.extend(group.poll_command(&memory, &registers));
            // At most 32 refusals, each a read and a completion of four stores, and a look at each doorbell.
            prop_assert!(memory.take() <= 33 * 10 + 30);
            while group.poll_interrupt(0).is_some() {}
            let _ = group.poll_cancel();
            let mut messages = 0;
            while group.poll_message().is_some() {
                messages += 1;
            }
            prop_assert!(messages <= 10);
            prop_assert!(in_flight.len() >= group.in_flight());
        }
    }
}
