//! SMART counters and the error log: true, and kept over a restart.

use std::sync::Arc;

use doorbell_core::spec::status::Status;
use doorbell_vhost::client::nvme::{DoorbellMode, Nvme};
use doorbell_vhost::client::queue::DriverCommand;
use doorbell_vhost::storage::fault::{Fault, FaultRule};
use doorbell_vhost::storage::{Operation, RamStorage, StorageError};

use crate::rig::{IOVA, READ, Rig, WRITE, await_that, image, plain, prp, run, transfer};

fn log_page(nvme: &mut Nvme, id: u32, len_bytes: u32) -> Vec<u8> {
    let page = nvme.allocate(4096).unwrap();
    let cdw10 = (len_bytes / 4 - 1) << 16 | id;
    let data = prp(IOVA + page, len_bytes);
    let command = DriverCommand { opcode: 2, nsid: u32::MAX, cdw: [cdw10, 0, 0, 0, 0, 0], data };
    nvme.admin("Get Log Page", &command).unwrap();
    let mut bytes = vec![0; len_bytes as usize];
    nvme.memory().read(page, &mut bytes);
    bytes
}

#[derive(Debug, PartialEq, Eq)]
struct Smart {
    units_read: u64,
    units_written: u64,
    reads: u64,
    writes: u64,
    power_cycles: u64,
    unsafe_shutdowns: u64,
    media_errors: u64,
    error_entries: u64,
}

fn smart(nvme: &mut Nvme) -> Smart {
    let page = log_page(nvme, 2, 512);
    let at = |place: usize| u64::from_le_bytes(page[place..place + 8].try_into().unwrap());
    Smart {
        units_read: at(32),
        units_written: at(48),
        reads: at(64),
        writes: at(80),
        power_cycles: at(112),
        unsafe_shutdowns: at(144),
        media_errors: at(160),
        error_entries: at(176),
    }
}

/// 40 writes and 25 reads of 128 KiB.
fn work(nvme: &mut Nvme) {
    let buffer = nvme.allocate(128 << 10).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    for (opcode, count) in [(WRITE, 40), (READ, 25)] {
        for at in 0..count {
            let command = transfer(opcode, at * 256, IOVA + buffer, 128 << 10);
            assert!(run(nvme, &mut queue, &command).is_success());
        }
    }
}

#[test]
fn counters_are_true_and_live_on() {
    let folder = tempfile::tempdir().unwrap();
    image(&folder.path().join("f"), 16 << 20);
    let spec = format!("file={}/f", folder.path().display());
    let units = |commands: u64| (commands * (128 << 10)).div_ceil(512_000);
    let mut expected = Smart {
        units_read: 0,
        units_written: 0,
        reads: 0,
        writes: 0,
        power_cycles: 1,
        unsafe_shutdowns: 0,
        media_errors: 0,
        error_entries: 0,
    };
    for life in 1..=4 {
        let rig = Rig::start(&[&spec], |_| {});
        let mut nvme = rig.driver();
        assert_eq!(smart(&mut nvme), expected, "at the start of life {life}");
        work(&mut nvme);
        expected.reads += 25;
        expected.writes += 40;
        expected.units_read = units(expected.reads);
        expected.units_written = units(expected.writes);
        assert_eq!(smart(&mut nvme), expected);
        match life {
            1 => nvme.shut_down().unwrap(),
            // The client goes, the server stays a while.
            2 => {
                drop(nvme);
                await_that("the client is gone", || !rig.stat().connected);
                expected.unsafe_shutdowns += 1;
                let mut nvme = rig.driver();
                assert_eq!(smart(&mut nvme), expected);
                work(&mut nvme);
                expected.reads += 25;
                expected.writes += 40;
                expected.units_read = units(expected.reads);
                expected.units_written = units(expected.writes);
                // A controller that is disabled has nothing to lose.
                nvme.disable().unwrap();
            }
            // The server goes under the guest.
            _ => expected.unsafe_shutdowns += 1,
        }
        drop(rig);
        expected.power_cycles += 1;
    }
}

