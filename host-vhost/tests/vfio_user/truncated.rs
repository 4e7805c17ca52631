//! A client that truncates its memory's file loses its device; the process and other devices live on.

use std::os::fd::AsFd;
use std::sync::Arc;

use doorbell_core::memory::{DmaError, DmaMemory};
use doorbell_vhost::memory::sigbus::poisoned_mappings;
use doorbell_vhost::memory::{MemoryMap, MemoryView, Region, ReleaseSignal, Rights, SharedMap};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::child::in_child;

fn view_of(size: u64) -> (std::os::fd::OwnedFd, MemoryView) {
    let file = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    let region =
        Region::new(0, size, Rights::READ_WRITE, Some((file.as_fd(), 0)), ReleaseSignal::default()).unwrap();
    assert!(!region.mapping().unwrap().is_sealed());
    let shared = SharedMap::new();
    shared.publish(MemoryMap::default().with(Arc::new(region)).unwrap());
    (file, MemoryView::new(shared))
}

#[test]
fn a_truncated_file_poisons_its_mapping_and_no_other() {
    if let Some(lived) = in_child("truncated::a_truncated_file_poisons_its_mapping_and_no_other") {
        assert!(lived);
        return;
    }
    let (file, view) = view_of(0x10_0000);
    let (_other_file, other) = view_of(0x10_0000);
    view.write(0x8000, &[5; 4096]).unwrap();
    other.write(0x8000, &[6; 4096]).unwrap();
    assert_eq!(poisoned_mappings(), 0);
    ftruncate(&file, 0x1000).unwrap();
    let mut bytes = [1; 4096];
    view.read(0x8000, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
    view.write(0x9000, &[7; 64]).unwrap();
    assert!(view.is_poisoned() && !other.is_poisoned());
    assert_eq!(poisoned_mappings(), 1);
    other.read(0x8000, &mut bytes).unwrap();
    assert_eq!(bytes, [6; 4096]);
    // Whoever looks anew isn't given such memory.
    let fresh = MemoryView::new({
        let shared = SharedMap::new();
        shared.publish(MemoryMap::clone(&view.snapshot()));
        shared
    });
    assert_eq!(fresh.read(0, &mut bytes), Err(DmaError));
    // Places of mappings that are gone are free for others.
    drop((view, fresh));
    let (file, view) = view_of(0x10_0000);
    ftruncate(&file, 0).unwrap();
    view.store_u32(0, 1).unwrap();
    assert_eq!(poisoned_mappings(), 2);
}

#[test]
fn a_bus_error_elsewhere_still_ends_the_process() {
    if let Some(lived) = in_child("truncated::a_bus_error_elsewhere_still_ends_the_process") {
        assert!(!lived);
        return;
    }
    let (_file, view) = view_of(0x1000);
    view.store_u32(0, 1).unwrap();
    // The first puts back the default handler, and one that is still pending swallows the next.
    for _ in 0..1000 {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
