//! A Linux guest with our controller. One boot runs several scripts of `tests/guest/`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use doorbell_tests::doorbell::{operate, total};
use doorbell_tests::guest::Guest;
use doorbell_tests::qemu::Device;
use doorbell_tests::subject::Subject;
use doorbell_tests::virtio::VirtioServer;
use serde_json::Value;

/// The long boot: probe, verified I/O, administration, resets of every kind.
#[test]
fn driver_probes_verifies_and_recovers() -> Result<()> {
    let subject = Subject::start()?;
    let report = Guest::new(subject.device(), &["probe", "io", "admin", "lifecycle"]).run()?;
    println!("{:?}", report.values);
    subject.finish()
}

#[test]
fn every_transfer_by_sgl_is_verified_too() -> Result<()> {
    let subject = Subject::start()?;
    Guest::new(subject.device(), &["probe", "io"]).kernel("nvme.sgl_threshold=1").run()?;
    subject.finish()
}

#[test]
fn blocks_of_4096_bytes_are_verified_too() -> Result<()> {
    let subject = Subject::start_with("--block-size 4096")?;
    Guest::new(subject.device(), &["probe", "io"]).run()?;
    subject.finish()
}

#[test]
fn pin_interrupts_work_without_msi() -> Result<()> {
    let subject = Subject::start()?;
    Guest::new(subject.device(), &["intx"]).kernel("pci=nomsi").run()?;
    subject.finish()
}

#[test]
fn shadow_doorbells_save_most_messages() -> Result<()> {
    let subject = Subject::start_with("--doorbells shadow")?;
    let mut counted = Vec::new();
    let report = Guest::new(subject.device(), &["probe", "doorbells"]).run_with(|question| {
        let stat = subject.server()?.stat()?;
        let (commands, messages) = (total(&stat, "commands"), total(&stat, "doorbell_messages"));
        println!("{question}: {commands} commands, {messages} doorbell messages");
        counted.push((commands, messages));
        Ok("ok".to_owned())
    })?;
    let [before, after] = counted[..] else { bail!("the guest asked {} times", counted.len()) };
    let (commands, messages) = (after.0 - before.0, after.1 - before.1);
    println!("{messages} messages for {commands} commands, {:?}", report.values);
    ensure!(commands >= 10_000, "the server counted {commands} commands");
    // Without them a command costs more than one. How many are left depends on how often the device finds
    // nothing to do and sleeps; on a busy machine that is more often.
    ensure!(messages * 4 < commands, "{messages} doorbell messages for {commands} commands");
    subject.finish()
}

#[test]
fn mapped_doorbells_need_no_message() -> Result<()> {
    let subject = Subject::start_with("--doorbells mapped")?;
    let mut counted = Vec::new();
    Guest::new(subject.device(), &["probe", "doorbells"]).run_with(|_| {
        let stat = subject.server()?.stat()?;
        counted.push((total(&stat, "commands"), total(&stat, "doorbell_messages")));
        Ok("ok".to_owned())
    })?;
    let [before, after] = counted[..] else { bail!("the guest asked {} times", counted.len()) };
    let (commands, messages) = (after.0 - before.0, after.1 - before.1);
    println!("{messages} messages for {commands} commands");
    ensure!(commands >= 10_000, "the server counted {commands} commands");
    ensure!(messages * 100 < commands, "{messages} doorbell messages for {commands} commands");
    subject.finish()
}

#[test]
fn namespaces_come_grow_and_go_under_the_guest() -> Result<()> {
    let subject = Subject::start()?;
    Guest::new(subject.device(), &["probe", "namespaces"]).run_with(|question| {
        let server = subject.server()?;
        match question {
            "add" => server.namespace("add", &["ram=16M"]),
            "resize" => server.namespace("resize", &["2", "32M"]),
            "remove" => server.namespace("remove", &["2"]),
            other => bail!("an unknown question: {other}"),
        }
        .context("doorbell namespace")
        .map(|_| "ok".to_owned())
    })?;
    subject.finish()
}

#[test]
fn twenty_reboots_keep_the_disk() -> Result<()> {
    const BOOTS: u32 = 20;
    let subject = Subject::start()?;
    let guest = Guest::new(subject.device(), &["reboot"]).limit(Duration::from_secs(1200));
    let mut boots = 0;
    guest.run_with(|question| Ok(count_boots(&mut boots, BOOTS, question)))?;
    ensure!(boots == BOOTS, "the guest booted {boots} times");
    subject.finish()
}

/// A virtio disk whose server is killed twenty times while fio verifies: nothing is lost.
#[test]
fn a_virtio_disk_survives_twenty_kills_of_its_server() -> Result<()> {
    let server = Arc::new(Mutex::new(VirtioServer::start(64 << 20)?));
    let verifying = Arc::new(AtomicBool::new(false));
    let mut killer: Option<JoinHandle<Result<u32>>> = None;
    let mut kills = 0;
    let device = server.lock().unwrap_or_else(PoisonError::into_inner).device();
    Guest::new(device, &["virtio"]).run_with(|question| {
        verifying.store(question == "verify begins", Ordering::Relaxed);
        match killer.take() {
            None => {
                let (server, verifying) = (Arc::clone(&server), Arc::clone(&verifying));
                killer = Some(thread::spawn(move || {
                    let mut kills = 0;
                    while kills < 20 {
                        thread::sleep(Duration::from_millis(600));
                        if !verifying.load(Ordering::Relaxed) {
                            break;
                        }
                        server.lock().unwrap_or_else(PoisonError::into_inner).kill_and_restart()?;
                        kills += 1;
                    }
                    Ok(kills)
                }));
            }
            Some(killer) => kills = killer.join().map_err(|_| anyhow!("the killer has panicked"))??,
        }
        Ok("ok".to_owned())
    })?;
    ensure!(kills == 20, "the server was killed {kills} times");
    let server = Arc::into_inner(server).context("nobody else has the server")?;
    server.into_inner().unwrap_or_else(PoisonError::into_inner).stop()
}

