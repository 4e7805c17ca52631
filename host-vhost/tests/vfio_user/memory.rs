//! The memory map and its views.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_core::memory::{Access, DmaError, DmaMemory};
use doorbell_vhost::memory::{
    MapError, MemoryMap, MemoryView, Region, ReleaseSignal, ResolveError, Rights, SharedMap,
};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGE: u64 = 0x1000;

fn file(size: u64) -> OwnedFd {
    let file = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    file
}

fn region(iova: u64, size: u64, rights: Rights, file: Option<(&OwnedFd, u64)>) -> Arc<Region> {
    let file = file.map(|(file, offset)| (file.as_fd(), offset));
    Arc::new(Region::new(iova, size, rights, file, ReleaseSignal::default()).unwrap())
}

fn view(regions: &[Arc<Region>]) -> (Arc<SharedMap>, MemoryView) {
    let shared = SharedMap::new();
    let map = regions.iter().fold(MemoryMap::default(), |map, region| map.with(Arc::clone(region)).unwrap());
    shared.publish(map);
    (Arc::clone(&shared), MemoryView::new(shared))
}

fn pieces(view: &MemoryView, iova: u64, len: usize, access: Access) -> Result<Vec<usize>, ResolveError> {
    let mut pieces = Vec::new();
    view.resolve(iova, len, access, &mut |_, len| pieces.push(len))?;
    Ok(pieces)
}

#[test]
fn accesses_land_in_the_file() {
    let ram = file(4 * PAGE);
    let high = 1 << 45;
    let (_shared, view) = view(&[region(high, 3 * PAGE, Rights::READ_WRITE, Some((&ram, PAGE)))]);
    for (at, len) in [(0, 1), (1, 2), (3, 4), (8, 8), (16, 64), (12, 12), (100, 1000), (PAGE - 3, 7)] {
        let bytes: Vec<u8> = (0..len).map(|index| (at + index) as u8).collect();
        view.write(high + at, &bytes).unwrap();
        let mut back = vec![0; len as usize];
        view.read(high + at, &mut back).unwrap();
        assert_eq!(back, bytes);
        let mut stored = vec![0; len as usize];
        rustix::io::pread(&ram, &mut stored, PAGE + at).unwrap();
        assert_eq!(stored, bytes, "{at} {len}");
    }
    view.publish(high + 32, [1, 2, 3, 4]).unwrap();
    let mut entry = [0; 16];
    view.read(high + 32, &mut entry).unwrap();
    assert_eq!(entry, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    view.store_u32(high + 8, 5).unwrap();
    assert_eq!(view.compare_exchange_u32(high + 8, 4, 6), Ok(5));
    assert_eq!(view.compare_exchange_u32(high + 8, 5, 6), Ok(5));
    assert_eq!(view.load_u32(high + 8), Ok(6));
}

#[test]
fn ranges_that_leave_memory_or_wrap_are_errors_and_move_nothing() {
    let ram = file(2 * PAGE);
    let top = 0u64.wrapping_sub(PAGE);
    let low = region(PAGE, PAGE, Rights::READ_WRITE, Some((&ram, 0)));
    let last = region(top, PAGE, Rights::READ_WRITE, Some((&ram, PAGE)));
    let (_shared, view) = view(&[low, last]);
    let mut bytes = [0; 16];
    for address in [0, PAGE - 1, 2 * PAGE - 15, 2 * PAGE, u64::MAX - 14, u64::MAX] {
        assert_eq!(view.read(address, &mut bytes), Err(DmaError), "{address:#x}");
        assert_eq!(view.write(address, &[7; 16]), Err(DmaError), "{address:#x}");
        assert_eq!(view.publish(address, [7; 4]), Err(DmaError));
        assert_eq!(view.check(address, 16, Access::Read), Err(DmaError));
        assert_eq!(pieces(&view, address, 16, Access::Read), Err(ResolveError::Dma(DmaError)));
    }
    view.read(2 * PAGE - 16, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16], "a write that failed left nothing");
    view.write(u64::MAX - 15, &[3; 16]).unwrap();
    assert_eq!(view.check(PAGE, u64::MAX, Access::Read), Err(DmaError));
    assert_eq!(view.check(top, PAGE, Access::Write), Ok(()));
    assert_eq!(view.check(top, PAGE + 1, Access::Write), Err(DmaError));
}