#[test]
fn a_shutdown_flushes_before_it_is_complete() {
    let (rig, faults) = Rig::with_faults_over(Arc::new(Cached(RamStorage::new(16 << 20).unwrap())), |_| {});
    let mut nvme = rig.driver();
    faults.set(vec![FaultRule {
        range_bytes: 0..u64::MAX,
        applies: |operation| operation == Operation::Flush,
        fault: Fault::Hold { cancellable: true },
    }]);
    // CC.SHN 01b by itself; `shut_down` would wait.
    nvme.client().region_write(0, 0x14, &(4 << 20 | 6 << 16 | 1 << 14 | 1u32).to_le_bytes()).unwrap();
    assert!(faults.wait_for(1, crate::rig::LONG), "no flush");
    let mut csts = [0; 4];
    nvme.client().region_read(0, 0x1c, &mut csts).unwrap();
    assert_eq!(csts[0] & 0xc, 4, "shutdown complete before the flush was");
    faults.clear();
    faults.release();
    nvme.shut_down().unwrap();
    drop(nvme);
    let mut nvme = rig.driver();
    assert_eq!(smart(&mut nvme).unsafe_shutdowns, 0);
}

/// RAM that says it has a volatile cache.
#[derive(Debug)]
struct Cached(RamStorage);

impl doorbell_vhost::storage::Storage for Cached {
    fn kind(&self) -> &'static str {
        "ram"
    }
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn volatile_cache(&self) -> bool {
        true
    }
    fn preferred_alignment_bytes(&self) -> u32 {
        self.0.preferred_alignment_bytes()
    }
    fn deallocate_reads_zero(&self) -> bool {
        true
    }
    fn open_queue(
        &self,
        context: &mut doorbell_vhost::storage::IoContext,
    ) -> Result<doorbell_vhost::storage::StorageQueue, doorbell_vhost::storage::OpenError> {
        self.0.open_queue(context)
    }
    fn resize(&self, size_bytes: u64) -> Result<(), doorbell_vhost::storage::ResizeError> {
        self.0.resize(size_bytes)
    }
}

#[test]
fn a_storage_error_is_a_status_and_a_log_entry() {
    let (rig, faults) = Rig::with_faults(16 << 20, |_| {});
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    let io = StorageError::Io(rustix::io::Errno::IO.raw_os_error());
    let mut entries = 0;
    for (opcode, error, expected) in [
        (READ, io, Status::UNRECOVERED_READ_ERROR),
        (WRITE, io, Status::WRITE_FAULT),
        (WRITE, StorageError::NoSpace, Status::CAPACITY_EXCEEDED),
    ] {
        faults.set(vec![FaultRule::all(Fault::Error(error))]);
        let status = run(&mut nvme, &mut queue, &transfer(opcode, 0x123, IOVA + buffer, 4096));
        assert_eq!(plain(status), expected);
        entries += 1;
        let page = log_page(&mut nvme, 1, 64);
        assert_eq!(u64::from_le_bytes(page[..8].try_into().unwrap()), entries, "error count");
        assert_eq!(u16::from_le_bytes([page[8], page[9]]), 1, "SQID");
        let field = u16::from_le_bytes([page[12], page[13]]) >> 1;
        assert_eq!(Status::new((field >> 8 & 7) as u8, field as u8), expected, "status field");
        assert_eq!(u64::from_le_bytes(page[16..24].try_into().unwrap()), 0x123, "LBA");
        assert_eq!(u32::from_le_bytes(page[24..28].try_into().unwrap()), 1, "NSID");
    }
    let counters = smart(&mut nvme);
    assert_eq!(counters.error_entries, 3);
    assert_eq!(counters.media_errors, 2, "no space is no media error");
    faults.clear();
    assert!(run(&mut nvme, &mut queue, &transfer(READ, 0x123, IOVA + buffer, 4096)).is_success());
}
