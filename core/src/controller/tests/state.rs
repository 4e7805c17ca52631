//! Live upgrade of the controller: moved anywhere in its life it does byte for byte what it would have done,
//! and whatever else can be loaded breaks nothing.

use std::fmt::Write as _;

use super::random::Random;
use super::*;
use crate::state::StateError;
use crate::testing::seal_state;

type Small = Controller<2, 64, 16, 64>;
/// Another engine, with larger tables.
type Large = Controller<4, 80, 40, 100>;

const CONFIG: ControllerConfig = ControllerConfig { groups: 2, ..ControllerConfig::DEFAULT };

fn saved(controller: &Small) -> Vec<u8> {
    let mut state = vec![0xee; Small::STATE_BYTES];
    let len = controller.save(&mut state).expect("enough room");
    state.truncate(len);
    state
}

/// The controller in another instance, by way of one with larger tables.
fn moved(controller: &Small) -> Small {
    let state = saved(controller);
    let mut large = Large::new(CONFIG);
    large.load(&state, |_, _| true).expect("a state that was just saved");
    let mut again = vec![0xdd; Large::STATE_BYTES];
    let len = large.save(&mut again).expect("enough room");
    assert_eq!(state, again[..len], "saved again it is the same");
    let mut back = Small::new(ControllerConfig { serial: Ascii::lossy("ANOTHER"), ..CONFIG });
    back.load(&again[..len], |_, _| true).expect("a state that was just saved");
    assert_eq!(saved(&back), state);
    back
}

/// A bench whose every output is told.
struct Life {
    bench: Bench,
    told: String,
    random: Random,
    moves: bool,
}

impl Life {
    fn new(seed: u64, moves: bool) -> Self {
        let mut bench = Bench::with_config(CONFIG);
        bench.controller.add_namespace(None, namespace(1)).expect("good");
        Self { bench, told: String::new(), random: Random(seed), moves }
    }

    /// Does one thing of those that a host does; each may be the last before a move.
    fn host(&mut self) {
        let bench = &mut self.bench;
        match self.random.below(7) {
            0 | 1 => {
                bench.now_ns += self.random.below(1 << 40);
                let _ = write!(self.told, "poll {}", bench.poll());
            }
            2 => {
                if let Some((group, request)) = bench.controller.poll_group_request() {
                    let _ = write!(self.told, "{group} {request:?}");
                    bench.groups[usize::from(group)].fail_next =
                        (self.random.below(20) == 0).then_some(Status::INTERNAL_ERROR);
                    bench.groups[usize::from(group)].handle_request(request);
                }
            }
            3 => {
                let group = self.random.below(2) as u16;
                bench.groups[usize::from(group)].statistics.bytes_read += 1_000_000;
                if let Some(reply) = bench.groups[usize::from(group)].poll_reply() {
                    bench.reply(group, reply);
                }
            }
            4 => {
                let request = bench.controller.poll_host_request();
                let _ = write!(self.told, "{request:?}");
                bench.host_requests.extend(request);
            }
            5 => {
                if bench.host_requests.pop().is_some() {
                    let failed = self.random.below(4) == 0;
                    let result = if failed { Err(Status::WRITE_FAULT) } else { Ok(()) };
                    bench.controller.handle_host_reply(HostReply::FlushAll(result));
                }
            }
            _ => {
                let change = bench.controller.poll_namespace_change();
                let interrupt = bench.controller.poll_interrupt();
                let level = bench.controller.is_level_asserted();
                let quiesced = bench.controller.quiesced();
                let _ = write!(self.told, "{change:?}{interrupt:?}{level}{quiesced}");
            }
        }
    }

