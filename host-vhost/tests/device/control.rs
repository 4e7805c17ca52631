//! The control socket of a running device.

use doorbell_core::spec::status::Status;
use doorbell_vhost::client::nvme::DoorbellMode;
use doorbell_vhost::client::queue::DriverCommand;
use doorbell_vhost::ctl::protocol::{Answer, Command};

use crate::rig::{IOVA, READ, Rig, WRITE, await_that, collect, plain, prp, run, shadow, transfer, verify};

#[test]
fn counters_say_what_was_done() {
    let rig = Rig::start(&["ram=16M"], shadow);
    assert!(!rig.stat().connected);
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 << 10).unwrap();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Message, true).unwrap();
    let before = rig.stat();
    for at in 0..10 {
        assert!(run(&mut nvme, &mut queue, &transfer(WRITE, at, IOVA + buffer, 4096)).is_success());
    }
    for at in 0..7 {
        assert!(run(&mut nvme, &mut queue, &transfer(READ, at, IOVA + buffer, 16384)).is_success());
    }
    let beyond = transfer(READ, 1 << 40, IOVA + buffer, 4096);
    assert_eq!(plain(run(&mut nvme, &mut queue, &beyond)), Status::LBA_OUT_OF_RANGE);
    let after = rig.stat();
    let counted = &after.queues[0];
    assert!(after.connected && after.ready && !after.shadow_doorbells);
    assert_eq!((after.doorbells.as_str(), after.connections, after.queues.len()), ("shadow", 1, 1));
    assert_eq!((counted.sqid, counted.cqid, counted.commands, counted.errors), (1, 1, 18, 1));
    assert_eq!((counted.bytes_read, counted.bytes_written), (7 * 16384, 10 * 4096));
    assert_eq!((after.write_commands, after.read_commands), (10, 7));
    // Tail and head for each command.
    assert_eq!(counted.doorbell_messages, 36);
    assert_eq!(after.io_doorbell_messages - before.io_doorbell_messages, 36);
    assert_eq!(counted.interrupts, 18);
    drop((queue, nvme));
    await_that("the client is gone", || !rig.stat().connected);
    let last = rig.stat();
    assert!(last.queues.is_empty(), "{:?}", last.queues);
    assert_eq!((last.write_commands, last.read_commands), (10, 7));
}

#[test]
fn namespaces_come_and_go_while_commands_run() {
    let folder = tempfile::tempdir().unwrap();
    crate::rig::image(&folder.path().join("f"), 4 << 20);
    let rig = Rig::start(&["ram=16M"], |config| config.pollers = 2);
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 << 10).unwrap();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let file = format!("file={}/f", folder.path().display());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for spec in ["ram=2M,block=4096", &file, "null=1G"].into_iter().cycle().take(30) {
                let added = rig.ask(Command::NamespaceAdd { spec: spec.into() });
                assert_eq!(added, Ok(Answer::Namespace { nsid: 2 }));
                std::thread::sleep(std::time::Duration::from_millis(2));
                let removed = rig.ask(Command::NamespaceRemove { nsid: 2 });
                assert_eq!(removed, Ok(Answer::Namespace { nsid: 2 }));
            }
        });
        let mut served = 0;
        while !asking.is_finished() {
            for nsid in [1, 2] {
                for _ in 0..16 {
                    let data = prp(IOVA + buffer, 4096);
                    queue.submit(&DriverCommand::transfer(READ, nsid, 0, 1, data)).unwrap();
                }
            }
            queue.ring().unwrap();
            for status in collect(&mut nvme, &mut queue, 32) {
                // Inactive while it is, unknown to the group a moment longer.
                let gone = [Status::INVALID_FIELD, Status::INVALID_NAMESPACE].contains(&plain(status));
                assert!(status.is_success() || gone, "{status:?}");
                served += u32::from(status.is_success());
            }
        }
        asking.join().unwrap();
        assert!(served > 500, "{served}");
    });
    verify(&mut nvme, &mut queue, buffer, &[9], 4096);
    assert_eq!(rig.stat().namespaces.len(), 1);
}

#[test]
fn a_refusal_names_the_way_out() {
    let rig = Rig::start(&["ram=16M", "null=1G"], |_| {});
    let resize = |nsid, size_bytes| Command::NamespaceResize { nsid, size_bytes };
    for (command, text) in [
        (Command::NamespaceRemove { nsid: 9 }, "namespace 9"),
        (Command::NamespaceRemove { nsid: 0 }, "namespace 0"),
        (Command::NamespaceRemove { nsid: u32::MAX }, "namespace 4294967295"),
        (resize(7, 4096), "no namespace 7"),
        (resize(1, 1000), "whole number of blocks of 512"),
        (resize(1, 0), "whole number of blocks"),
        (resize(1, 1 << 62), ""),
        (Command::NamespaceAdd { spec: "tape=1G".into() }, "ram=1G"),
        (Command::NamespaceAdd { spec: "file=/nowhere/at/all".into() }, "/nowhere/at/all"),
    ] {
        let refused = rig.ask(command.clone()).unwrap_err();
        assert!(refused.contains(text) && refused.len() > 10, "{command:?}: {refused}");
    }
    assert_eq!(rig.stat().namespaces[0].size_bytes, 16 << 20);
    for nsid in 3..=32 {
        assert_eq!(rig.ask(Command::NamespaceAdd { spec: "null=1M".into() }), Ok(Answer::Namespace { nsid }));
    }
    let full = rig.ask(Command::NamespaceAdd { spec: "null=1M".into() }).unwrap_err();
    assert!(full.contains("32") || full.contains("remove"), "{full}");
}

#[test]
fn several_may_ask_at_once() {
    let rig = Rig::start(&["ram=16M"], |config| config.pollers = 3);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(rig.stat().pollers.len(), 3)));
        }
        scope.spawn(|| {
            for _ in 0..20 {
                let nsid = match rig.ask(Command::NamespaceAdd { spec: "null=1M".into() }) {
                    Ok(Answer::Namespace { nsid }) => nsid,
                    other => panic!("{other:?}"),
                };
                assert!(rig.ask(Command::NamespaceResize { nsid, size_bytes: 2 << 20 }).is_ok());
                assert!(rig.ask(Command::NamespaceRemove { nsid }).is_ok());
            }
        });
    });
}
