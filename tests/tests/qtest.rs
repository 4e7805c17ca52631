//! Our controller behind a stock QEMU without a guest: every step of a driver is the test's to take.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use doorbell_tests::nvme::data::{Descriptor, PAGE_BYTES, pattern, segment_bytes};
use doorbell_tests::nvme::{Command, Controller, Rule, register};
use doorbell_tests::pci::{self, MsiX, capability};
use doorbell_tests::qtest::Width;
use doorbell_tests::subject::{DISK_BYTES, Subject, emulated};

const FEATURE_QUEUES: u32 = 0x07;

#[test]
fn function_has_the_capabilities_of_an_nvme_controller() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    let (qtest, function) = (&mut nvme.qtest, &nvme.function);
    let found: Vec<u8> = function.capabilities(qtest)?.into_iter().map(|(id, _)| id).collect();
    for id in [capability::POWER_MANAGEMENT, capability::PCI_EXPRESS, capability::MSI_X] {
        ensure!(found.contains(&id), "capability {id:#04x} is missing from {found:02x?}");
    }
    let bar = nvme.function.bars[0];
    ensure!(bar.is_some_and(|bar| bar.wide && bar.len_bytes >= 16 << 10), "BAR 0 is {bar:x?}");
    drop(nvme);
    subject.finish()
}

#[test]
fn registers_read_alike_by_every_width() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    let base = nvme.at(0)?;
    let mut image = Vec::new();
    for offset in 0..0x1000 {
        image.push(nvme.qtest.read(Width::Byte, base + offset)? as u8);
    }
    for width in [Width::Word, Width::Long, Width::Quad] {
        for offset in (0..0x1000).step_by(width.bytes() as usize) {
            let value = nvme.qtest.read(width, base + offset)?;
            let bytes = &value.to_le_bytes()[..width.bytes() as usize];
            let expected = &image[offset as usize..][..width.bytes() as usize];
            ensure!(bytes == expected, "{width:?} at {offset:#x} is {bytes:02x?}, by bytes {expected:02x?}");
        }
    }
    ensure!(image[0x1c] & 1 == 1, "CSTS does not say ready");
    ensure!(image[0x100..].iter().all(|&byte| byte == 0), "reserved registers read as something");
    Ok(())
}

#[test]
fn wide_registers_take_one_access_or_two_in_either_order() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    let base = nvme.at(0)?;
    let value = 0x0000_0012_3456_7000_u64;
    for offset in [register::ASQ, register::ACQ] {
        nvme.qtest.writeq(base + offset, value)?;
        ensure!(nvme.qtest.readq(base + offset)? == value, "8 bytes at {offset:#x}");
        nvme.qtest.writeq(base + offset, 0)?;
        nvme.write(offset + 4, (value >> 32) as u32)?;
        nvme.write(offset, value as u32)?;
        ensure!(nvme.read_wide(offset)? == value, "upper half first at {offset:#x}");
        nvme.write(offset, 0x1000)?;
        ensure!(nvme.read_wide(offset)? == value & !0xffff_ffff | 0x1000, "lower half alone at {offset:#x}");
    }
    Ok(())
}

#[test]
fn identify_tells_controller_and_namespace() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    let controller = nvme.identify(1, 0)?;
    ensure!(controller[512] == 0x66 && controller[513] == 0x44, "SQES, CQES {:x?}", &controller[512..514]);
    ensure!(controller[4..24].iter().all(|byte| (0x20..0x7f).contains(byte)) || emulated(), "serial number");
    let listed = nvme.identify(2, 0)?;
    ensure!(listed[..8] == [1, 0, 0, 0, 0, 0, 0, 0], "namespaces: {:x?}", &listed[..16]);
    let namespace = nvme.identify(0, 1)?;
    let blocks = u64::from_le_bytes(namespace[..8].try_into()?);
    ensure!(blocks * 512 == DISK_BYTES, "NSZE is {blocks}");
    let descriptors = nvme.identify(3, 1)?;
    ensure!((1..=4).contains(&descriptors[0]) && descriptors[1] > 0, "no namespace descriptor");
    nvme.admin_refused(&Command::new(0x06).nsid(0).prp(0x0100_0000, 0).word(10, 0xee), (0, 0x02))?;
    // An inactive namespace is all zeroes.
    ensure!(nvme.identify(0, 2)?.iter().all(|&byte| byte == 0), "namespace 2 is described");
    Ok(())
}

