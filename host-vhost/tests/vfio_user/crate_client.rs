//! The `vfio_user` crate's client, which Cloud Hypervisor uses, against our session.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::interrupt::{drain_eventfd, new_eventfd};
use doorbell_vhost::memory::SharedMap;
use doorbell_vhost::vfio_user::listener::{Listener, Naming};
use doorbell_vhost::vfio_user::server::Session;
use vfio_user::Client;

use crate::dummy::Dummy;

#[test]
fn the_vfio_user_crate_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nvme.sock");
    let listener = Listener::bind(&path, Naming::Socket).unwrap();
    let server = std::thread::spawn(move || {
        let memory = SharedMap::new();
        let mut device = Dummy::new(&memory, true);
        let stream = loop {
            if let Some(stream) = listener.try_accept().unwrap() {
                break stream;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        let mut session = Session::new(stream, Arc::clone(&memory)).unwrap();
        while session.step(&mut device).is_ok() {
            std::thread::yield_now();
        }
        (device, session.statistics())
    });

    let mut client = Client::new(&path).unwrap();
    let bar = client.region(0).unwrap();
    assert_eq!((bar.size, bar.flags), (0x4000, 0xf));
    assert_eq!(bar.sparse_areas.len(), 1);
    assert_eq!((bar.sparse_areas[0].offset, bar.sparse_areas[0].size), (0x1000, 0x1000));
    assert!(bar.file_offset.is_some(), "a file comes with the mmap flag");
    assert!(client.region(7).unwrap().file_offset.is_none());
    let guest = ClientMemory::new(0x1_0000_0000, 0x20_0000, false).unwrap();
    client.dma_map(0, 0x1_0000_0000, 0x20_0000, guest.as_fd().as_raw_fd()).unwrap();
    let mut config = [0; 64];
    client.region_read(7, 0, &mut config).unwrap();
    assert_eq!(config[5], 5);
    let mut nowhere = [0; 4];
    client.region_read(0, 0x10_0000, &mut nowhere).unwrap();
    assert_eq!(nowhere, [0xff; 4]);
    let irq = client.get_irq_info(2).unwrap();
    assert_eq!(irq.count, 64);
    let eventfds = [new_eventfd().unwrap(), new_eventfd().unwrap()];
    let fds: Vec<_> = eventfds.iter().map(AsRawFd::as_raw_fd).collect();
    client.set_irqs(2, 0x24, 0, 2, &fds).unwrap();
    client.region_write(0, 0x10, &[1]).unwrap();
    client.region_read(0, 0x10, &mut nowhere).unwrap();
    client.reset().unwrap();
    assert_eq!(drain_eventfd(eventfds[1].as_fd()), 1);
    client.dma_unmap(0x1_0000_0000, 0x20_0000).unwrap();
    client.set_irqs(2, 0x21, 0, 0, &[]).unwrap();
    client.shutdown().unwrap();
    let (device, statistics) = server.join().unwrap();
    assert_eq!((device.resets, device.added, device.removed.len()), (1, 1, 1));
    assert_eq!(statistics.errors, 0);
}
