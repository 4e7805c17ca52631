use super::*;
use crate::state::StateError;

fn read32(space: &ConfigSpace, offset: u32) -> u32 {
    let mut bytes = [0xee; 4];
    space.read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn write32(space: &mut ConfigSpace, offset: u32, value: u32) -> PciEvents {
    space.write(offset, &value.to_le_bytes())
}

fn space() -> ConfigSpace {
    ConfigSpace::new(PciConfig::DEFAULT)
}

#[test]
fn it_is_an_nvme_io_controller() {
    let mut class = [0; 3];
    space().read(9, &mut class);
    assert_eq!(class, [0x02, 0x08, 0x01]);
    assert_eq!(read32(&space(), 0), 0xd00b_1234);
    assert_eq!(read32(&space(), 0x3c), 0x0100, "INTA");
}

#[test]
fn capabilities_form_a_list() {
    let space = space();
    let mut found = Vec::new();
    let mut at = read32(&space, 0x34) & 0xff;
    while at != 0 {
        let header = read32(&space, at);
        found.push((at, header & 0xff));
        at = header >> 8 & 0xff;
    }
    assert_eq!(found, [(0x40, 0x01), (0x50, 0x11), (0x60, 0x10)]);
    // PCIe version 2 endpoint with FLR.
    assert_eq!(read32(&space, 0x60) >> 16, 2);
    assert_ne!(read32(&space, 0x64) & 1 << 28, 0);
}

#[test]
fn bar_0_tells_its_size_and_is_64_bits_wide() {
    let config = PciConfig { bar0_bytes: 0x1_0000, ..PciConfig::DEFAULT };
    let mut space = ConfigSpace::new(config);
    assert!(write32(&mut space, 0x10, 0xffff_ffff).is_empty());
    assert!(write32(&mut space, 0x14, 0xffff_ffff).is_empty());
    assert_eq!((read32(&space, 0x10), read32(&space, 0x14)), (0xffff_0004, 0xffff_ffff));
    for other in [0x18, 0x1c, 0x20, 0x24, 0x30] {
        assert!(write32(&mut space, other, 0xffff_ffff).is_empty());
        assert_eq!(read32(&space, other), 0, "{other:#x}");
    }
    assert!(write32(&mut space, 0x10, 0xfe00_0000).is_empty());
    assert!(write32(&mut space, 0x14, 1).is_empty());
    assert_eq!(space.bar0(), None);
    assert_eq!(write32(&mut space, 4, 2), PciEvents::BAR0);
    assert_eq!(space.bar0(), Some(0x1_fe00_0000));
    assert_eq!(write32(&mut space, 0x10, 0xfd00_0000), PciEvents::BAR0);
}

#[test]
fn a_bar_that_is_too_small_or_odd_gets_16_kib() {
    for bar0_bytes in [0, 0x2000, 0x6000] {
        let config = PciConfig { bar0_bytes, ..PciConfig::DEFAULT };
        assert_eq!(ConfigSpace::new(config).config().bar0_bytes, 0x4000);
    }
}

#[test]
fn msix_structures_overlap_neither_doorbells_nor_each_other() {
    let space = ConfigSpace::new(PciConfig { vectors: 256, ..PciConfig::DEFAULT });
    let vectors = (read32(&space, 0x50) >> 16 & 0x7ff) + 1;
    let (table, pending) = (read32(&space, 0x54), read32(&space, 0x58));
    assert_eq!((vectors, table & 7, pending & 7), (256, 0, 0));
    assert!(table >= 0x2000 && table + vectors * 16 <= pending);
    assert!(u64::from(pending + vectors / 8) <= space.config().bar0_bytes);
}

#[test]
fn only_writable_bits_change() {
    let mut space = space();
    let before: Vec<u32> = (0..1024).map(|dword| read32(&space, dword * 4)).collect();
    for dword in 0..1024 {
        // Not the power state or FLR, which reset everything.
        if !matches!(dword * 4, 0x44 | 0x68) {
            let _events = write32(&mut space, dword * 4, 0xffff_ffff);
        }
    }
    let expected = [(0x04, 0x0546), (0x0c, 0xff), (0x10, 0xffff_c000), (0x14, 0xffff_ffff), (0x3c, 0xff)];
    let capabilities = [(0x50, 0xc000_0000), (0x70, 0xcb), (0x88, 0x1f), (0x90, 0xf)];
    for (dword, before) in (0..).zip(before) {
        let offset = dword * 4;
        let set = expected.iter().chain(&capabilities).find(|(at, _)| *at == offset);
        let after = read32(&space, offset);
        match set {
            Some((_, bits)) => assert_eq!(after, before | bits, "{offset:#x}"),
            None if offset == 0x44 || offset == 0x68 => {}
            None => assert_eq!(after, before, "{offset:#x}"),
        }
    }
}

#[test]
fn every_width_reads_the_same_bytes() {
    let space = space();
    let mut image = [0; 4096];
    space.read(0, &mut image);
    for offset in 0..300 {
        for width in 1..=8 {
            let mut bytes = vec![0xee; width];
            space.read(offset as u32, &mut bytes);
            assert_eq!(bytes, image[offset..offset + width], "{offset:#x} {width}");
        }
    }
    let mut past = [0xee; 8];
    space.read(4092, &mut past);
    assert_eq!(past, [0; 8]);
    space.read(u32::MAX, &mut past);
}

#[test]
fn single_bytes_can_be_written() {
    let mut space = space();
    assert_eq!(space.write(5, &[0x04]), PciEvents::INTX_DISABLE);
    assert!(space.intx_disabled());
    assert_eq!(space.write(4, &[0x04]), PciEvents::BUS_MASTER);
    assert!(space.bus_master() && space.intx_disabled());
    assert_eq!(space.write(0x53, &[0x80]), PciEvents::MSIX);
    assert!(space.msix_enabled() && !space.msix_masked());
}

#[test]
fn function_level_reset_resets_the_space_and_reads_0() {
    let mut space = space();
    let _events = write32(&mut space, 4, 6);
    assert_eq!(space.write(0x68, &0x8000u16.to_le_bytes()), PciEvents::FLR);
    assert_eq!(read32(&space, 4) & 0xffff, 0);
    assert_eq!(read32(&space, 0x68) & 0x8000, 0);
}

#[test]
fn d3hot_and_back_is_a_reset() {
    let mut space = space();
    let _events = write32(&mut space, 4, 6);
    assert_eq!(space.write(0x44, &[3]), PciEvents::D3HOT_ENTERED);
    assert!(space.is_d3hot());
    assert_eq!(space.write(0x44, &[3]), PciEvents::empty());
    assert_eq!(space.write(0x44, &[0]), PciEvents::D3HOT_LEFT);
    assert!(!space.is_d3hot() && !space.bus_master());
}

#[test]
fn d1_and_d2_are_not_entered() {
    let mut space = space();
    for state in [1, 2] {
        assert_eq!(space.write(0x44, &[state]), PciEvents::empty());
        assert_eq!(read32(&space, 0x44) & 3, 0);
    }
}

#[test]
fn interrupt_status_is_read_only() {
    let mut space = space();
    space.set_interrupt_status(true);
    let _events = write32(&mut space, 4, 0);
    assert_ne!(read32(&space, 4) & 1 << 19, 0);
    space.set_interrupt_status(false);
    assert_eq!(read32(&space, 4) & 1 << 19, 0);
}

#[test]
fn a_moved_space_reads_and_behaves_alike() {
    let config = PciConfig { revision_id: 7, subsystem_id: 9, ..PciConfig::DEFAULT };
    let mut space = ConfigSpace::new(config);
    let _ = space.write(4, &0xffff_ffff_u32.to_le_bytes());
    let _ = space.write(0x10, &0xffff_ffff_ffff_ffff_u64.to_le_bytes());
    for offset in (0x0c..0x100).step_by(4) {
        if offset != 0x68 {
            let _ = space.write(offset, &0xffff_ffff_u32.to_le_bytes());
        }
    }
    space.set_interrupt_status(true);
    let mut state = [0xee; ConfigSpace::STATE_BYTES];
    assert_eq!(space.save(&mut state), Ok(state.len()));
    assert_eq!(space.save(&mut [0; ConfigSpace::STATE_BYTES - 1]), Err(StateError::BufferTooSmall));
    let mut next = ConfigSpace::new(PciConfig::DEFAULT);
    assert_eq!(next.load(&state), Ok(()));
    assert_eq!(format!("{next:?}"), format!("{space:?}"));
    let mut again = [0; ConfigSpace::STATE_BYTES];
    assert_eq!(next.save(&mut again), Ok(state.len()));
    assert_eq!(again, state);
    // Function Level Reset brings the old identifiers back.
    assert_eq!(write32(&mut next, 0x68, 1 << 15), PciEvents::FLR);
    assert_eq!(write32(&mut space, 0x68, 1 << 15), PciEvents::FLR);
    assert_eq!(format!("{next:?}"), format!("{space:?}"));
}

#[test]
fn a_changed_space_is_refused_where_no_guest_could_have_changed_it() {
    let mut state = [0; ConfigSpace::STATE_BYTES];
    assert_eq!(space().save(&mut state), Ok(state.len()));
    let small = PciConfig { vectors: 63, ..PciConfig::DEFAULT };
    assert!(matches!(ConfigSpace::new(small).load(&state), Err(StateError::Mismatch(_))));
    let large = PciConfig { bar0_bytes: 0x8000, ..PciConfig::DEFAULT };
    assert!(matches!(ConfigSpace::new(large).load(&state), Err(StateError::Mismatch(_))));
    let mut writable = 0;
    for bit in 0..state.len() * 8 {
        let mut state = state;
        state[bit / 8] ^= 1 << (bit % 8);
        assert!(space().load(&state).is_err());
        if bit / 8 < 24 {
            continue;
        }
        crate::testing::seal_state(&mut state);
        let mut space = space();
        let loaded = space.load(&state);
        let changed = format!("{space:?}") != format!("{:?}", super::tests::space());
        assert!(loaded.is_ok() || !changed, "a state that was refused has changed something");
        if loaded.is_ok() {
            let mut image = [0; 256];
            space.read(0, &mut image);
            let _ = space.write(0, &image);
            writable += 1;
        }
    }
    // Command with Interrupt Status, cache line, BAR 0, interrupt line, MSI-X, the four controls of PCI Express; a
    // reserved byte. One bit of the power state alone is no state there is.
    assert_eq!(writable, 6 + 8 + 50 + 8 + 2 + 12 + 5 + 5 + 4 + 8);
}