#[test]
fn data_moves_by_prp_at_every_offset_and_length() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    nvme.create_pair(1, 32, None)?;
    let out = nvme.allocate(1 << 20)?;
    let back = nvme.allocate(1 << 20)?;
    let mut seed = 0;
    for blocks in [1_u32, 7, 8, 9, 16, 17, 64, 255, 256] {
        for offset in [0_u64, 4, 512, 2048, 4092] {
            seed += 1;
            let len_bytes = u64::from(blocks) * 512;
            let bytes = pattern(seed, len_bytes as usize);
            nvme.qtest.write_memory(out + offset, &bytes)?;
            // A guard on both sides of what is read.
            nvme.qtest.fill_memory(back, len_bytes + 3 * PAGE_BYTES, 0xa5)?;
            let (prp1, prp2) = nvme.prp(out + offset, len_bytes)?;
            nvme.execute_ok(1, &Command::write(1, seed, blocks).prp(prp1, prp2))?;
            let back = back + PAGE_BYTES;
            let (prp1, prp2) = nvme.prp(back + offset, len_bytes)?;
            nvme.execute_ok(1, &Command::read(1, seed, blocks).prp(prp1, prp2))?;
            let read = nvme.qtest.read_memory(back + offset - 4, len_bytes as usize + 8)?;
            ensure!(read[4..read.len() - 4] == bytes, "{blocks} blocks at page offset {offset} differ");
            ensure!(read[..4] == [0xa5; 4], "bytes before {blocks} blocks at {offset} were written");
            ensure!(
                read[read.len() - 4..] == [0xa5; 4],
                "bytes after {blocks} blocks at {offset} were written"
            );
        }
    }
    drop(nvme);
    subject.finish()
}

#[test]
fn prp_list_may_start_at_the_end_of_its_page_and_chain() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    nvme.create_pair(1, 8, None)?;
    let pages = 16;
    let data = nvme.allocate(pages * 2 * PAGE_BYTES)?;
    // Every second page, in falling order, so that nothing is a neighbour.
    let entries: Vec<u64> = (0..pages).rev().map(|page| data + page * 2 * PAGE_BYTES).collect();
    let bytes = pattern(3, (pages * PAGE_BYTES) as usize);
    for (entry, page) in entries.iter().zip(bytes.chunks(PAGE_BYTES as usize)) {
        nvme.qtest.write_memory(*entry, page)?;
    }
    // Two slots at the end of the first list page: one entry, one pointer to the rest.
    let first = nvme.allocate(PAGE_BYTES)? + PAGE_BYTES - 16;
    let rest = nvme.allocate(PAGE_BYTES)?;
    nvme.qtest.writeq(first, entries[1])?;
    nvme.qtest.writeq(first + 8, rest)?;
    for (index, entry) in entries[2..].iter().enumerate() {
        nvme.qtest.writeq(rest + 8 * index as u64, *entry)?;
    }
    nvme.execute_ok(1, &Command::write(1, 0, 128).prp(entries[0], first))?;
    let back = nvme.allocate(pages * PAGE_BYTES)?;
    let (prp1, prp2) = nvme.prp(back, pages * PAGE_BYTES)?;
    nvme.execute_ok(1, &Command::read(1, 0, 128).prp(prp1, prp2))?;
    ensure!(nvme.qtest.read_memory(back, bytes.len())? == bytes, "the pages came in another order");

    // A misaligned entry in the middle is PRP Offset Invalid.
    nvme.qtest.writeq(rest + 8, entries[3] + 8)?;
    let refused = nvme.execute(1, &Command::write(1, 0, 128).prp(entries[0], first))?;
    ensure!(refused.status.pair() == (0, 0x13), "{:?}", refused.status);
    Ok(())
}

