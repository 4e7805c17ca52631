//! A driver that does anything: nothing it writes may panic or keep the controller from coming to rest.

use super::*;

/// xorshift64*: the same seed gives the same life.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Mostly small, sometimes anything.
    pub(super) fn dword(&mut self) -> u32 {
        match self.below(4) {
            0 => self.next() as u32,
            1 => (self.below(8) | self.below(8) << 16) as u32,
            _ => self.below(20) as u32,
        }
    }

    pub(super) fn address(&mut self) -> u64 {
        match self.below(6) {
            0 => self.next(),
            1 => RAM_BYTES - self.below(3) * 2_048,
            2 => DATA + self.below(4_096) * 4,
            _ => self.pick(&[DATA, SHADOW, EVENT_IDX, QUEUE]),
        }
    }

    pub(super) fn entry(&mut self) -> Entry {
        const OPCODES: [u32; 12] = [0, 1, 2, 4, 5, 6, 8, 9, 0xa, 0xc, 0x7c, 0xff];
        let mut entry = [0; 16];
        entry[0] = self.pick(&OPCODES) | if self.below(20) == 0 { self.next() as u32 & 0xff00 } else { 0 };
        entry[1] = self.pick(&[0, 1, 2, 17, 0xffff_fffe, 0xffff_ffff]);
        (10..16).for_each(|dword| entry[dword] = self.dword());
        let (prp1, prp2) = (self.address(), self.address());
        with_prp2(with_prp1(entry, prp1), prp2)
    }
}

#[test]
fn whatever_a_driver_does_the_controller_comes_to_rest() {
    for seed in 1..=300 {
        let mut random = Random(seed);
        let mut bench = Bench::with_namespace();
        for _ in 0..60 {
            match random.below(12) {
                0 => {
                    let (offset, width) = (random.below(0x48) as u32, random.below(9) as usize);
                    bench.controller.write_register(offset, &random.next().to_le_bytes()[..width]);
                }
                1 => {
                    let index = random.below(6) as usize;
                    bench.registers[index].store(random.dword(), Ordering::Relaxed);
                }
                2 => {
                    let (offset, width) = (random.below(0x1100) as u32, random.below(9) as usize);
                    let value = random.next().to_le_bytes();
                    bench.controller.handle_doorbell_write(&bench.registers, offset, &value[..width]);
                }
                3 => bench.controller.reset(random.pick(&[
                    ResetKind::Flr,
                    ResetKind::D3hot,
                    ResetKind::Disconnect,
                ])),
                4 => bench.memory.poke(SHADOW + random.below(8) * 4, &random.dword().to_le_bytes()),
                5 => bench.controller.handle_unmap(random.address(), random.below(8_192)),
                6 => {
                    let group = random.below(3) as u16;
                    let replies =
                        [GroupReply::Done, GroupReply::ResetDone, GroupReply::Abort { aborted: true }];
                    bench.reply(group, random.pick(&replies));
                }
                7 => {
                    let nsid = random.below(18) as u32;
                    let _ = match random.below(3) {
                        0 => bench.controller.add_namespace(Some(nsid), namespace(nsid as u8)).map(|_| ()),
                        1 => bench.controller.remove_namespace(nsid),
                        _ => bench.controller.resize_namespace(nsid, random.below(1 << 20)),
                    };
                    while bench.controller.poll_namespace_change().is_some() {}
                }
                _ => {
                    bench.put(random.entry());
                    bench.ring();
                }
            }
            bench.run();
        }
        // Whatever state that left, a reset brings it back.
        bench.controller.reset(ResetKind::Flr);
        bench.run();
        bench.write32(CSTS, 0x10);
        bench.enable();
        bench.ok(identify(1, 0));
    }
}
