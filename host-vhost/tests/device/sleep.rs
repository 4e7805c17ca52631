//! Processor time of threads that have nothing to do.

use std::time::{Duration, Instant};

use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::ShadowRule;

use crate::child::in_child;
use crate::rig::{IOVA, READ, Rig, collect, cpu_time, shadow, transfer, verify};

/// Processor time that the pollers (and the control thread) take in `time`.
fn spent(time: Duration) -> Duration {
    let before = cpu_time("poller") + cpu_time("control");
    std::thread::sleep(time);
    cpu_time("poller") + cpu_time("control") - before
}

#[test]
fn without_a_client_nothing_runs() {
    if let Some(passed) = in_child("sleep::without_a_client_nothing_runs") {
        assert!(passed);
        return;
    }
    for change in [(|_| {}) as fn(&mut _), shadow] {
        let rig = Rig::start(&["ram=16M"], |config| {
            change(config);
            config.pollers = 2;
        });
        std::thread::sleep(Duration::from_millis(50));
        let fresh = spent(Duration::from_millis(300));
        drop(rig.driver());
        std::thread::sleep(Duration::from_millis(100));
        let afterwards = spent(Duration::from_millis(300));
        println!("without a client: {fresh:?}, after one: {afterwards:?}, of 300 ms");
        assert!(fresh < Duration::from_millis(2), "{fresh:?}");
        assert!(afterwards < Duration::from_millis(2), "{afterwards:?}");
    }
}

#[test]
fn shadow_doorbells_let_pollers_sleep_within_50_ms() {
    if let Some(passed) = in_child("sleep::shadow_doorbells_let_pollers_sleep_within_50_ms") {
        assert!(passed);
        return;
    }
    let rig = Rig::start(&["ram=16M"], |config| {
        shadow(config);
        config.pollers = 2;
    });
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(4096).unwrap();
    let mut by_message = nvme.create_queue_pair(64, 32, DoorbellMode::Message, false).unwrap();
    nvme.enable_shadow().unwrap();
    let mode = DoorbellMode::ShadowEventFd(ShadowRule::Linux);
    let mut by_eventfd = nvme.create_queue_pair(64, 32, mode, false).unwrap();
    for round in 0..5 {
        for queue in [&mut by_message, &mut by_eventfd] {
            for _ in 0..100 {
                for _ in 0..32 {
                    queue.submit(&transfer(READ, 0, IOVA + buffer, 4096)).unwrap();
                }
                queue.ring().unwrap();
                collect(&mut nvme, queue, 32);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        let idle = spent(Duration::from_millis(300));
        println!("shadow, round {round}: {idle:?} of 300 ms");
        assert!(idle < Duration::from_millis(2), "{idle:?}");
        // The first command after the silence.
        for queue in [&mut by_message, &mut by_eventfd] {
            let start = Instant::now();
            verify(&mut nvme, queue, buffer, &[round], 512);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        }
    }
}

#[test]
fn mapped_doorbells_cost_an_idle_poller_little() {
    if let Some(passed) = in_child("sleep::mapped_doorbells_cost_an_idle_poller_little") {
        assert!(passed);
        return;
    }
    let rig = Rig::start(&["ram=16M"], |_| {});
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    verify(&mut nvme, &mut queue, buffer, &[1], 512);
    std::thread::sleep(Duration::from_millis(50));
    let time = Duration::from_secs(1);
    let idle = spent(time);
    println!("mapped: {:.1} % of a core", 100.0 * idle.as_secs_f64() / time.as_secs_f64());
    assert!(idle < time / 10, "{idle:?}");
    let start = Instant::now();
    verify(&mut nvme, &mut queue, buffer, &[2], 512);
    assert!(start.elapsed() < Duration::from_secs(1));
}
