//! What a well-behaved client sees.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::queue::DoorbellMap;
use doorbell_vhost::interrupt::{INTX, MSIX, drain_eventfd, new_eventfd};
use doorbell_vhost::memory::{Mapping, Rights, SharedMap};
use doorbell_vhost::vfio_user::protocol::{IrqInfo, IrqSet, RegionInfo};

use crate::dummy::{Dummy, serve, serve_with};
use crate::raw::{access, ask, dma, dwords, message, negotiate, receive, send};

#[test]
fn what_qemu_asks_at_the_start() {
    let (mut stream, server) = serve(true);
    let version = negotiate(&mut stream);
    let text = std::str::from_utf8(&version.payload[4..version.payload.len() - 1]).unwrap();
    assert!(text.contains("\"max_data_xfer_size\":65536") && text.contains("\"write_multiple\":true"));
    assert_eq!(ask(&mut stream, 2, 4, &dwords(&[16, 0, 0, 0])).payload, dwords(&[16, 3, 9, 5]));
    // BAR0: first how long the answer is, then the answer with its one area.
    let short = ask(&mut stream, 3, 5, &dwords(&[32, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(short.payload, dwords(&[64, 3, 0, 0, 0x4000, 0, 0, 0]), "no mmap flag without a file");
    let full = ask(&mut stream, 4, 5, &dwords(&[64, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(full.payload[..32], dwords(&[64, 0xf, 0, 32, 0x4000, 0, 0, 0]));
    assert_eq!(full.payload[32..], dwords(&[0x1_0001, 0, 1, 0, 0x1000, 0, 0x1000, 0]));
    // No such BAR; configuration space.
    let bar = ask(&mut stream, 5, 5, &dwords(&[32, 0, 1, 0, 0, 0, 0, 0]));
    assert_eq!(bar.payload, dwords(&[32, 0, 1, 0, 0, 0, 0, 0]));
    let config = ask(&mut stream, 6, 5, &dwords(&[32, 0, 7, 0, 0, 0, 0, 0]));
    assert_eq!(config.payload, dwords(&[32, 3, 7, 0, 4096, 0, 0, 0]));
    let whole = ask(&mut stream, 7, 9, &access(0, 7, 4096, &[]));
    assert_eq!(whole.payload[..16], access(0, 7, 4096, &[]));
    assert_eq!(whole.payload.len(), 16 + 4096);
    assert_eq!(ask(&mut stream, 8, 7, &dwords(&[16, 0, 2, 0])).payload, dwords(&[16, 1, 2, 64]));
    assert_eq!(ask(&mut stream, 9, 7, &dwords(&[16, 0, 1, 0])).payload, dwords(&[16, 0, 1, 0]));
    drop(stream);
    server.join().unwrap();
}

#[test]
fn places_that_do_not_exist_read_as_ones() {
    let (stream, server) = serve(true);
    let mut client = Client::new(stream).unwrap();
    for (region, offset, len) in
        [(0, 0x4000, 4), (0, 0x3ffe, 4), (0, u64::MAX, 8), (1, 0, 1), (6, 0x100, 4), (8, 0, 2), (7, 4095, 2)]
    {
        let mut data = vec![0; len];
        client.region_read(region, offset, &mut data).unwrap();
        assert_eq!(data, vec![0xff; len], "{region} {offset:#x}");
        client.region_write(region, offset, &data).unwrap();
    }
    client.region_read(0, 0, &mut []).unwrap();
    drop(client);
    server.join().unwrap();
}

#[test]
fn the_doorbell_page_is_one_place() {
    let (stream, server) = serve(true);
    let mut client = Client::new(stream).unwrap();
    let bar = client.region(0).unwrap();
    let file = bar.file.unwrap();
    let offset = bar.areas[0].offset.get();
    let mapping = Mapping::new(file.as_fd(), offset, 0x1000, Rights::READ_WRITE).unwrap();
    let map = DoorbellMap::new(mapping, offset, 0x1000);
    map.register(0x1008).unwrap().store(0x1234_5678, Ordering::Relaxed);
    let mut value = [0; 4];
    client.region_read(0, 0x1008, &mut value).unwrap();
    assert_eq!(u32::from_le_bytes(value), 0x1234_5678);
    client.region_write(0, 0x100c, &7u32.to_le_bytes()).unwrap();
    assert_eq!(map.register(0x100c).unwrap().load(Ordering::Relaxed), 7);
    assert!(map.register(0x2000).is_none() && map.register(0xffc).is_none());
    drop(client);
    server.join().unwrap();
}

#[test]
fn without_a_mapping_there_is_no_flag_and_no_file_but_ioeventfds() {
    let (stream, server) = serve(false);
    let mut client = Client::new(stream).unwrap();
    let bar = client.region(0).unwrap();
    assert_eq!(bar.info.flags.get(), RegionInfo::READ | RegionInfo::WRITE);
    assert!(bar.file.is_none() && bar.areas.is_empty());
    let found = client.io_eventfds(0).unwrap();
    assert_eq!(found.len(), 20, "our client takes as many as Linux passes");
    assert_eq!((found[3].offset, found[3].size), (0x1014, 4));
    rustix::io::write(&*found[3].eventfd, &5u64.to_ne_bytes()).unwrap();
    assert!(client.io_eventfds(1).unwrap().is_empty());
    drop(client);
    let device = server.join().unwrap().device;
    assert_eq!(drain_eventfd(device.io_eventfds[3].1.as_fd()), 5);
}

#[test]
fn a_short_question_for_ioeventfds_says_how_long_the_answer_is() {
    let (mut stream, server) = serve(false);
    negotiate(&mut stream);
    // The client takes 8 file descriptors.
    let short = ask(&mut stream, 2, 6, &dwords(&[16, 0, 0, 0]));
    assert_eq!(short.payload, dwords(&[16 + 8 * 48, 0, 0, 8]));
    let full = ask(&mut stream, 3, 6, &dwords(&[16 + 8 * 48, 0, 0, 0]));
    assert_eq!(full.payload.len(), 16 + 8 * 48);
    assert_eq!(full.payload[16..40], dwords(&[0x1008, 0, 4, 0, 0, 0]));
    drop(stream);
    server.join().unwrap();
}

#[test]
fn interrupts_come_to_their_eventfds() {
    let (stream, server) = serve(true);
    let mut client = Client::new(stream).unwrap();
    assert_eq!(client.irq_info(INTX).unwrap().flags.get(), IrqInfo::EVENTFD | 6);
    let trigger = IrqSet::DATA_EVENTFD | IrqSet::ACTION_TRIGGER;
    // QEMU starts MSI-X with a vector that has no eventfd yet.
    client.set_irqs(MSIX, trigger, 0, 1, &[]).unwrap();
    let eventfds: Vec<_> = (0..3).map(|_| new_eventfd().unwrap()).collect();
    let fds: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
    client.set_irqs(MSIX, trigger, 2, 3, &fds).unwrap();
    client.region_write(0, 0x10, &[3]).unwrap();
    assert_eq!(fds.iter().map(|fd| drain_eventfd(*fd)).collect::<Vec<_>>(), [0, 1, 0]);
    client.set_irqs(MSIX, IrqSet::DATA_NONE | IrqSet::ACTION_TRIGGER, 0, 0, &[]).unwrap();
    client.region_write(0, 0x10, &[3]).unwrap();
    assert_eq!(drain_eventfd(fds[1]), 0);
    client.set_irqs(INTX, trigger, 0, 1, &fds[..1]).unwrap();
    client.region_write(0, 0x14, &[1]).unwrap();
    assert_eq!(drain_eventfd(fds[0]), 1);
    client.set_irqs(INTX, IrqSet::DATA_NONE | IrqSet::ACTION_UNMASK, 0, 1, &[]).unwrap();
    assert_eq!(drain_eventfd(fds[0]), 1);
    drop(client);
    server.join().unwrap();
}

#[test]
fn several_writes_in_one_message() {
    let (mut stream, server) = serve(true);
    negotiate(&mut stream);
    let mut payload = vec![2, 0, 0, 0, 0, 0, 0, 0];
    payload.extend(access(0x20, 0, 4, &[1, 2, 3, 4, 0, 0, 0, 0]));
    payload.extend(access(0x1008, 0, 8, &[5, 0, 0, 0, 6, 0, 0, 0]));
    payload.resize(8 + 200 * 24, 0);
    let answer = ask(&mut stream, 4, 15, &payload);
    assert_eq!(answer.payload, [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(&mut stream, 5, 9, &access(0x100c, 0, 4, &[])).payload[16..], [6, 0, 0, 0]);
    drop(stream);
    let ended = server.join().unwrap();
    assert_eq!(ended.statistics.region_writes, 2);
    assert_eq!(ended.device.registers[0x20..0x24], [1, 2, 3, 4]);
}

#[test]
fn an_unmap_waits_for_the_device_and_for_every_snapshot_and_keeps_the_order() {
    let memory = SharedMap::new();
    let kept = std::sync::Arc::clone(&memory);
    let slow = |memory: &_| Dummy { slow: true, ..Dummy::new(memory, true) };
    let (mut stream, server) = serve_with(memory, slow, |_, _| {});
    negotiate(&mut stream);
    let guest = ClientMemory::new(0x1000, 0x10_0000, false).unwrap();
    send(&stream, &message(10, 2, &dma(32, 3, &[0, 0x1000, 0x10_0000])), &[guest.as_fd()]);
    assert_eq!(receive(&mut stream).id, 10);
    let snapshot = kept.current();
    send(&stream, &message(11, 3, &dma(24, 0, &[0x1000, 0x10_0000])), &[guest.as_fd()]);
    send(&stream, &message(12, 2, &dma(32, 3, &[0, 0x1000, 0x10_0000])), &[guest.as_fd()]);
    // Other messages go on meanwhile.
    let write = |stream: &mut UnixStream| ask(stream, 13, 10, &access(8, 0, 4, &[1, 0, 0, 0]));
    assert_eq!(ask(&mut stream, 13, 10, &access(0, 0, 4, &[1, 0, 0, 0])).id, 13);
    // The device is done, the snapshot isn't.
    assert_eq!(write(&mut stream).id, 13);
    assert_eq!(snapshot.regions().len(), 1);
    assert_eq!(kept.current().regions().len(), 1);
    drop(snapshot);
    let unmapped = receive(&mut stream);
    assert_eq!((unmapped.id, unmapped.payload.len()), (11, 24));
    assert_eq!(receive(&mut stream).id, 12);
    // The other way round: a reset waits for the device.
    send(&stream, &message(14, 13, &[]), &[]);
    assert_eq!(write(&mut stream).id, 13);
    assert_eq!(receive(&mut stream).id, 14);
    drop(stream);
    assert!(server.join().unwrap().released);
}

#[test]
fn unmap_all_takes_everything() {
    let (mut stream, server) = serve(true);
    negotiate(&mut stream);
    for index in 0..5u64 {
        send(&stream, &message(2, 2, &dma(32, 3, &[0, index << 20, 0x1000])), &[]);
        assert_eq!(receive(&mut stream).flags, 1);
    }
    let answer = ask(&mut stream, 3, 3, &dma(24, 2, &[0, 0]));
    assert_eq!((answer.flags, answer.payload), (1, dma(24, 2, &[0, 0])));
    drop(stream);
    let ended = server.join().unwrap();
    assert_eq!((ended.device.added, ended.device.removed.len()), (5, 5));
}

/// Field case 39: bursts of pipelined maps and unmaps that replace all memory, as SeaBIOS makes QEMU send.
#[test]
fn a_seabios_boot_maps_and_unmaps_in_bursts() {
    if let Some(passed) = crate::child::in_child("session::a_seabios_boot_maps_and_unmaps_in_bursts") {
        assert!(passed);
        return;
    }
    let memory = SharedMap::new();
    let shared = std::sync::Arc::clone(&memory);
    let (mut stream, server) = serve_with(memory, |memory| Dummy::new(memory, true), |_, _| {});
    negotiate(&mut stream);
    let low = ClientMemory::new(0, 0x800_0000, false).unwrap();
    let whole: &[(u64, u64)] = &[(0, 0x800_0000)];
    let split: &[(u64, u64)] = &[
        (0, 0xa_0000),
        (0xc_0000, 0xb000),
        (0xcb000, 0x3000),
        (0xce000, 0x1_a000),
        (0xe_8000, 0x8000),
        (0xf_0000, 0x1_0000),
        (0x10_0000, 0x7f0_0000),
    ];
    let (mut id, mut maps, mut unmaps) = (0u16, 0, 0);
    for round in 0..50 {
        let layout = if round % 2 == 0 { split } else { whole };
        let mut sent = Vec::new();
        for (address, size) in layout {
            id = id.wrapping_add(1);
            send(&stream, &message(id, 2, &dma(32, 3, &[*address, *address, *size])), &[low.as_fd()]);
            sent.push((id, 16));
        }
        // A message-only region beside it: a ROM, or our own BAR.
        id = id.wrapping_add(1);
        send(&stream, &message(id, 2, &dma(32, 1, &[0, 0xfebf_0000, 0x1000])), &[]);
        sent.push((id, 16));
        maps += sent.len();
        for (id, bytes) in sent {
            let answer = receive(&mut stream);
            assert_eq!((answer.id, answer.flags, answer.payload.len() + 16), (id, 1, bytes));
        }
        assert_eq!(shared.current().regions().len(), layout.len() + 1);
        let mut sent = Vec::new();
        for (address, size) in layout.iter().chain([&(0xfebf_0000, 0x1000)]) {
            id = id.wrapping_add(1);
            send(&stream, &message(id, 3, &dma(24, 0, &[*address, *size])), &[]);
            sent.push(id);
        }
        unmaps += sent.len();
        for id in sent {
            let answer = receive(&mut stream);
            assert_eq!((answer.id, answer.flags, answer.payload.len()), (id, 1, 24));
        }
        assert!(shared.current().regions().is_empty());
    }
    assert_eq!(maps, unmaps);
    drop(stream);
    server.join().unwrap();
    assert_eq!(mappings_of("guest-memory"), 1, "only the client's own");
}

fn mappings_of(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}
