//! ioeventfds: put up while shadow doorbells are active, in `shadow` mode only.

use std::time::Duration;

use doorbell_vhost::client::nvme::{DoorbellMode, Nvme};
use doorbell_vhost::client::queue::ShadowRule;

use crate::child::in_child;
use crate::rig::{Rig, await_that, descriptors, shadow, verify};

const EVENTFD: DoorbellMode = DoorbellMode::ShadowEventFd(ShadowRule::Linux);

fn offsets(nvme: &mut Nvme) -> Vec<u64> {
    nvme.client().io_eventfds(0).unwrap().iter().map(|found| found.offset).collect()
}

#[test]
fn they_are_up_while_shadow_doorbells_are_active_and_the_admin_queue_has_none() {
    let rig = Rig::start(&["ram=16M"], |config| {
        shadow(config);
        config.pollers = 2;
    });
    let mut nvme = rig.driver();
    assert!(offsets(&mut nvme).is_empty());
    drop(nvme.create_queue_pair(16, 4, DoorbellMode::Message, false).unwrap());
    assert!(offsets(&mut nvme).is_empty());
    nvme.enable_shadow().unwrap();
    assert_eq!(offsets(&mut nvme), [0x1008, 0x100c]);
    drop(nvme.create_queue_pair(16, 4, EVENTFD, false).unwrap());
    assert_eq!(offsets(&mut nvme), [0x1008, 0x100c, 0x1010, 0x1014]);
    assert_eq!(rig.stat().ioeventfds, 4);
    nvme.delete_queue_pair(2).unwrap();
    assert_eq!(offsets(&mut nvme), [0x1008, 0x100c]);
    nvme.restart().unwrap();
    assert!(offsets(&mut nvme).is_empty());
    nvme.enable_shadow().unwrap();
    assert!(offsets(&mut nvme).is_empty());
    drop(nvme.create_queue_pair(16, 4, EVENTFD, false).unwrap());
    assert_eq!(rig.stat().ioeventfds, 2);
    drop(nvme);
    await_that("they go with the client", || rig.stat().ioeventfds == 0);
}

#[test]
fn mapped_doorbells_have_none() {
    let rig = Rig::start(&["ram=16M"], |_| {});
    let mut nvme = rig.driver();
    nvme.enable_shadow().unwrap();
    drop(nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap());
    assert!(offsets(&mut nvme).is_empty());
}

#[test]
fn many_lives_leave_no_descriptor() {
    if let Some(passed) = in_child("ioeventfd::many_lives_leave_no_descriptor") {
        assert!(passed);
        return;
    }
    let rig = Rig::start(&["ram=16M"], |config| {
        shadow(config);
        config.pollers = 2;
    });
    let life = |round: usize| {
        let mut nvme = rig.driver();
        nvme.enable_shadow().unwrap();
        let buffer = nvme.allocate(4096).unwrap();
        let mut queues: Vec<_> =
            (0..6).map(|_| nvme.create_queue_pair(16, 4, EVENTFD, false).unwrap()).collect();
        verify(&mut nvme, &mut queues[round % 6], buffer, &[7], 512);
        match round % 3 {
            0 => nvme.delete_queue_pair(6).unwrap(),
            1 => nvme.restart().unwrap(),
            _ => {}
        }
    };
    let settled = || {
        await_that("the client is gone", || !rig.stat().connected);
        std::thread::sleep(Duration::from_millis(20));
        descriptors()
    };
    life(0);
    let before = settled();
    (0..100).for_each(life);
    assert_eq!(settled(), before);
}

/// Each command comes when the poller has gone to sleep, and nothing but the eventfd wakes it.
#[test]
fn an_eventfd_wakes_a_sleeping_poller() {
    let rig = Rig::start(&["ram=16M"], shadow);
    let mut nvme = rig.driver();
    nvme.enable_shadow().unwrap();
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, EVENTFD, false).unwrap();
    let messages = rig.stat().io_doorbell_messages;
    for at in 0..30 {
        std::thread::sleep(Duration::from_millis(10));
        verify(&mut nvme, &mut queue, buffer, &[at], 512);
    }
    let statistics = rig.stat();
    assert_eq!(statistics.io_doorbell_messages, messages);
    assert!(queue.register_writes() >= 30, "{}", queue.register_writes());
    assert!(statistics.queues[0].rearms_won >= 30, "{:?}", statistics.queues[0]);
}