/// A running guest moves to another QEMU and back, twice, while fio verifies. Each QEMU has a server of its own, and
/// both servers have the same image.
#[test]
fn a_virtio_disk_follows_a_live_migration() -> Result<()> {
    let first = VirtioServer::start(64 << 20)?;
    let second = first.start_incoming()?;
    // Pages that the kernel clears before the device fills them would be seen to change in any case.
    let guest = Guest::new(first.device(), &["migrate"]).kernel("init_on_alloc=0");
    let mut migrations = Vec::new();
    guest.run_in(|question, machine| {
        ensure!(question == "migrate", "an unknown question: {question}");
        let there = if migrations.len() % 2 == 0 { &second } else { &first };
        let migration = guest.migrate(machine, there.device())?;
        println!("{migration:?}");
        migrations.push(migration);
        Ok("ok".to_owned())
    })?;
    ensure!(migrations.len() == 4, "{} migrations", migrations.len());
    first.stop()?;
    second.stop()
}

/// Plugged in, verified and pulled out, three times, into a guest that was started without it.
#[test]
fn a_virtio_disk_is_plugged_in_and_pulled_out() -> Result<()> {
    let subject = Subject::start()?;
    let server = VirtioServer::start(64 << 20)?;
    let mut plugged = 0;
    let guest = Guest::new(subject.device(), &["plug"]).module("virtio_blk.ko").pluggable();
    guest.run_in(|question, machine| {
        match question {
            "plug" => {
                plugged += 1;
                machine.plug("disk", &server.device())?;
            }
            "unplug" => machine.unplug("disk")?,
            other => bail!("an unknown question: {other}"),
        }
        Ok("ok".to_owned())
    })?;
    ensure!(plugged == 3, "{plugged} disks were plugged in");
    server.stop()?;
    subject.finish()
}

/// Counts a guest's boots up to `limit`, and says whether it shall boot again.
fn count_boots(boots: &mut u32, limit: u32, question: &str) -> String {
    match question {
        "boot" => {
            *boots += 1;
            boots.to_string()
        }
        _ if *boots < limit => "yes".to_owned(),
        _ => "no".to_owned(),
    }
}

/// OVMF reads Linux from the virtio disk, by one queue that it polls; Linux resets it and takes two queues with
/// interrupts; and again.
#[test]
fn linux_takes_a_virtio_disk_over_from_the_firmware_that_read_it() -> Result<()> {
    const BOOTS: u32 = 5;
    let folder = tempfile::tempdir()?;
    let guest = Guest::from_disk(&["takeover"]).kernel("doorbell.efi nokaslr");
    let server = VirtioServer::start_on(&guest.boot_disk(folder.path())?)?;
    let mut boots = 0;
    guest.device(server.device()).run_with(|question| Ok(count_boots(&mut boots, BOOTS, question)))?;
    ensure!(boots == BOOTS, "the guest booted {boots} times");
    server.stop()
}

/// SeaBIOS sets the disk up, with a queue of its own, before Linux does.
#[test]
fn twenty_reboots_keep_a_virtio_disk() -> Result<()> {
    const BOOTS: u32 = 20;
    let server = VirtioServer::start(64 << 20)?;
    let guest = Guest::new(server.device(), &["takeover"]).small().limit(Duration::from_secs(1200));
    let mut boots = 0;
    guest.run_with(|question| Ok(count_boots(&mut boots, BOOTS, question)))?;
    ensure!(boots == BOOTS, "the guest booted {boots} times");
    server.stop()
}

/// A virtio disk grows under its guest, which sees it without a reboot.
#[test]
fn a_virtio_disk_grows_under_the_guest() -> Result<()> {
    let server = VirtioServer::start(64 << 20)?;
    let device = server.device();
    let Device::VhostUser(socket) = &device else { bail!("{device:?} is no virtio disk") };
    Guest::new(device.clone(), &["resize"]).run_with(|question| match question {
        "resize" => operate(socket, &["namespace", "resize"], &["1", "96M"]).map(|_| "ok".to_owned()),
        other => bail!("an unknown question: {other}"),
    })?;
    let stat: Value = serde_json::from_str(&operate(socket, &["stat", "--json"], &[])?)?;
    println!("{stat}");
    ensure!(stat["disk"]["size_bytes"] == 96 << 20, "the server says {}", stat["disk"]["size_bytes"]);
    // The guest wrote 2 MiB and read more than that.
    ensure!(total(&stat, "bytes_written") >= 2 << 20 && total(&stat, "bytes_read") > 2 << 20);
    ensure!(total(&stat, "errors") == 0 && total(&stat, "kicks") > 0 && total(&stat, "notifications") > 0);
    server.stop()
}
