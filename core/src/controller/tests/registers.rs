//! Registers: widths, halves, masks, and what reads back.

use super::*;

/// Every register of the specification's Figure 35 up to ACQ, with every writable bit set where that is
/// harmless.
fn bench_with_image() -> (Bench, Vec<u8>) {
    let mut bench = Bench::new();
    bench.write32(0x0c, 0x8000_0001);
    bench.write32(0x14, 0x0046_0000);
    bench.write32(0x24, 0xffff_ffff);
    bench.write64(0x28, 0xffff_ffff_ffff_ffff);
    bench.write64(0x30, 0x0123_4567_89ab_cdef);
    let mut image = vec![0; 0x1000];
    // CAP: MQES 65,535; CQR; TO 60; NSSRS; CSS bit 0; MPSMAX 4.
    image[0x00..0x08].copy_from_slice(&[0xff, 0xff, 0x01, 0x3c, 0x30, 0x00, 0x40, 0x00]);
    image[0x08..0x0c].copy_from_slice(&[0x00, 0x04, 0x01, 0x00]);
    image[0x0c..0x10].copy_from_slice(&[0x01, 0x00, 0x00, 0x80]);
    image[0x10..0x14].copy_from_slice(&[0x01, 0x00, 0x00, 0x80]);
    image[0x14..0x18].copy_from_slice(&[0x00, 0x00, 0x46, 0x00]);
    image[0x24..0x28].copy_from_slice(&[0xff, 0x0f, 0xff, 0x0f]);
    image[0x28..0x30].copy_from_slice(&[0x00, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    image[0x30..0x38].copy_from_slice(&[0x00, 0xc0, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
    (bench, image)
}

#[test]
fn reads_of_every_width_and_offset_are_cut_out_of_one_image() {
    let (bench, image) = bench_with_image();
    for offset in 0..0x1000 {
        for width in 1..=8.min(0x1000 - offset) {
            let mut bytes = vec![0xee; width];
            bench.controller.read_register(offset as u32, &mut bytes);
            assert_eq!(bytes, image[offset..offset + width], "{offset:#x}, {width} bytes");
        }
    }
}

#[test]
fn wide_registers_take_halves_in_either_order_and_single_bytes() {
    for order in [[0, 4], [4, 0]] {
        let mut bench = Bench::new();
        for half in order {
            bench.write32(0x28 + half, (0x1234_5678_9abc_d000u64 >> (half * 8)) as u32);
        }
        assert_eq!(bench.read64(0x28), 0x1234_5678_9abc_d000);
    }
    let mut bench = Bench::new();
    for (offset, byte) in (0x30..).zip(0x1234_5678_9abc_d000u64.to_le_bytes()) {
        bench.controller.write_register(offset, &[byte]);
    }
    assert_eq!(bench.read64(0x30), 0x1234_5678_9abc_d000);
    assert_eq!(bench.read64(0x28), 0);
}

#[test]
fn admin_queue_registers_read_back_in_every_state() {
    let mut bench = Bench::enabled();
    assert_eq!((bench.read32(0x24), bench.read64(0x28), bench.read64(0x30)), (0x003f_003f, ASQ, ACQ));
    bench.write32(CC, 0x0046_0000);
    bench.run();
    assert_eq!((bench.read32(0x24), bench.read64(0x28), bench.read64(0x30)), (0x003f_003f, ASQ, ACQ));
}

#[test]
fn interrupt_masks_are_set_and_cleared_bit_by_bit() {
    let mut bench = Bench::new();
    bench.write32(0x0c, 0b1010);
    bench.write32(0x0c, 0b0001);
    assert_eq!((bench.read32(0x0c), bench.read32(0x10)), (0b1011, 0b1011));
    bench.write32(0x10, 0b0010);
    assert_eq!(bench.read32(0x0c), 0b1001);
    bench.controller.write_register(0x0f, &[0x80]);
    assert_eq!(bench.controller.interrupt_mask(), 0x8000_0009);
}

#[test]
fn read_only_and_reserved_registers_ignore_writes() {
    let (mut bench, image) = bench_with_image();
    for offset in (0x00..0x0c).chain(0x18..0x1c).chain(0x38..0x1000) {
        bench.controller.write_register(offset, &[0xff]);
    }
    bench.write32(CSTS, 0xffff_ffff);
    bench.write32(0x20, 0x4e56_4d64);
    let mut now = vec![0; 0x1000];
    bench.controller.read_register(0, &mut now);
    assert_eq!(now, image);
}

#[test]
fn accesses_past_the_end_do_nothing() {
    let mut bench = Bench::new();
    let mut bytes = [0xee; 8];
    bench.controller.read_register(u32::MAX - 2, &mut bytes);
    assert_eq!(bytes, [0; 8]);
    bench.controller.write_register(u32::MAX - 2, &[0xff; 8]);
    bench.controller.write_register(0x14, &[]);
    assert_eq!(bench.read32(CC), 0);
}

#[test]
fn pin_level_follows_the_admin_queue_and_its_mask() {
    let mut bench = Bench::enabled();
    assert!(!bench.controller.is_level_asserted());
    bench.submit(identify(1, 0));
    assert!(bench.controller.is_level_asserted());
    bench.write32(0x0c, 1);
    assert!(!bench.controller.is_level_asserted());
    bench.write32(0x10, 1);
    assert!(bench.controller.is_level_asserted());
    assert_eq!(bench.completions().len(), 1);
    assert!(!bench.controller.is_level_asserted());
}
