//! Guest memory by messages, and finding out that memory isn't shared.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_core::memory::{DmaError, DmaMemory};
use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::memory::{
    MemoryMap, MemoryView, MessageDma, Region, ReleaseSignal, Rights, SharedMap, Sharing, check_shared,
};
use doorbell_vhost::vfio_user::connection::{Connection, MAX_QUEUED_REQUESTS, Message};
use doorbell_vhost::vfio_user::dma::DmaPort;

use crate::dummy::{Dummy, Flag, serve, serve_with};
use crate::raw::{access, dma, message, negotiate, receive, send};

#[test]
fn a_poller_reads_and_writes_memory_without_a_file() {
    let memory = SharedMap::new();
    let shared = Arc::clone(&memory);
    let (stream, server) = serve_with(memory, |memory| Dummy::new(memory, true), |_, _| {});
    let mut client = Client::new(stream).unwrap();
    let guest = ClientMemory::new(0x8000_0000, 0x4_0000, false).unwrap();
    client.map(&guest, true).unwrap();
    guest.write(0x100, &[1, 2, 3, 4, 5]);
    let done = Flag::default();
    let poller = std::thread::spawn({
        let done = done.clone();
        move || {
            let view = MemoryView::new(shared);
            let mut bytes = [0; 5];
            view.read(0x8000_0100, &mut bytes).unwrap();
            assert_eq!(bytes, [1, 2, 3, 4, 5]);
            // More than one message takes.
            let long: Vec<u8> = (0..200_000u32).map(|index| index as u8).collect();
            view.write(0x8000_1000, &long).unwrap();
            let mut back = vec![0; long.len()];
            view.read(0x8000_1000, &mut back).unwrap();
            assert!(back == long);
            view.publish(0x8000_0200, [1, 2, 3, 4]).unwrap();
            assert_eq!(view.load_u32(0x8000_020c), Ok(4));
            assert_eq!(view.compare_exchange_u32(0x8000_0200, 1, 9), Ok(1));
            assert_eq!(view.load_u32(0x8000_0200), Ok(9));
            assert_eq!(view.read(0x8003_ffff, &mut bytes), Err(DmaError));
            done.set();
        }
    });
    while !done.is_set() && !poller.is_finished() {
        client.serve().unwrap();
        // Requests of its own go through at the same time.
        client.device_info().unwrap();
    }
    poller.join().unwrap();
    let messages = client.dma_messages();
    assert!((8..40).contains(&messages), "{messages}");
    let mut bytes = [0; 4];
    guest.read(0x1000, &mut bytes);
    assert_eq!(bytes, [0, 1, 2, 3]);
    drop(client);
    server.join().unwrap();
}

#[test]
fn the_serving_thread_asks_too_and_requests_wait_in_order() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let connection = Connection::new(ours, 16).unwrap();
    let mut peer = theirs;
    let client = std::thread::spawn(move || {
        // Requests that come before the answer.
        for id in 0..5u16 {
            send(&peer, &message(id, 10, &access(u64::from(id), 0, 1, &[7])), &[]);
        }
        let ask = receive(&mut peer);
        assert_eq!((ask.command, ask.flags, ask.payload.len()), (11, 0, 16));
        send(&peer, &message(100, 10, &access(100, 0, 1, &[7])), &[]);
        let mut payload = ask.payload.clone();
        payload.extend_from_slice(&[9, 9, 9, 9]);
        let reply = crate::raw::with_header(ask.id, 11, 36, 1, &payload);
        send(&peer, &reply[..20], &[]);
        std::thread::sleep(Duration::from_millis(20));
        send(&peer, &reply[20..], &[]);
        peer
    });
    let port = DmaPort::new(connection.clone(), 65536);
    let mut bytes = [0; 4];
    port.dma_read(0x5000, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 4]);
    let mut message = Message::default();
    let mut ids = Vec::new();
    while connection.try_receive(&mut message).unwrap() {
        ids.push(message.header.message_id.get());
    }
    assert_eq!(ids, [0, 1, 2, 3, 4, 100]);
    assert!(!connection.has_queued());
    drop(client.join().unwrap());
}

