//! What SPDK's driver does to a controller: its order at attach, Doorbell Buffer Config before any I/O
//! queue, one SGL data block for each I/O, and its own rule for ringing.

use anyhow::{Result, ensure};
use doorbell_tests::nvme::data::{Descriptor, pattern};
use doorbell_tests::nvme::{Command, CompletionQueue, Controller, Rule, SubmissionQueue, register};
use doorbell_tests::subject::{Subject, emulated};

const QUEUE_ENTRIES: u32 = 256;

/// Enables with 8-byte writes of the queue addresses and goes through the commands of an attach.
fn attach(subject: &Subject) -> Result<Controller> {
    let mut nvme = subject.controller()?;
    let base = nvme.at(0)?;
    let (sq, cq) = (nvme.allocate(32 * 64)?, nvme.allocate(32 * 16)?);
    nvme.qtest.writeq(base + register::ASQ, sq)?;
    nvme.qtest.writeq(base + register::ACQ, cq)?;
    nvme.write(register::AQA, 31 << 16 | 31)?;
    nvme.submission.insert(0, SubmissionQueue::fresh(0, sq, 32, 0));
    nvme.completion.insert(0, CompletionQueue::fresh(0, cq, 32));
    nvme.write(register::CC, 4 << 20 | 6 << 16 | 1)?;
    nvme.wait_ready(true)?;

    nvme.identify(1, 0)?;
    nvme.set_feature(0x0b, 0x100)?;
    for _ in 0..4 {
        nvme.submit(0, &Command::new(0x0c))?;
        nvme.ring(0)?;
    }
    // Keep Alive Timer: a controller on PCI may not have it, but must answer.
    let keep_alive = nvme.execute(0, &Command::new(0x0a).word(10, 0x0f))?.status;
    ensure!(keep_alive.ok() || keep_alive.pair() == (0, 0x02), "Keep Alive Timer: {keep_alive:?}");
    // The I/O command set's own controller data, CNS 06h.
    nvme.identify(6, 0)?;
    nvme.set_feature(0x07, 15 << 16 | 15)?;
    nvme.identify(2, 0)?;
    nvme.identify(0, 1)?;
    nvme.identify(3, 1)?;
    Ok(nvme)
}

#[test]
fn attach_goes_through() -> Result<()> {
    let subject = Subject::start()?;
    let nvme = attach(&subject)?;
    drop(nvme);
    subject.finish()
}

#[test]
fn verified_io_with_one_data_block_each_and_shadow_doorbells_first() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = attach(&subject)?;
    nvme.enable_shadow(Rule::Spdk)?;
    nvme.create_pair(1, QUEUE_ENTRIES, None)?;
    nvme.create_pair(2, QUEUE_ENTRIES, None)?;
    let size = 128 << 10;
    let (out, back) = (nvme.allocate(size)?, nvme.allocate(size)?);
    for (round, length) in [512, 4096, 65_536, 131_072, 1536, 12_288].into_iter().enumerate() {
        let bytes = pattern(round as u64, length);
        let blocks = (length / 512) as u32;
        let (lba, sqid) = (round as u64 * 1000, 1 + (round % 2) as u16);
        nvme.qtest.write_memory(out, &bytes)?;
        let block = |address| Descriptor::block(address, length as u32);
        nvme.execute_ok(sqid, &Command::write(1, lba, blocks).sgl(block(out)))?;
        nvme.execute_ok(sqid, &Command::read(1, lba, blocks).sgl(block(back)))?;
        ensure!(nvme.qtest.read_memory(back, length)? == bytes, "{length} bytes differ");
    }
    drop(nvme);
    subject.finish()
}

#[test]
fn deep_queues_over_many_laps_lose_no_command() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = attach(&subject)?;
    nvme.enable_shadow(Rule::Spdk)?;
    // Small, so that laps are many and the ring is full at each of them: the case of equality.
    nvme.create_pair(1, 8, None)?;
    let buffer = nvme.allocate(4096)?;
    let before = nvme.doorbell_writes;
    let mut done = 0;
    for batch in 0..120_u32 {
        let count = [7, 1, 3, 7, 2, 7][batch as usize % 6];
        for lba in 0..count {
            nvme.submit(1, &Command::read(1, lba, 8).sgl(Descriptor::block(buffer, 4096)))?;
        }
        nvme.ring(1)?;
        for _ in 0..count {
            let completion = nvme.wait(1)?;
            ensure!(completion.status.ok(), "{completion:?}");
            done += 1;
        }
    }
    println!("{} doorbell writes for {done} commands", nvme.doorbell_writes - before);
    drop(nvme);
    subject.finish()
}

#[test]
fn doorbells_in_memory_and_in_the_register_mix_freely() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = attach(&subject)?;
    nvme.enable_shadow(Rule::Spdk)?;
    nvme.create_pair(1, 16, None)?;
    let buffer = nvme.allocate(4096)?;
    for round in 0..100_u64 {
        nvme.submit(1, &Command::read(1, round, 8).sgl(Descriptor::block(buffer, 4096)))?;
        nvme.ring(1)?;
        // Every third time the register as well, needed or not.
        if round % 3 == 0 {
            let tail = nvme.submission[&1].tail;
            nvme.ring_register(2, tail)?;
        }
        let completion = nvme.wait(1)?;
        ensure!(completion.status.ok(), "{completion:?}");
    }
    ensure!(nvme.poll(1)?.is_none(), "a command ran twice");
    Ok(())
}

#[test]
fn queue_pairs_come_and_go_while_shadow_doorbells_are_in_use() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = attach(&subject)?;
    nvme.enable_shadow(Rule::Spdk)?;
    for round in 0..10 {
        for id in 1..=4 {
            nvme.create_pair(id, 16, None)?;
        }
        for id in 1..=4 {
            nvme.write_and_compare(id, u64::from(id) * 64, 16, round)?;
        }
        for id in 1..=4 {
            nvme.delete_sq(id)?;
            nvme.delete_cq(id)?;
        }
    }
    drop(nvme);
    subject.finish()
}

#[test]
fn garbage_in_the_shadow_doorbells_is_an_event_and_no_end() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = attach(&subject)?;
    nvme.enable_shadow(Rule::Spdk)?;
    nvme.create_pair(1, 16, None)?;
    nvme.write_and_compare(1, 0, 8, 1)?;
    // QEMU's device goes wrong here.
    if emulated() {
        return Ok(());
    }
    let Some((doorbells, _)) = nvme.shadow_pages() else { unreachable!("they were just set up") };
    for garbage in [16, 0xffff, 0xffff_ffff] {
        let tail = nvme.submission[&1].tail;
        nvme.qtest.writel(doorbells + 8, garbage)?;
        // The register makes the device look at its queue.
        nvme.ring_register(2, tail)?;
        nvme.identify(1, 0)?;
        // A correct value afterwards works.
        nvme.qtest.writel(doorbells + 8, tail)?;
        nvme.write_and_compare(1, 0, 8, 2)?;
    }
    drop(nvme);
    subject.finish()
}