    /// Does one thing of those that a driver, or somebody else, does.
    fn world(&mut self) {
        let (bench, random) = (&mut self.bench, &mut self.random);
        match random.below(24) {
            0 if random.below(4) == 0 => {
                let (offset, width) = (random.below(0x48) as u32, random.below(9) as usize);
                bench.controller.write_register(offset, &random.next().to_le_bytes()[..width]);
            }
            1 => bench.registers[random.below(6) as usize].store(random.dword(), Ordering::Relaxed),
            2 => {
                let offset = 0x1000 + random.below(0x40) as u32 * 4;
                let value = random.dword().to_le_bytes();
                bench.controller.handle_doorbell_write(&bench.registers, offset, &value);
            }
            3 if random.below(16) == 0 => bench.controller.reset(random.pick(&[
                ResetKind::Flr,
                ResetKind::Nssr,
                ResetKind::D3hot,
                ResetKind::Disconnect,
            ])),
            4 => bench.memory.poke(SHADOW + random.below(8) * 4, &random.dword().to_le_bytes()),
            5 => bench.controller.handle_unmap(random.address(), random.below(8_192)),
            6 => {
                let event = random.pick(&[
                    GroupEvent::InvalidDoorbell { qid: 1, completion: false, value: 9 },
                    GroupEvent::CommandError(crate::message::CommandError {
                        sqid: 1,
                        cid: 2,
                        status: Status::WRITE_FAULT,
                        lba: 3,
                        nsid: 1,
                    }),
                    GroupEvent::CommandError(crate::message::CommandError {
                        sqid: 7,
                        cid: 8,
                        status: Status::UNRECOVERED_READ_ERROR,
                        lba: u64::MAX,
                        nsid: 16,
                    }),
                ]);
                bench.controller.handle_group_message(0, GroupMessage::Event(event));
            }
            7 if random.below(16) == 0 => {
                let event = GroupEvent::Fatal { qid: 1 };
                bench.controller.handle_group_message(1, GroupMessage::Event(event));
            }
            8 | 9 => {
                let nsid = random.below(18) as u32;
                let _ = match random.below(4) {
                    0 => {
                        let nsid = (nsid != 17).then_some(nsid);
                        bench.controller.add_namespace(nsid, namespace(nsid.unwrap_or(17) as u8)).map(|_| ())
                    }
                    1 => bench.controller.remove_namespace(nsid),
                    _ => bench.controller.resize_namespace(nsid, 1 + random.below(1 << 20)),
                };
            }
            10 => {
                bench.controller.set_temperature(300 + random.below(80) as u16);
                bench.controller.add_busy_time(random.below(1 << 40));
            }
            11 if !bench.controller.is_ready() || random.below(20) == 0 => {
                bench.write32(CC, 0x0046_0000);
                bench.write32(0x24, 15 << 16 | 15);
                bench.write64(0x28, ASQ);
                bench.write64(0x30, ACQ);
                bench.write32(CC, 0x0046_0001);
                bench.tail = 0;
            }
            12 if random.below(10) == 0 => bench.write32(CC, 0x0046_4001),
            13 => {
                let taken = random.below(16) as u32;
                bench.registers[1].store(taken, Ordering::Relaxed);
            }
            14 => {
                let group = random.below(2) as usize;
                bench.groups[group].hold = random.below(4) == 0;
                bench.groups[group].aborts = random.below(2) == 0;
            }
            15 => {
                let held = AER;
                self.submit(held);
            }
            16 => {
                let feature = random.pick(&[1, 2, 4, 5, 5, 6, 7, 8, 9, 9, 9, 0xa, 0xb]);
                let value = match feature {
                    // Over or under temperature threshold, near what the temperature is.
                    4 => ((random.below(2) << 20) | (300 + random.below(80))) as u32,
                    // Coalescing of a vector.
                    9 => (random.below(2) << 16 | random.below(3)) as u32,
                    _ => random.dword(),
                };
                let mut entry = set_feature(feature, value);
                entry[1] = if feature == 5 { random.pick(&[1, 1, 2, 0xffff_ffff]) } else { 0 };
                self.submit(entry);
            }
            17 => {
                let feature = random.pick(&[1, 2, 4, 5, 5, 6, 7, 8, 9, 9, 9, 0xa, 0xb]);
                let value = (random.below(2) << 20 | random.below(3)) as u32;
                let mut entry = get_feature(feature, value);
                entry[1] = u32::from(feature == 5);
                self.submit(entry);
            }
            18 => {
                let qid = random.below(4) as u32;
                let entry = match random.below(5) {
                    0 | 1 => create_cq(qid, 7, random.below(3) as u32),
                    2 => create_sq(qid, 7, 1 + random.below(3) as u32),
                    3 => entry(0x00, 0, qid, 0),
                    _ => entry(0x04, 0, qid, 0),
                };
                self.submit(entry);
            }
            19 => {
                let page = random.pick(&[0, 1, 2, 4, 5]);
                self.submit(get_log(page, 0, 512));
            }
            20 => {
                let entry = entry(0x08, 0, (random.below(4) | random.below(40) << 16) as u32, 0);
                self.submit(entry);
            }
            21 => {
                self.submit(with_prp2(with_prp1(entry(0x7c, 0, 0, 0), SHADOW), EVENT_IDX));
            }
            _ => {
                let entry = random.entry();
                self.submit(entry);
            }
        }
    }