#[test]
fn data_moves_by_sgl() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    let controller = nvme.identify(1, 0)?;
    let sgls = u32::from_le_bytes(controller[536..540].try_into()?);
    ensure!(matches!(sgls & 3, 1 | 2), "SGLS {sgls:#x} announces no SGL");
    nvme.create_pair(1, 16, None)?;
    let len_bytes = 128 << 10;
    let bytes = pattern(5, len_bytes);
    let out = nvme.allocate(len_bytes as u64)?;
    let back = nvme.allocate(len_bytes as u64)?;
    nvme.qtest.write_memory(out, &bytes)?;

    // One data block.
    nvme.execute_ok(1, &Command::write(1, 0, 256).sgl(Descriptor::block(out, len_bytes as u32)))?;
    nvme.execute_ok(1, &Command::read(1, 0, 256).sgl(Descriptor::block(back, len_bytes as u32)))?;
    ensure!(nvme.qtest.read_memory(back, len_bytes)? == bytes, "one data block");

    // A last segment of blocks of odd dword lengths, and two segments in a row.
    let mut blocks = Vec::new();
    let mut at = 0;
    for length in [4_u32, 508, 1024, 65_540, 4092] {
        blocks.push(Descriptor::block(back + at, length));
        at += u64::from(length);
    }
    blocks.push(Descriptor::block(back + at, len_bytes as u32 - at as u32));
    let segment = nvme.allocate(PAGE_BYTES)?;
    nvme.qtest.write_memory(segment, &segment_bytes(&blocks))?;
    nvme.qtest.fill_memory(back, len_bytes as u64, 0)?;
    let last = Descriptor::last_segment(segment, 16 * blocks.len() as u32);
    nvme.execute_ok(1, &Command::read(1, 0, 256).sgl(last))?;
    ensure!(nvme.qtest.read_memory(back, len_bytes)? == bytes, "a last segment");

    let chained = nvme.allocate(PAGE_BYTES)?;
    let (head, tail) = blocks.split_at(2);
    let mut first = head.to_vec();
    first.push(Descriptor::last_segment(chained, 16 * tail.len() as u32));
    nvme.qtest.write_memory(segment, &segment_bytes(&first))?;
    nvme.qtest.write_memory(chained, &segment_bytes(tail))?;
    nvme.qtest.fill_memory(back, len_bytes as u64, 0)?;
    let descriptor = Descriptor::segment(segment, 16 * first.len() as u32);
    nvme.execute_ok(1, &Command::read(1, 0, 256).sgl(descriptor))?;
    ensure!(nvme.qtest.read_memory(back, len_bytes)? == bytes, "a segment and a last segment");

    if sgls & 1 << 16 != 0 {
        // The first 512 bytes go nowhere.
        let buckets = [Descriptor::bit_bucket(512), Descriptor::block(back, 512)];
        nvme.qtest.write_memory(segment, &segment_bytes(&buckets))?;
        nvme.execute_ok(1, &Command::read(1, 0, 2).sgl(Descriptor::last_segment(segment, 32)))?;
        ensure!(nvme.qtest.read_memory(back, 512)? == bytes[512..1024], "a bit bucket");
    }

    // Too short: Data SGL Length Invalid. A reserved type: SGL Descriptor Type Invalid.
    let short = nvme.execute(1, &Command::read(1, 0, 2).sgl(Descriptor::block(back, 512)))?;
    ensure!(short.status.pair() == (0, 0x0f), "too short: {:?}", short.status);
    let odd = Descriptor { address: back, len_bytes: 1024, identifier: 0x70 };
    let odd = nvme.execute(1, &Command::read(1, 0, 2).sgl(odd))?;
    // QEMU's device calls it an invalid number of descriptors.
    ensure!(odd.status.pair() == (0, 0x11) || emulated(), "a reserved type: {:?}", odd.status);
    drop(nvme);
    subject.finish()
}