#[test]
fn a_range_over_several_regions_is_whole() {
    let ram = file(8 * PAGE);
    let regions = [
        region(0, PAGE, Rights::READ_WRITE, Some((&ram, 4 * PAGE))),
        region(PAGE, PAGE, Rights::READ_WRITE, Some((&ram, 0))),
        region(2 * PAGE, PAGE, Rights::READ_WRITE, Some((&ram, 2 * PAGE))),
    ];
    let (_shared, view) = view(&regions);
    let bytes: Vec<u8> = (0..3 * PAGE).map(|index| (index / 7) as u8).collect();
    view.write(0, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    view.read(0, &mut back).unwrap();
    assert!(back == bytes);
    let lens = pieces(&view, 16, 3 * PAGE as usize - 32, Access::Write).unwrap();
    assert_eq!(lens.iter().sum::<usize>(), 3 * PAGE as usize - 32);
    assert!(lens.len() <= 3);
    assert_eq!(pieces(&view, 16, 0, Access::Write), Ok(vec![0]));
    assert_eq!(view.load_u32(PAGE - 2), Ok(u32::from_le_bytes(bytes[0xffe..0x1002].try_into().unwrap())));
}

#[test]
fn read_only_memory_is_not_written() {
    let ram = file(PAGE);
    let (_shared, view) = view(&[
        region(0, PAGE, Rights { read: true, write: false }, Some((&ram, 0))),
        region(PAGE, PAGE, Rights { read: false, write: true }, None),
    ]);
    assert_eq!(view.write(0, &[1]), Err(DmaError));
    assert_eq!(view.store_u32(0, 1), Err(DmaError));
    assert_eq!(view.compare_exchange_u32(0, 0, 1), Err(DmaError));
    assert_eq!(view.publish(0, [0; 4]), Err(DmaError));
    assert_eq!(view.check(0, 8, Access::Write), Err(DmaError));
    assert_eq!(view.load_u32(0), Ok(0));
    assert_eq!(view.load_u32(PAGE), Err(DmaError));
}

#[test]
fn memory_without_a_file_has_no_pointer() {
    let ram = file(PAGE);
    let (_shared, view) = view(&[
        region(0, PAGE, Rights::READ_WRITE, Some((&ram, 0))),
        region(PAGE, 100, Rights::READ_WRITE, None),
    ]);
    assert_eq!(pieces(&view, PAGE - 8, 16, Access::Read), Err(ResolveError::MessageOnly));
    assert!(!view.is_mapped(PAGE, 4, Access::Read) && view.is_mapped(0, 4, Access::Read));
    assert_eq!(view.check(PAGE - 8, 108, Access::Write), Ok(()));
    assert_eq!(view.load_u32(PAGE), Err(DmaError), "nobody to ask");
}

#[test]
fn a_view_follows_the_map_and_lets_go_when_told() {
    let ram = file(4 * PAGE);
    let (shared, view) = view(&[region(0, PAGE, Rights::READ_WRITE, Some((&ram, 0)))]);
    view.store_u32(0, 1).unwrap();
    // Memory that is new is found without being told: the guest may use it at once.
    let map = shared.current().with(region(PAGE, PAGE, Rights::READ_WRITE, Some((&ram, PAGE)))).unwrap();
    shared.publish(map);
    view.store_u32(PAGE, 2).unwrap();
    assert!(view.has_retired());
    view.release_retired();
    // Memory that is gone stays where it was found until the view goes on.
    assert_eq!(view.load_u32(0), Ok(1));
    let removed = {
        let (map, removed) = shared.current().without(0, PAGE).unwrap();
        shared.publish(map);
        Arc::downgrade(&removed)
    };
    assert_eq!(view.load_u32(0), Ok(1));
    assert!(view.update() && !view.update());
    assert_eq!(view.load_u32(0), Err(DmaError));
    assert_eq!(removed.strong_count(), 1);
    view.release_retired();
    assert_eq!(removed.strong_count(), 0);
    assert_eq!(view.generation(), shared.generation());
}

#[test]
fn regions_never_overlap_and_only_whole_ones_go() {
    let map = MemoryMap::default().with(region(0x1000, 0x1000, Rights::READ_WRITE, None)).unwrap();
    for (iova, size) in [(0x1000, 0x1000), (0, 0x1001), (0x1fff, 1), (0, u64::MAX), (0x1800, 0x10)] {
        let other = region(iova, size, Rights::READ_WRITE, None);
        assert_eq!(map.with(other).unwrap_err(), MapError::Overlap, "{iova:#x} {size:#x}");
    }
    for (iova, size) in [(0, 0x1000), (0x2000, u64::MAX - 0x1fff), (0, 1)] {
        assert!(map.with(region(iova, size, Rights::READ_WRITE, None)).is_ok(), "{iova:#x} {size:#x}");
    }
    assert_eq!(map.without(0x1000, 0xfff).unwrap_err(), MapError::NoSuchRegion);
    assert_eq!(map.without(0x1001, 0xfff).unwrap_err(), MapError::NoSuchRegion);
    assert!(map.without(0x1000, 0x1000).unwrap().0.regions().is_empty());
    let bad = |iova, size| Region::new(iova, size, Rights::READ_WRITE, None, ReleaseSignal::default());
    assert_eq!(bad(5, 0).unwrap_err(), MapError::BadRange);
    assert_eq!(bad(u64::MAX, 2).unwrap_err(), MapError::BadRange);
    assert!(bad(u64::MAX, 1).is_ok());
    let ram = file(PAGE);
    let odd = Region::new(0x1001, 16, Rights::READ_WRITE, Some((ram.as_fd(), 0)), ReleaseSignal::default());
    assert_eq!(odd.unwrap_err(), MapError::Misaligned);
}

/// SPDK's client without `-g` (single file segments) sends the first of several files for the whole range.
#[test]
fn a_file_that_ends_before_its_range_is_refused_by_name() {
    let ram = file(2 * PAGE);
    let new = |size, offset| {
        let released = ReleaseSignal::default();
        Region::new(0x1000, size, Rights::READ_WRITE, Some((ram.as_fd(), offset)), released)
    };
    assert!(new(2 * PAGE, 0).is_ok());
    let error = new(4 * PAGE, 0).unwrap_err();
    assert_eq!(error, MapError::FileTooShort { file_bytes: 2 * PAGE, end: 4 * PAGE });
    assert!(error.to_string().contains("-g"), "{error}");
    assert!(matches!(new(2 * PAGE, PAGE), Err(MapError::FileTooShort { .. })));
    assert_eq!(rustix::io::Errno::from(error), rustix::io::Errno::INVAL);
}

/// Nanoseconds of the accesses of a command; run by hand, in release:
/// `cargo test --release --test vfio_user -- --ignored --nocapture view_speed`.
#[test]
#[ignore = "a measurement"]
fn view_speed() {
    let ram = file(64 << 20);
    let base = 1 << 45;
    let (_shared, view) = view(&[region(base, 64 << 20, Rights::READ_WRITE, Some((&ram, 0)))]);
    let time = |what: &str, access: &mut dyn FnMut(u64)| {
        let best = (0..20).map(|_| {
            let start = std::time::Instant::now();
            for index in 0..10_000u64 {
                access(base + (index * 64) % 65536);
            }
            start.elapsed().as_nanos() as f64 / 10_000.0
        });
        eprintln!("{what}: {:.2} ns", best.fold(f64::MAX, f64::min));
    };
    time("read 64", &mut |address| {
        let mut entry = [0; 64];
        view.read(address, &mut entry).unwrap();
        std::hint::black_box(entry);
    });
    time("read 8", &mut |address| {
        let mut entry = [0; 8];
        view.read(address, &mut entry).unwrap();
        std::hint::black_box(entry);
    });
    time("publish", &mut |address| view.publish(address, [1, 2, 3, address as u32]).unwrap());
    time("load_u32", &mut |address| _ = std::hint::black_box(view.load_u32(address).unwrap()));
    time("resolve 4096", &mut |address| {
        view.resolve(address, 4096, Access::Write, &mut |host, len| _ = std::hint::black_box((host, len)))
            .unwrap();
    });
}

proptest! {
    #[test]
    fn a_view_agrees_with_a_flat_model(
        layout in prop::collection::vec((0u64..40, 1u64..4, 0u8..4), 1..8),
        accesses in prop::collection::vec((0u64..44 * PAGE, 0usize..10_000, any::<u8>()), 1..60),
    ) {
        let ram = file(160 * PAGE);
        let mut map = MemoryMap::default();
        let mut model = vec![None; 48 * PAGE as usize];
        for (index, (page, pages, rights)) in layout.into_iter().enumerate() {
            let rights = Rights { read: true, write: rights != 0 };
            let offset = index as u64 * 5 * PAGE;
            let next = map.with(region(page * PAGE, pages * PAGE, rights, Some((&ram, offset))));
            if let Ok(next) = next {
                map = next;
                model[(page * PAGE) as usize..((page + pages) * PAGE) as usize].fill(Some((0u8, rights.write)));
            }
        }
        let shared = SharedMap::new();
        shared.publish(map);
        let view = MemoryView::new(shared);
        for (address, len, byte) in accesses {
            let range = address as usize..(address as usize + len).min(model.len());
            let whole = range.len() == len;
            let writable = whole && model[range.clone()].iter().all(|cell| matches!(cell, Some((_, true))));
            let readable = whole && model[range.clone()].iter().all(Option::is_some);
            if len > 0 {
                prop_assert_eq!(view.write(address, &vec![byte; len]).is_ok(), writable);
                prop_assert_eq!(view.check(address, len as u64, Access::Write).is_ok(), writable);
                prop_assert_eq!(pieces(&view, address, len, Access::Read).is_ok(), readable);
            }
            if writable {
                model[range.clone()].fill(Some((byte, true)));
            }
            if readable && len > 0 {
                let mut back = vec![0; len];
                view.read(address, &mut back).unwrap();
                let expected: Vec<u8> = model[range].iter().map(|cell| cell.unwrap().0).collect();
                prop_assert_eq!(back, expected);
            }
        }
    }
}