    /// Puts a command into the queue of 16 entries and rings by register, and by shadow.
    fn submit(&mut self, mut entry: Entry) {
        let bench = &mut self.bench;
        bench.cid = bench.cid.wrapping_add(1) & 0x3f;
        entry[0] |= u32::from(bench.cid) << 16;
        let bytes: Vec<u8> = entry.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        bench.memory.poke(ASQ + u64::from(bench.tail) * 64, &bytes);
        bench.tail = (bench.tail + 1) % 16;
        bench.ring();
    }

    fn step(&mut self) {
        if self.random.below(3) == 0 {
            self.world();
        } else {
            self.host();
        }
        // Drawn in both lives, so that they stay in step.
        if self.random.below(3) == 0 && self.moves {
            let moved = moved(&self.bench.controller);
            // What hasn't made a difference yet has to be there too. (A full log begins elsewhere in its ring.)
            if self.bench.controller.errors.newest_first().count() < 64 {
                assert_eq!(format!("{moved:?}"), format!("{:?}", self.bench.controller));
            }
            self.bench.controller = moved;
        }
    }

    /// Everything that can be seen of the two.
    fn look(&self) -> (String, Vec<u8>, Vec<u8>, Vec<u32>) {
        let mut registers = vec![0; 0x40];
        self.bench.controller.read_register(0, &mut registers);
        let memory = [
            self.bench.memory.peek(ASQ, 0x2000),
            self.bench.memory.peek(DATA, 0x5000),
            self.bench.memory.peek(SHADOW, 0x2000),
        ]
        .concat();
        let doorbells = self.bench.registers.iter().take(16).map(|register| register.load(Ordering::Relaxed));
        let counters = format!("{:?}", self.bench.controller.smart_counters());
        (self.told.clone() + &counters, registers, memory, doorbells.collect())
    }
}

#[test]
fn a_moved_controller_does_byte_for_byte_what_it_would_have_done() {
    for seed in 1..=200 {
        let (mut stays, mut moves) = (Life::new(seed, false), Life::new(seed, true));
        for step in 0..400 {
            stays.step();
            moves.step();
            if step % 50 == 0 {
                assert_eq!(stays.look(), moves.look(), "seed {seed}, step {step}");
            }
            assert_eq!(stays.told, moves.told, "seed {seed}, step {step}");
        }
        let (stays, moves) = (stays.look(), moves.look());
        assert!(stays == moves, "seed {seed}");
    }
}