#[test]
fn interrupts_arrive_on_their_vectors_and_wait_behind_a_mask() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    let mailbox = nvme.allocate(4096)?;
    let msix = MsiX::enable(&mut nvme.qtest, &nvme.function, mailbox)?;
    ensure!(msix.vectors >= 3, "only {} vectors", msix.vectors);
    nvme.enable(32)?;
    nvme.create_pair(1, 16, Some(1))?;
    nvme.create_pair(2, 16, Some(2))?;
    fired(&mut nvme, &msix, 0)?;
    nvme.write_and_compare(1, 0, 8, 1)?;
    fired(&mut nvme, &msix, 1)?;
    ensure!(!msix.take(&mut nvme.qtest, 2)?, "queue 2's vector fired for queue 1");
    nvme.write_and_compare(2, 0, 8, 1)?;
    fired(&mut nvme, &msix, 2)?;

    msix.mask(&mut nvme.qtest, 1, true)?;
    nvme.write_and_compare(1, 0, 8, 2)?;
    ensure!(!msix.take(&mut nvme.qtest, 1)?, "a masked vector fired");
    if emulated() {
        ensure!(msix.pending(&mut nvme.qtest, 1)?, "a masked vector is not pending");
    }
    msix.mask(&mut nvme.qtest, 1, false)?;
    fired(&mut nvme, &msix, 1)?;

    // A queue without interrupts has none.
    nvme.create_pair(3, 16, None)?;
    fired(&mut nvme, &msix, 0)?;
    nvme.write_and_compare(3, 0, 8, 3)?;
    for vector in 0..3 {
        ensure!(!msix.take(&mut nvme.qtest, vector)?, "vector {vector} fired for a queue without one");
    }
    msix.disable(&mut nvme.qtest, &nvme.function)
}

/// Waits until a vector has fired: over vfio-user an interrupt is an event that QEMU's loop picks up.
fn fired(nvme: &mut Controller, msix: &MsiX, vector: u16) -> Result<()> {
    let limit = std::time::Duration::from_secs(60);
    doorbell_tests::process::wait_for(&format!("vector {vector} fires"), limit, || {
        Ok(msix.take(&mut nvme.qtest, vector)?.then_some(()))
    })
}

#[test]
fn reset_forgets_queues_and_touches_no_memory_after_it() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    for round in 0..5 {
        nvme.create_pair(1, 16, None)?;
        nvme.enable_shadow(Rule::Linux)?;
        nvme.write_and_compare(1, 0, 8, round)?;
        let (sq, cq) = (nvme.submission[&1].base, nvme.completion[&1].base);
        let shadow = nvme.shadow_pages();
        nvme.disable()?;
        nvme.qtest.fill_memory(sq, 16 * 64, 0xee)?;
        nvme.qtest.fill_memory(cq, 16 * 16, 0xee)?;
        if let Some((doorbells, event_indexes)) = shadow {
            nvme.qtest.fill_memory(doorbells, PAGE_BYTES, 0xee)?;
            nvme.qtest.fill_memory(event_indexes, PAGE_BYTES, 0xee)?;
        }
        // Doorbells of a disabled controller, and after enabling those of queues that are gone.
        nvme.ring_register(2, 3)?;
        nvme.enable(32)?;
        nvme.ring_register(2, 5)?;
        nvme.ring_register(3, 5)?;
        nvme.identify(1, 0)?;
        ensure!(
            nvme.qtest.read_memory(cq, 256)?.iter().all(|&byte| byte == 0xee),
            "the old queue was written"
        );
        if let Some((doorbells, event_indexes)) = shadow {
            for page in [doorbells, event_indexes] {
                let bytes = nvme.qtest.read_memory(page, PAGE_BYTES as usize)?;
                ensure!(bytes.iter().all(|&byte| byte == 0xee), "the old shadow doorbells were written");
            }
        }
        ensure!(nvme.read(register::CSTS)? & 3 == 1, "CSTS {:#x}", nvme.read(register::CSTS)?);
    }
    drop(nvme);
    subject.finish()
}