#[test]
fn a_silent_client_costs_one_time_out() {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let connection = Connection::new(ours, 16).unwrap();
    let port = DmaPort::new(connection.clone(), 65536).with_timeout(Duration::from_millis(50));
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(port.dma_read(0, &mut [0; 4]), Err(DmaError));
    }
    // A hundred time-outs would be five seconds.
    assert!(start.elapsed() < Duration::from_millis(2500), "{:?}", start.elapsed());
    // It answers after all: then it is asked again.
    let ask = receive(&mut peer);
    send(&peer, &crate::raw::with_header(ask.id, 11, 36, 1, &[0; 20]), &[]);
    let mut message = Message::default();
    assert!(!connection.try_receive(&mut message).unwrap());
    assert_eq!(port.dma_read(0, &mut [0; 4]), Err(DmaError));
    assert_eq!(receive(&mut peer).command, 11);
    drop(peer);
    assert_eq!(port.dma_write(0, &[0; 4]), Err(DmaError));
}

#[test]
fn a_flood_of_requests_during_a_call_ends_the_connection() {
    let (ours, peer) = UnixStream::pair().unwrap();
    let connection = Connection::new(ours, 16).unwrap();
    let port = DmaPort::new(connection.clone(), 65536);
    for _ in 0..MAX_QUEUED_REQUESTS + 1 {
        send(&peer, &message(1, 13, &[]), &[]);
    }
    assert_eq!(port.dma_read(0, &mut [0; 4]), Err(DmaError));
    assert_eq!(port.dma_read(0, &mut [0; 4]), Err(DmaError));
}

#[test]
fn wrong_answers_are_errors() {
    for (flags, payload) in [
        (0x21, vec![]),
        (1, vec![]),
        (1, dma(0, 0, &[4])),
        (1, [dma(0, 0, &[5]), vec![0; 5]].concat()),
        (1, [dma(0, 0, &[4]), vec![0; 5]].concat()),
    ] {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let port = DmaPort::new(Connection::new(ours, 16).unwrap(), 65536);
        let client = std::thread::spawn(move || {
            let ask = receive(&mut peer);
            let size = 16 + payload.len() as u32;
            send(&peer, &crate::raw::with_header(ask.id, 11, size, flags, &payload), &[]);
            peer
        });
        assert_eq!(port.dma_read(0, &mut [0; 4]), Err(DmaError));
        drop(client.join().unwrap());
    }
}

/// The client's answers, from memory of its own.
#[derive(Debug)]
struct Theirs(Arc<ClientMemory>);

impl MessageDma for Theirs {
    fn dma_read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.read(address - self.0.iova(), buffer);
        Ok(())
    }

    fn dma_write(&self, _: u64, _: &[u8]) -> Result<(), DmaError> {
        Err(DmaError)
    }
}

#[test]
fn private_memory_is_found_out_once_the_guest_has_written() {
    use std::os::fd::AsFd;
    // The file that was passed, and the private copy that the guest writes.
    let file = ClientMemory::new(0x10_0000, 0x1_0000, false).unwrap();
    let guest = ClientMemory::new(0x10_0000, 0x1_0000, false).unwrap();
    let region = Region::new(
        0x10_0000,
        0x1_0000,
        Rights::READ_WRITE,
        Some((file.as_fd(), 0)),
        ReleaseSignal::default(),
    );
    let map = MemoryMap::new(Some(Arc::new(Theirs(Arc::clone(&guest)))));
    let map = map.with(Arc::new(region.unwrap())).unwrap();
    assert_eq!(check_shared(&map, 0x10_2000, 64), Ok(Sharing::Unknown), "nobody has written");
    guest.write(0x2000, &[6, 0, 1, 0]);
    let error = check_shared(&map, 0x10_2000, 64).unwrap_err();
    assert!(error.to_string().contains("share=on"), "{error}");
    file.write(0x2000, &[6, 0, 1, 0]);
    assert_eq!(check_shared(&map, 0x10_2000, 64), Ok(Sharing::Shared));
    assert_eq!(check_shared(&map, 0x20_0000, 64), Ok(Sharing::Unknown), "not memory");
    assert_eq!(check_shared(&map, 0x10_fff0, 64), Ok(Sharing::Unknown), "not whole memory");
}

#[test]
fn a_client_that_would_not_understand_is_not_asked() {
    let (mut stream, server) = serve(true);
    crate::raw::ask(&mut stream, 1, 1, &[0; 4]);
    drop(stream);
    server.join().unwrap();
    let memory = SharedMap::new();
    let (mut stream, server) = serve_with(
        memory,
        |memory| Dummy::new(memory, true),
        |_, session| {
            if let Some(client) = session.client() {
                let expected = client.answers_dma_read();
                assert!(expected);
            }
            assert_eq!(session.check_shared(0, 64), Ok(Sharing::Unknown));
        },
    );
    negotiate(&mut stream);
    drop(stream);
    server.join().unwrap();
}
