//! The promises of the log, on a part that loses power at every operation.

use super::sim::{SECTOR, SimFlash};
use super::*;

const SECTORS: usize = 6;
/// As many blocks as can be: the least room, and so the most copying.
const BLOCKS: usize = capacity_blocks(SECTORS, SECTOR);

type Log = FlashMedia<SimFlash, BLOCKS, SECTORS>;

/// Writes that a session makes at most.
const WRITES: u32 = 60;

fn content(block: u32, write: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if write != 0 {
        for (index, byte) in (0u32..).zip(&mut bytes) {
            *byte = (index.wrapping_mul(31) ^ block.wrapping_mul(7) ^ write.wrapping_mul(13)) as u8;
        }
        bytes[..4].copy_from_slice(&write.to_le_bytes());
    }
    bytes
}

fn write(log: &mut Log, block: u32, bytes: &[u8; BLOCK]) -> Result<(), MediaError> {
    let offset = u64::from(block) * BLOCK as u64;
    log.lend(offset, BLOCK as u32).copy_from_slice(bytes);
    match log.write(offset, BLOCK as u32, true) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("flash doesn't wait"),
    }
}

fn read(log: &mut Log, block: u32) -> Result<[u8; BLOCK], MediaError> {
    match log.read(u64::from(block) * BLOCK as u64, BLOCK as u32) {
        Poll::Ready(result) => result.map(|bytes| bytes.try_into().unwrap()),
        Poll::Pending => unreachable!("flash doesn't wait"),
    }
}