#[test]
fn impossible_admin_queues_are_a_fatal_status_until_the_reset() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.controller()?;
    // Queues of one entry are below the minimum of two.
    nvme.write(register::AQA, 0)?;
    nvme.write_wide(register::ASQ, 0x0100_0000)?;
    nvme.write_wide(register::ACQ, 0x0101_0000)?;
    nvme.write(register::CC, 4 << 20 | 6 << 16 | 1)?;
    // The status follows the register write in its own time, as a driver expects.
    let limit = std::time::Duration::from_secs(60);
    doorbell_tests::process::wait_for("Controller Fatal Status with AQA 0", limit, || {
        let csts = nvme.read(register::CSTS)?;
        ensure!(csts & 1 == 0, "ready with AQA 0: CSTS {csts:#x}");
        Ok((csts & 2 != 0).then_some(()))
    })?;
    nvme.enable(8)?;
    nvme.identify(1, 0).map(drop)
}

#[test]
fn function_level_reset_brings_everything_back_to_the_start() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    for round in 0..3 {
        nvme.create_pair(1, 16, None)?;
        if round == 1 {
            nvme.enable_shadow(Rule::Spdk)?;
        }
        nvme.write_and_compare(1, 0, 8, round)?;
        nvme.forget();
        nvme.function.reset(&mut nvme.qtest)?;
        ensure!(nvme.read(register::CC)? == 0, "CC {:#x} after the reset", nvme.read(register::CC)?);
        ensure!(nvme.read(register::CSTS)? & 1 == 0, "ready after the reset");
        // QEMU's device keeps the admin queues' addresses.
        if !emulated() {
            ensure!(nvme.read(register::AQA)? == 0, "AQA survived the reset");
        }
        nvme.enable(16)?;
    }
    drop(nvme);
    subject.finish()
}

#[test]
fn shadow_doorbells_work_before_and_after_queue_creation() -> Result<()> {
    for rule in [Rule::Linux, Rule::Spdk] {
        for first in [true, false] {
            let subject = Subject::start()?;
            let mut nvme = subject.enabled()?;
            if first {
                nvme.enable_shadow(rule)?;
            }
            nvme.create_pair(1, 8, None)?;
            nvme.create_pair(2, 16, None)?;
            // QEMU's device doesn't copy positions into the event indexes and then waits for ever.
            if !emulated() {
                nvme.write_and_compare(1, 0, 8, 1)?;
            }
            if !first {
                nvme.enable_shadow(rule)?;
            }
            for round in 0..30 {
                nvme.write_and_compare(1 + (round % 2) as u16, round, 8, round)?;
            }
            // Deleted and made again, the positions start at 0.
            nvme.delete_sq(2)?;
            nvme.delete_cq(2)?;
            nvme.create_pair(2, 4, None)?;
            for round in 0..10 {
                nvme.write_and_compare(2, round, 8, round + 100)?;
            }
            // Other pages in the middle of it, to which the controller copies the positions.
            if !emulated() {
                nvme.enable_shadow(rule)?;
                for round in 0..10 {
                    nvme.write_and_compare(1, round, 8, round + 200)?;
                }
            }
            drop(nvme);
            subject.finish()?;
        }
    }
    Ok(())
}