/// Loads a state; where it is accepted, lives on with it.
fn load_and_live(state: &[u8], seed: u64, steps: u32) -> Result<(), StateError> {
    let mut life = Life::new(seed | 1, true);
    life.bench.controller.load(state, |_, _| true)?;
    for _ in 0..steps {
        life.step();
    }
    // Whatever state that left, a reset brings it back.
    life.bench.groups = [FakeGroup::default(), FakeGroup::default()];
    for group in 0..2 {
        life.bench.reply(group, GroupReply::Done);
        life.bench.reply(group, GroupReply::ResetDone);
    }
    life.bench.controller.reset(ResetKind::Flr);
    life.bench.run();
    for _ in 0..4 {
        for group in 0..2 {
            life.bench.reply(group, GroupReply::Done);
            life.bench.reply(group, GroupReply::ResetDone);
        }
        life.bench.run();
    }
    // A page size that the bench's queues lie at.
    let page_shift_min = life.bench.controller.config().page_shift_min;
    if page_shift_min == 12 {
        life.bench.write32(0x24, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        life.bench.write64(0x28, ASQ);
        life.bench.write64(0x30, ACQ);
        life.bench.write32(CC, 0x0046_0001);
        life.bench.run();
        assert!(life.bench.controller.is_ready(), "a controller that can't be enabled any more");
    }
    Ok(())
}

#[test]
fn a_changed_state_is_refused_or_breaks_nothing() {
    let mut accepted = 0;
    for seed in 1..=800 {
        let mut life = Life::new(seed, false);
        for _ in 0..life.random.below(200) {
            life.step();
        }
        let mut state = saved(&life.bench.controller);
        for _ in 0..=life.random.below(2) {
            let at = 24 + life.random.below(state.len() as u64 - 24) as usize;
            state[at] =
                if life.random.below(2) == 0 { life.random.next() as u8 } else { life.random.below(8) as u8 };
        }
        seal_state(&mut state);
        accepted += u32::from(load_and_live(&state, seed, 60).is_ok());
    }
    assert!(accepted > 100, "{accepted}");
}

/// A running controller with everything: queues, shadow doorbells, held requests, errors, a pending command.
fn busy() -> Small {
    let mut bench = Bench::with_config(CONFIG);
    bench.controller.add_namespace(None, namespace(1)).expect("good");
    bench.run();
    bench.enable();
    bench.ok(create_cq(1, 7, 1));
    bench.ok(create_sq(1, 7, 1));
    bench.ok(with_prp2(with_prp1(entry(0x7c, 0, 0, 0), SHADOW), EVENT_IDX));
    bench.submit(AER);
    bench.submit(AER);
    bench.controller.handle_doorbell_write(&bench.registers, 0x1008, &[0; 2]);
    bench.controller.add_namespace(Some(3), namespace(3)).expect("good");
    bench.groups[1].hold = true;
    bench.submit(get_log(2, 0, 512));
    bench.controller
}

#[test]
fn every_flipped_bit_is_noticed_or_harmless() {
    let state = saved(&busy());
    let mut accepted = 0;
    for bit in 0..state.len() * 8 {
        let mut state = state.clone();
        state[bit / 8] ^= 1 << (bit % 8);
        let damaged = Small::new(CONFIG).load(&state, |_, _| true);
        assert!(damaged.is_err(), "bit {bit}: the checksum doesn't cover it");
        if bit / 8 >= 24 {
            seal_state(&mut state);
            accepted += usize::from(load_and_live(&state, bit as u64, 4).is_ok());
        }
    }
    assert!(accepted > state.len() && accepted < state.len() * 7, "{accepted} of {}", state.len() * 8);
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_a_new_controller() {
    let state = saved(&busy());
    let new = saved(&Small::new(CONFIG));
    let refusal = |config: ControllerConfig| {
        let mut controller = Small::new(config);
        let refused = controller.load(&state, |_, _| true);
        assert_eq!(saved(&controller), saved(&Small::new(config)));
        refused
    };
    assert!(matches!(refusal(ControllerConfig { groups: 1, ..CONFIG }), Err(StateError::Mismatch(_))));
    assert!(matches!(refusal(ControllerConfig { io_queues: 63, ..CONFIG }), Err(StateError::Mismatch(_))));
    assert!(matches!(refusal(ControllerConfig { vectors: 63, ..CONFIG }), Err(StateError::Mismatch(_))));
    assert!(matches!(
        refusal(ControllerConfig { mdts_bytes: 1 << 19, ..CONFIG }),
        Err(StateError::Mismatch(_))
    ));
    let uncached = ControllerConfig { write_cache: false, ..CONFIG };
    let told_of_none = saved(&Small::new(uncached));
    let refused = Small::new(CONFIG).load(&told_of_none, |_, _| true);
    assert!(matches!(refused, Err(StateError::Mismatch(_))), "{refused:?}");
    assert_eq!(Small::new(uncached).load(&new, |_, _| true), Ok(()));
    let few = Controller::<1, 64, 16, 64>::new(CONFIG).load(&state, |_, _| true);
    assert_eq!(few, Err(StateError::TooSmall("groups")));
    let few = Controller::<2, 32, 16, 64>::new(CONFIG).load(&state, |_, _| true);
    assert_eq!(few, Err(StateError::TooSmall("queues")));
    let few = Controller::<2, 64, 15, 64>::new(CONFIG).load(&state, |_, _| true);
    assert_eq!(few, Err(StateError::TooSmall("namespaces")));
    let few = Controller::<2, 64, 16, 63>::new(CONFIG).load(&state, |_, _| true);
    assert_eq!(few, Err(StateError::TooSmall("error log")));
    let missing = Small::new(CONFIG).load(&state, |nsid, _| nsid == 1);
    assert!(matches!(missing, Err(StateError::Mismatch(_))), "{missing:?}");
}

#[test]
fn what_the_guest_was_told_stays_so_in_a_larger_engine() {
    let mut bench = Bench::with_namespace();
    let before = bench.data(identify(1, 0));
    let state = saved(&bench.controller);
    let other = ControllerConfig {
        serial: Ascii::lossy("ANOTHER"),
        mdts_bytes: 1 << 21,
        vectors: 128,
        timeout_500ms: 1,
        ..CONFIG
    };
    let mut large = Large::new(other);
    large.load(&state, |_, _| true).expect("a state that was just saved");
    assert_eq!(large.add_namespace(Some(17), namespace(17)), Err(NamespaceError::InvalidNsid));
    let mut back = vec![0; Large::STATE_BYTES];
    let len = large.save(&mut back).expect("enough room");
    bench.controller.load(&back[..len], |_, _| true).expect("it came from there");
    assert_eq!(bench.data(identify(1, 0)), before);
    let (namespaces, errors) = (before[516], before[262]);
    assert_eq!((namespaces, errors), (16, 63), "NN, ELPE");
}

/// Prints a state for `core/tests/state/`, as the files there say.
#[test]
#[ignore = "makes a file for a new version"]
fn print_a_controller() {
    for line in saved(&busy()).chunks(32) {
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{}", digits.join(" "));
    }
}

#[test]
fn an_abort_that_its_group_has_answered_is_told_by_the_next_controller() {
    let mut bench = Bench::enabled();
    bench.ok(create_cq(1, 7, 1));
    bench.ok(create_sq(1, 7, 1));
    bench.groups[0].aborts = true;
    bench.groups[0].hold = true;
    bench.submit(entry(0x08, 0, 7 << 16 | 1, 0));
    bench.groups[0].release();
    let reply = bench.groups[0].poll_reply().expect("the group was asked");
    bench.reply(0, reply);
    bench.controller = moved(&bench.controller);
    bench.run();
    let completions = bench.completions();
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].status, completions[0].result), (Status::SUCCESS, 0), "aborted");
}
