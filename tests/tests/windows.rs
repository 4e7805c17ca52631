//! What Windows' driver does to a controller, as far as it differs from others and has broken devices like
//! ours: which registers it reads back, how it shares completion queues, what it probes.

use anyhow::{Result, ensure};
use doorbell_tests::nvme::{Command, Controller, register};
use doorbell_tests::pci::MsiX;
use doorbell_tests::subject::{Subject, emulated};

#[test]
fn function_fits_the_driver() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    let bar = nvme.function.bars[0];
    ensure!(bar.is_some_and(|bar| bar.len_bytes >= 16 << 10), "BAR 0 is {bar:x?}: 16 KiB at least");
    let mailbox = nvme.allocate(8192)?;
    let msix = MsiX::enable(&mut nvme.qtest, &nvme.function, mailbox)?;
    // QEMU's device has 65, and Windows takes it for what it is.
    ensure!(msix.vectors <= 64 || emulated(), "{} vectors: 64 at most", msix.vectors);
    Ok(())
}

#[test]
fn admin_queue_registers_read_back_in_every_state() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    let check = |nvme: &mut Controller, state: &str, aqa: u32, asq: u64, acq: u64| -> Result<()> {
        let found =
            (nvme.read(register::AQA)?, nvme.read_wide(register::ASQ)?, nvme.read_wide(register::ACQ)?);
        ensure!(found == (aqa, asq, acq), "{state}: AQA, ASQ, ACQ are {found:x?}");
        Ok(())
    };
    let (aqa, asq, acq) = (0x001f_001f, 0x0100_0000, 0x0101_0000);
    nvme.write(register::AQA, aqa)?;
    nvme.write_wide(register::ASQ, asq)?;
    nvme.write_wide(register::ACQ, acq)?;
    check(&mut nvme, "before the first enable", aqa, asq, acq)?;
    let cc = 4 << 20 | 6 << 16;
    nvme.write(register::CC, cc)?;
    check(&mut nvme, "CC written, not enabled", aqa, asq, acq)?;
    nvme.write(register::CC, cc | 1)?;
    nvme.wait_ready(true)?;
    check(&mut nvme, "enabled", aqa, asq, acq)?;
    ensure!(nvme.read(register::CC)? == cc | 1, "CC reads back as {:#x}", nvme.read(register::CC)?);
    // A normal shutdown notification, which completes.
    nvme.write(register::CC, cc | 1 << 14 | 1)?;
    let limit = std::time::Duration::from_secs(60);
    doorbell_tests::process::wait_for("shutdown completes", limit, || {
        Ok((nvme.read(register::CSTS)? >> 2 & 3 == 2).then_some(()))
    })?;
    check(&mut nvme, "shut down", aqa, asq, acq)?;
    nvme.write(register::CC, cc)?;
    nvme.wait_ready(false)?;
    check(&mut nvme, "reset", aqa, asq, acq)?;
    nvme.write(register::CC, cc | 1)?;
    nvme.wait_ready(true)?;
    check(&mut nvme, "enabled again", aqa, asq, acq)?;
    ensure!(nvme.read(register::CSTS)? >> 2 & 3 == 0, "the shutdown status survived a reset");
    Ok(())
}

#[test]
fn start_of_the_driver_goes_through() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    let mailbox = nvme.allocate(8192)?;
    let msix = MsiX::enable(&mut nvme.qtest, &nvme.function, mailbox)?;
    nvme.enable(32)?;
    let controller = nvme.identify(1, 0)?;
    let namespaces = u32::from_le_bytes(controller[516..520].try_into()?);
    ensure!(namespaces >= 1, "NN is {namespaces}");

    // Events are waited for, not answered.
    let held = u16::from(controller[259]) + 1;
    let mut events = Vec::new();
    for _ in 0..held.min(4) {
        events.push(nvme.submit(0, &Command::new(0x0c))?);
    }
    nvme.ring(0)?;

    // Several submission queues on one completion queue, each processor its own.
    let granted = nvme.set_feature(0x07, 7 << 16 | 7)?;
    ensure!(granted & 0xffff >= 3 && granted >> 16 >= 1, "Number of Queues grants {granted:#x}");
    nvme.create_cq(1, 64, Some(1))?;
    nvme.create_cq(2, 64, Some(2.min(msix.vectors - 1)))?;
    for (sqid, cqid) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
        nvme.create_sq(sqid, 32, cqid)?;
    }
    let buffer = nvme.allocate(64 << 10)?;
    let mut waiting = Vec::new();
    for round in 0..10_u64 {
        for sqid in 1..=4 {
            let command = Command::read(1, round * 8, 8).prp(buffer + 4096 * u64::from(sqid), 0);
            waiting.push((sqid, nvme.submit(sqid, &command)?));
        }
    }
    for sqid in 1..=4 {
        nvme.ring(sqid)?;
    }
    for (sqid, cid) in waiting {
        let completion = nvme.wait_command(sqid, cid)?;
        ensure!(completion.status.ok(), "{completion:?}");
    }
    for sqid in 1..=4 {
        nvme.write_and_compare(sqid, u64::from(sqid) * 100, 16, u64::from(sqid))?;
    }
    for cid in &events {
        let held = nvme.submission[&0].inflight.contains(cid);
        ensure!(held, "an Asynchronous Event Request was answered without an event");
    }

    // The number of namespaces never changes while it runs.
    let again = nvme.identify(1, 0)?;
    ensure!(again[516..520] == controller[516..520], "NN has changed");
    drop(nvme);
    subject.finish()
}

#[test]
fn vendor_log_pages_and_features_are_refused_with_the_right_status() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    for _ in 0..20 {
        for lid in [0xc0, 0xc1, 0xc2, 0xca, 0xcb, 0xd0] {
            let command = nvme.log_command(lid, u32::MAX, 0x0100_0000, 512, 0)?;
            let status = nvme.execute(0, &command)?.status;
            // Invalid Log Page; QEMU's device says Invalid Field in Command.
            ensure!(status.pair() == (1, 0x09) || emulated(), "log page {lid:#x}: {status:?}");
            ensure!(!status.ok(), "log page {lid:#x} exists");
        }
        for fid in [0xc0, 0xc5, 0xd0, 0xd6, 0xf0] {
            nvme.admin_refused(&Command::new(0x0a).word(10, fid), (0, 0x02))?;
            nvme.admin_refused(&Command::new(0x09).word(10, fid).word(11, 1), (0, 0x02))?;
        }
        nvme.admin_refused(&Command::new(0xc0), (0, 0x01))?;
    }
    if let Ok(server) = subject.server() {
        let said = server.process.said();
        ensure!(said.lines().count() < 60, "a guest's probing floods the log:\n{said}");
    }
    Ok(())
}

#[test]
fn transfers_at_the_largest_size_go_through() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    let mdts = nvme.identify(1, 0)?[77];
    let len_bytes = if mdts == 0 { 2 << 20 } else { (4096_u64 << mdts).min(2 << 20) };
    nvme.create_pair(1, 32, None)?;
    nvme.write_and_compare(1, 8, (len_bytes / 512) as u32, 9)
}