/// What each block must hold, by number of write.
struct Model {
    blocks: [u32; BLOCKS],
    next_write: u32,
    random: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { blocks: [0; BLOCKS], next_write: 1, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// A block: half of the writes go to a few of them.
    fn pick(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = (self.random >> 33) as u32;
        if value & 1 == 0 { value / 2 % 4 } else { value / 2 % BLOCKS as u32 }
    }

    /// Writes until the power goes or the session is over; the write that was under way.
    fn session(&mut self, log: &mut Log) -> Option<(u32, u32)> {
        for _ in 0..WRITES {
            let (block, number) = (self.pick(), self.next_write);
            self.next_write += 1;
            match write(log, block, &content(block, number)) {
                Ok(()) => self.blocks[block as usize] = number,
                Err(_) => return Some((block, number)),
            }
        }
        None
    }

    /// Every block holds its last completed write; the one that was under way may hold that instead.
    fn check(&mut self, log: &mut Log, under_way: Option<(u32, u32)>, story: &str) {
        for block in 0..BLOCKS as u32 {
            let found = read(log, block).unwrap_or_else(|error| panic!("{story}: block {block}: {error:?}"));
            let known = self.blocks[block as usize];
            match under_way {
                Some((other, new)) if other == block && found == content(block, new) => {
                    self.blocks[block as usize] = new;
                }
                _ => assert!(found == content(block, known), "{story}: block {block} isn't write {known}"),
            }
        }
    }
}

fn remount(log: Log) -> Log {
    let mut flash = log.unmount();
    flash.power_on();
    Log::mount(flash).unwrap()
}

#[test]
fn a_part_with_anything_in_it_is_a_namespace_of_zeroes() {
    let mut log = Log::mount(SimFlash::new(SECTORS, 1)).unwrap();
    for block in 0..BLOCKS as u32 {
        assert_eq!(read(&mut log, block), Ok([0; BLOCK]));
    }
}

#[test]
fn a_cut_in_any_operation_loses_nothing_that_completed() {
    // Operations of a session are a few hundred; each is cut in, with several ways for bits to end up.
    for seed in 0..4 {
        let mut cut = 0;
        loop {
            let mut model = Model::new(seed);
            let mut log = Log::mount(SimFlash::new(SECTORS, seed * 77 + u64::from(cut))).unwrap();
            assert_eq!(model.session(&mut log), None);
            log.flash.cut_after(cut);
            let under_way = model.session(&mut log);
            let was_cut = log.flash.is_off();
            log = remount(log);
            let story = format!("seed {seed}, cut {cut}");
            model.check(&mut log, under_way, &story);
            // And it goes on working.
            assert_eq!(model.session(&mut log), None, "{story}");
            log = remount(log);
            model.check(&mut log, None, &story);
            if !was_cut {
                break;
            }
            cut += 1;
        }
        assert!(cut > 150, "only {cut} operations were cut");
    }
}

#[test]
fn cuts_in_a_row_lose_nothing_and_never_leave_it_stuck() {
    for seed in 0..200 {
        let mut model = Model::new(seed);
        let mut log = Log::mount(SimFlash::new(SECTORS, seed)).unwrap();
        assert_eq!(model.session(&mut log), None);
        for cut in 0..40 {
            // Short lives: many of the cuts are in what follows a start.
            log.flash.cut_after((seed as u32 * 31 + cut * 7) % 23);
            let under_way = model.session(&mut log);
            log = remount(log);
            model.check(&mut log, under_way, &format!("seed {seed}, cut {cut}"));
        }
        assert_eq!(model.session(&mut log), None, "seed {seed}");
    }
}

#[test]
fn a_write_costs_a_bounded_number_of_operations() {
    let mut model = Model::new(5);
    let mut log = Log::mount(SimFlash::new(SECTORS, 5)).unwrap();
    let pieces = (SLOT / RECORD) as u32;
    let bound = 2 + u32::from(SECTORS_PER_WRITE) * (3 + Log::SLOTS as u32 * pieces);
    let mut most = 0;
    for _ in 0..20_000 {
        let before = log.flash.operations;
        let (block, number) = (model.pick(), model.next_write);
        model.next_write += 1;
        write(&mut log, block, &content(block, number)).unwrap();
        model.blocks[block as usize] = number;
        most = most.max(log.flash.operations - before);
    }
    assert!(most <= bound, "{most} operations, {bound} are the bound");
    model.check(&mut log, None, "after 20,000 writes");
}

#[test]
fn sectors_wear_alike_although_most_blocks_never_change() {
    let mut log = Log::mount(SimFlash::new(SECTORS, 9)).unwrap();
    for block in 0..BLOCKS as u32 {
        write(&mut log, block, &content(block, 1)).unwrap();
    }
    for number in 2..30_000 {
        write(&mut log, number % 2, &content(number % 2, number)).unwrap();
    }
    let (least, most) = log.wear();
    assert!(least > 100 && most - least <= WEAR_SPREAD + 2, "{least} to {most}");
    assert_eq!(most, log.flash.erases.iter().copied().max().unwrap());
    for block in 2..BLOCKS as u32 {
        assert_eq!(read(&mut log, block), Ok(content(block, 1)));
    }
    // Wear outlives the power.
    let log = remount(log);
    assert_eq!(log.wear(), (least, most));
}

#[test]
fn a_flipped_bit_is_a_read_error_and_not_old_data() {
    let mut log = Log::mount(SimFlash::new(SECTORS, 3)).unwrap();
    write(&mut log, 3, &content(3, 1)).unwrap();
    write(&mut log, 3, &content(3, 2)).unwrap();
    let needle = &content(3, 2)[100..200];
    let at = log.flash.bytes().windows(100).position(|window| window == needle).unwrap();
    log.flash.flip(at, 4);
    assert_eq!(read(&mut log, 3), Err(MediaError::Read));
    let mut log = remount(log);
    assert_eq!(read(&mut log, 3), Err(MediaError::Read));
    write(&mut log, 3, &content(3, 3)).unwrap();
    assert_eq!(read(&mut log, 3), Ok(content(3, 3)));
}

#[test]
fn zeroes_are_as_durable_as_data() {
    let mut log = Log::mount(SimFlash::new(SECTORS, 4)).unwrap();
    write(&mut log, 1, &content(1, 1)).unwrap();
    assert_eq!(log.zero(512, 1024, true), Poll::Ready(Ok(512)));
    let mut log = remount(log);
    assert_eq!(read(&mut log, 1), Ok([0; BLOCK]));
    let before = log.flash.operations;
    assert_eq!(log.zero(1024, 512, true), Poll::Ready(Ok(512)));
    assert_eq!(log.flash.operations, before, "a block that was never written is zero already");
}

#[test]
fn a_namespace_of_another_size_is_not_overwritten() {
    let mut log = Log::mount(SimFlash::new(SECTORS, 6)).unwrap();
    write(&mut log, 0, &content(0, 1)).unwrap();
    let other = FlashMedia::<SimFlash, 10, SECTORS>::mount(log.unmount());
    assert_eq!(other.err(), Some(FlashError::OtherSize { blocks: BLOCKS as u32 }));
    let small = FlashMedia::<SimFlash, BLOCKS, SECTORS>::mount(SimFlash::new(SECTORS - 1, 6));
    assert_eq!(small.err(), Some(FlashError::TooSmall));
}