#[test]
fn full_completion_queue_holds_commands_back_and_loses_none() -> Result<()> {
    for shadow in [None, Some(Rule::Linux), Some(Rule::Spdk)] {
        let subject = Subject::start()?;
        let mut nvme = subject.enabled()?;
        nvme.create_cq(1, 4, None)?;
        nvme.create_sq(1, 32, 1)?;
        nvme.create_sq(2, 32, 1)?;
        if let Some(rule) = shadow {
            nvme.enable_shadow(rule)?;
        }
        let buffer = nvme.allocate(4096)?;
        let mut expected = BTreeSet::new();
        for sqid in [1, 2] {
            for lba in 0..20 {
                let cid = nvme.submit(sqid, &Command::read(1, lba, 8).prp(buffer, 0))?;
                expected.insert((sqid, cid));
            }
            nvme.ring(sqid)?;
        }
        while !expected.is_empty() {
            let completion = nvme.wait(1)?;
            ensure!(completion.status.ok(), "{completion:?}");
            ensure!(expected.remove(&(completion.sqid, completion.cid)), "{completion:?} came twice");
        }
        ensure!(nvme.poll(1)?.is_none(), "a completion too many");
        drop(nvme);
        subject.finish()?;
    }
    Ok(())
}

#[test]
fn sixty_four_queue_pairs_work_side_by_side() -> Result<()> {
    let subject = Subject::start_with("--queues 64")?;
    let mut nvme = subject.enabled()?;
    let granted = nvme.set_feature(FEATURE_QUEUES, 63 << 16 | 63)?;
    ensure!(granted == 63 << 16 | 63, "Number of Queues grants {granted:#x} instead of 64 and 64");
    for round in 0..2 {
        for id in 1..=64 {
            nvme.create_pair(id, 8, None)?;
        }
        // Set Features is too late now: Command Sequence Error.
        nvme.admin_refused(&Command::new(0x09).word(10, FEATURE_QUEUES).word(11, 7 << 16 | 7), (0, 0x0c))?;
        let buffer = nvme.allocate(4096)?;
        let mut waiting = Vec::new();
        for id in 1..=64 {
            for lba in 0..3 {
                waiting.push((id, nvme.submit(id, &Command::read(1, lba, 8).prp(buffer, 0))?));
            }
            nvme.ring(id)?;
        }
        for (id, cid) in waiting {
            let completion = nvme.wait_command(id, cid)?;
            ensure!(completion.status.ok(), "{completion:?}");
        }
        if round == 0 {
            for id in 1..=64 {
                nvme.delete_sq(id)?;
                nvme.delete_cq(id)?;
            }
        }
    }
    drop(nvme);
    subject.finish()
}

#[test]
fn commands_for_queues_are_refused_with_their_statuses() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    let base = nvme.allocate(64 << 10)?;
    let (cq, sq) = (Controller::create_cq_command, Controller::create_sq_command);
    let mqes_z = nvme.read_wide(register::CAP)? as u16;
    let cases = [
        ("SQ on a CQ that isn't there", sq(1, base, 8, 1), (1, 0x00)),
        ("CQ 0", cq(0, base, 8, None), (1, 0x01)),
        ("CQ 65535", cq(u16::MAX, base, 8, None), (1, 0x01)),
        ("CQ of one entry", cq(1, base, 1, None), (1, 0x02)),
        ("vector 2048", cq(1, base, 8, Some(2048)), (1, 0x08)),
        ("delete SQ 9", Command::new(0x00).word(10, 9), (1, 0x01)),
        ("delete CQ 9", Command::new(0x04).word(10, 9), (1, 0x01)),
        ("delete SQ 0", Command::new(0x00).word(10, 0), (1, 0x01)),
    ];
    for (what, command, status) in cases {
        // QEMU's device says Completion Queue Invalid.
        if emulated() && what == "delete CQ 9" {
            continue;
        }
        let completion = nvme.execute(0, &command)?;
        ensure!(completion.status.pair() == status, "{what}: {:?}, not {status:x?}", completion.status);
    }
    if mqes_z < u16::MAX {
        nvme.admin_refused(&cq(1, base, u32::from(mqes_z) + 2, None), (1, 0x02))?;
    }
    nvme.create_pair(1, 8, None)?;
    nvme.admin_refused(&cq(1, base, 8, None), (1, 0x01))?;
    nvme.admin_refused(&sq(1, base, 8, 1), (1, 0x01))?;
    nvme.admin_refused(&sq(0, base, 8, 1), (1, 0x01))?;
    nvme.admin_refused(&sq(u16::MAX, base, 8, 1), (1, 0x01))?;
    nvme.admin_refused(&sq(2, base, 1, 1), (1, 0x02))?;
    // A CQ with a live SQ: Invalid Queue Deletion.
    nvme.admin_refused(&Command::new(0x04).word(10, 1), (1, 0x0c))
}

#[test]
fn io_is_refused_with_its_statuses() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    nvme.create_pair(1, 16, None)?;
    let buffer = nvme.allocate(8192)?;
    let last = DISK_BYTES / 512;
    let cases = [
        ("past the end", Command::read(1, last, 1).prp(buffer, 0), (0, 0x80)),
        ("across the end", Command::read(1, last - 1, 2).prp(buffer, 0), (0, 0x80)),
        ("near 2^64", Command::write(1, u64::MAX, 2).prp(buffer, 0), (0, 0x80)),
        ("a namespace beyond NN", Command::read(0xffff_fffe, 0, 1).prp(buffer, 0), (0, 0x0b)),
        ("unknown opcode", Command::new(0x7f).nsid(1), (0, 0x01)),
        ("over MDTS", Command::read(1, 0, 65_536).prp(buffer, buffer), (0, 0x02)),
        ("PRP1 at an odd address", Command::read(1, 0, 1).prp(buffer + 2, 0), (0, 0x13)),
    ];
    for (what, command, status) in cases {
        // QEMU's device accepts odd addresses.
        if emulated() && what.contains("odd") {
            continue;
        }
        let completion = nvme.execute(1, &command)?;
        ensure!(completion.status.pair() == status, "{what}: {:?}, not {status:x?}", completion.status);
    }
    // Memory outside RAM, and our own BAR: Data Transfer Error, and the controller goes on.
    let bar = nvme.at(0)?;
    for address in [0x8_0000_0000_0000, bar] {
        // QEMU's device takes what it reads from nowhere for data.
        if emulated() && address != bar {
            continue;
        }
        let completion = nvme.execute(1, &Command::write(1, 0, 1).prp(address, 0))?;
        ensure!(completion.status.pair() == (0, 0x04), "data at {address:#x}: {:?}", completion.status);
    }
    nvme.write_and_compare(1, 0, 8, 1)?;
    // Flush of one namespace and of all.
    nvme.execute_ok(1, &Command::new(0x00).nsid(1))?;
    nvme.execute_ok(1, &Command::new(0x00).nsid(u32::MAX)).map(drop)
}

#[test]
fn log_pages_and_features_hold_no_surprise() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    let pages: &[u32] = if emulated() { &[1, 2, 3, 4, 5] } else { &[0, 1, 2, 3, 4, 5, 0x12] };
    for &lid in pages {
        nvme.log_page(lid, u32::MAX, 512, 0)?;
        // An offset past the end, near 2^63 and misaligned.
        for offset in [1 << 20, 1 << 63, u64::MAX - 3, 2] {
            let command = nvme.log_command(lid, u32::MAX, 0x0100_0000, 512, offset)?;
            let completion = nvme.execute(0, &command)?;
            // QEMU's device answers some of these with zeroes.
            if !emulated() {
                ensure!(completion.status.pair() == (0, 0x02), "log {lid:#x} at {offset:#x}: {completion:?}");
            }
        }
    }
    let command = nvme.log_command(0xd0, u32::MAX, 0x0100_0000, 512, 0)?;
    let refused = nvme.execute(0, &command)?.status;
    ensure!(refused.pair() == (1, 0x09) || emulated(), "an unknown log page: {refused:?}");
    for fid in [1, 2, 4, 7, 8, 9, 0x0a, 0x0b] {
        nvme.get_feature(fid)?;
    }
    // Volatile Write Cache exists with the cache, and is Invalid Field without one.
    let cached = nvme.identify(1, 0)?[525] & 1 != 0;
    let cache = nvme.execute(0, &Command::new(0x0a).word(10, 6))?.status;
    ensure!(cache.ok() == cached && (cached || cache.pair() == (0, 0x02)), "cache {cached}: {cache:?}");
    // Save is refused: Feature Identifier Not Saveable.
    let save = Command::new(0x09).word(10, 1 << 31 | 0x04).word(11, 0x150);
    nvme.admin_refused(&save, (1, 0x0d))
}

#[test]
fn namespace_added_by_the_host_raises_an_event() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    nvme.set_feature(0x0b, 0x1ff)?;
    let cid = nvme.submit(0, &Command::new(0x0c))?;
    nvme.ring(0)?;
    nvme.identify(1, 0)?;
    subject.server()?.namespace("add", &["ram=16M"])?;
    let event = nvme.wait_command(0, cid)?;
    // Notice, Namespace Attribute Changed, log page 04h.
    ensure!(event.result & 0xff_ff07 == 0x04_0002, "the event is {:#x}", event.result);
    let changed = nvme.log_page(4, u32::MAX, 4096, 0)?;
    ensure!(changed[..8] == [2, 0, 0, 0, 0, 0, 0, 0], "changed namespaces: {:x?}", &changed[..16]);
    let again = nvme.log_page(4, u32::MAX, 4096, 0)?;
    ensure!(again[..4] == [0; 4], "reading the log did not clear it");
    let listed = nvme.identify(2, 0)?;
    ensure!(listed[..12] == [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], "namespaces {:x?}", &listed[..16]);
    Ok(())
}

#[test]
fn another_client_finds_the_data_of_the_one_before() -> Result<()> {
    let subject = Subject::start()?;
    let bytes = pattern(77, 4096);
    for life in 0..5 {
        let mut nvme = subject.enabled()?;
        nvme.create_pair(1, 8, None)?;
        let buffer = nvme.allocate(4096)?;
        if life == 0 {
            nvme.qtest.write_memory(buffer, &bytes)?;
            nvme.execute_ok(1, &Command::write(1, 0, 8).prp(buffer, 0))?;
        } else {
            nvme.execute_ok(1, &Command::read(1, 0, 8).prp(buffer, 0))?;
            ensure!(nvme.qtest.read_memory(buffer, 4096)? == bytes, "life {life} reads something else");
        }
        // The client goes away with the controller running.
    }
    subject.finish()
}

#[test]
fn unshared_memory_is_refused_by_name() -> Result<()> {
    let subject = Subject::start()?;
    let server = subject.server()?;
    // The machine of the harness shares its memory; this one keeps a private copy.
    let mut command = std::process::Command::new(doorbell_tests::layout::part("qemu-system-x86_64")?);
    let device = format!(
        r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{}"}}}}"#,
        server.socket().display()
    );
    command
        .args(["-nodefaults", "-display", "none", "-accel", "tcg", "-M", "q35,memory-backend=m"])
        .args(["-m", "256M", "-object", "memory-backend-memfd,id=m,size=256M,share=off", "-device"])
        .arg(device);
    let qemu = doorbell_tests::process::Process::start("QEMU", &mut command)?;
    let limit = std::time::Duration::from_secs(60);
    doorbell_tests::process::wait_for("the server names share=on", limit, || {
        Ok(server.process.said().contains("share=on").then_some(()))
    })?;
    drop(qemu);
    Ok(())
}

#[test]
fn bus_mastering_and_memory_space_can_be_taken_away() -> Result<()> {
    let subject = Subject::start()?;
    let mut nvme = subject.enabled()?;
    nvme.create_pair(1, 8, None)?;
    nvme.write_and_compare(1, 0, 8, 1)?;
    nvme.function.set_command(&mut nvme.qtest, 0)?;
    if nvme.read(register::VS)? >> 16 == 1 {
        bail!("BAR 0 answers without memory space enable");
    }
    nvme.function.set_command(&mut nvme.qtest, pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER)?;
    nvme.write_and_compare(1, 0, 8, 2)
}
