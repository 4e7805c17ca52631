//! Data pointers and media: memory by message, addresses that are none, block sizes, kinds of namespace.

use std::process::Command;
use std::sync::Arc;

use doorbell_core::spec::status::Status;
use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::{DoorbellMode, Nvme};
use doorbell_vhost::client::queue::{DataPointer, DriverCommand, ShadowRule};

use crate::rig::{
    IOVA, MEMORY_BYTES, READ, Rig, WRITE, flush, image, pattern, plain, prp, run, shadow, transfer, verify,
};

/// Nothing is mapped: every byte of queues and data goes by DMA_READ and DMA_WRITE.
#[test]
fn memory_without_a_file_is_reached_by_message() {
    for (namespace, mapped) in [("ram=16M", true), ("ram=16M", false), ("file=FOLDER/f", true)] {
        let folder = tempfile::tempdir().unwrap();
        image(&folder.path().join("f"), 16 << 20);
        let namespace = namespace.replace("FOLDER", &folder.path().display().to_string());
        let rig = Rig::start(&[&namespace], |config| {
            if !mapped {
                shadow(config);
            }
        });
        let memory = ClientMemory::new(IOVA, MEMORY_BYTES, false).unwrap();
        let mut client = Client::connect(&rig.socket).unwrap();
        client.map(&memory, true).unwrap();
        let mut nvme = Nvme::with_mapped_memory(client, memory).unwrap();
        let buffer = nvme.allocate(1 << 20).unwrap();
        let mode = if mapped { DoorbellMode::Mapped } else { DoorbellMode::Message };
        let mut queue = nvme.create_queue_pair(16, 4, mode, false).unwrap();
        verify(&mut nvme, &mut queue, buffer, &[0, 77, 5000], 512);
        // Across pages, from the middle of one, with a PRP list and as an SGL.
        verify(&mut nvme, &mut queue, buffer + 0x204, &[512, 3000], 128 << 10);
        let memory = Arc::clone(nvme.memory());
        memory.write(buffer, &vec![0; 65536]);
        let data = DataPointer::Sgl { iova: IOVA + buffer, len_bytes: 65536 };
        assert!(run(&mut nvme, &mut queue, &DriverCommand::transfer(READ, 1, 512, 128, data)).is_success());
        let mut found = vec![0; 65536];
        memory.read(buffer, &mut found);
        assert!(found == pattern(513, 128 << 10)[..65536]);
        assert!(nvme.client().dma_messages() > 20, "{}", nvme.client().dma_messages());
    }
}

/// Mapped memory on one side of a border, by message on the other: one transfer over both.
#[test]
fn a_transfer_may_cross_from_mapped_to_message_only_memory() {
    let rig = Rig::start(&["ram=16M"], |_| {});
    let mut nvme = rig.driver();
    let beyond = ClientMemory::new(IOVA + MEMORY_BYTES, 1 << 20, false).unwrap();
    nvme.client().map(&beyond, true).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    let memory = Arc::clone(nvme.memory());
    let border = MEMORY_BYTES - 4096;
    let bytes = pattern(5, 8192);
    memory.write(border, &bytes[..4096]);
    beyond.write(0, &bytes[4096..]);
    assert!(run(&mut nvme, &mut queue, &transfer(WRITE, 8, IOVA + border, 8192)).is_success());
    memory.zero(border, 4096);
    beyond.zero(0, 4096);
    assert!(run(&mut nvme, &mut queue, &transfer(READ, 8, IOVA + border, 8192)).is_success());
    let mut found = vec![0; 8192];
    memory.read(border, &mut found[..4096]);
    beyond.read(0, &mut found[4096..]);
    assert!(found == bytes);
}

#[test]
fn a_data_pointer_outside_memory_is_a_data_transfer_error() {
    for namespace in ["ram=16M", "file=FOLDER/f"] {
        let folder = tempfile::tempdir().unwrap();
        image(&folder.path().join("f"), 16 << 20);
        let namespace = namespace.replace("FOLDER", &folder.path().display().to_string());
        let rig = Rig::start(&[&namespace], |_| {});
        let mut nvme = rig.driver();
        // As QEMU announces our own mapped BAR: by message only, and it refuses to answer for it.
        let buffer = nvme.allocate(4096).unwrap();
        let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
        let bar = 0xfebd_0000;
        for iova in [bar + 0x1000, 0, 0xffff_ffff_ffff_f000, IOVA + MEMORY_BYTES, IOVA - 4096] {
            for opcode in [READ, WRITE] {
                let status = run(&mut nvme, &mut queue, &transfer(opcode, 0, iova, 4096));
                assert_eq!(plain(status), Status::DATA_TRANSFER_ERROR, "{iova:#x}");
                let data = DataPointer::Sgl { iova, len_bytes: 4096 };
                let status = run(&mut nvme, &mut queue, &DriverCommand::transfer(opcode, 1, 0, 8, data));
                assert_eq!(plain(status), Status::DATA_TRANSFER_ERROR, "{iova:#x}");
            }
        }
        // Half inside: what is outside decides.
        let status = run(&mut nvme, &mut queue, &transfer(WRITE, 64, IOVA + MEMORY_BYTES - 4096, 8192));
        assert_eq!(plain(status), Status::DATA_TRANSFER_ERROR);
        verify(&mut nvme, &mut queue, buffer, &[0, 64], 4096);
    }
}

#[test]
fn blocks_of_4096_bytes() {
    let rig = Rig::start(&["ram=16M,block=4096"], |_| {});
    let mut nvme = rig.driver();
    let identity = nvme.identify().unwrap();
    assert_eq!((identity.blocks, identity.block_bytes), (4096, 4096));
    let buffer = nvme.allocate(64 << 10).unwrap();
    let memory = Arc::clone(nvme.memory());
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    for (opcode, slba) in [(WRITE, 0), (WRITE, 4080), (READ, 0), (READ, 4080)] {
        let bytes = if opcode == WRITE { pattern(slba + 1, 65536) } else { vec![0; 65536] };
        memory.write(buffer, &bytes);
        let command = DriverCommand::transfer(opcode, 1, slba, 16, prp(IOVA + buffer, 65536));
        assert!(run(&mut nvme, &mut queue, &command).is_success());
        let mut found = vec![0; 65536];
        memory.read(buffer, &mut found);
        assert!(found == pattern(slba + 1, 65536));
    }
    let beyond = DriverCommand::transfer(READ, 1, 4081, 16, prp(IOVA + buffer, 65536));
    assert_eq!(plain(run(&mut nvme, &mut queue, &beyond)), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn a_read_only_namespace_refuses_writes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, pattern(3, 1 << 20)).unwrap();
    let rig = Rig::start(&[&format!("file={},read-only", path.display())], |_| {});
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    let status = run(&mut nvme, &mut queue, &transfer(WRITE, 0, IOVA + buffer, 4096));
    assert_eq!(plain(status), Status::NAMESPACE_WRITE_PROTECTED);
    assert!(run(&mut nvme, &mut queue, &transfer(READ, 8, IOVA + buffer, 4096)).is_success());
    assert!(run(&mut nvme, &mut queue, &flush(1)).is_success());
    let mut found = vec![0; 4096];
    nvme.memory().read(buffer, &mut found);
    assert!(found == pattern(3, 1 << 20)[4096..8192]);
    assert!(!folder.path().join("f.smart.json").exists());
}

#[test]
fn a_qcow2_namespace_keeps_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.qcow2");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("16M").status();
    assert!(made.expect("qemu-img (package qemu-utils)").success());
    let spec = format!("qcow2={}", path.display());
    let slbas: Vec<u64> = (0..32).map(|at| at * 1000).collect();
    {
        let rig = Rig::start(&[&spec], shadow);
        let mut nvme = rig.driver();
        nvme.enable_shadow().unwrap();
        let buffer = nvme.allocate(64 << 10).unwrap();
        let mode = DoorbellMode::Shadow(ShadowRule::Linux);
        let mut queue = nvme.create_queue_pair(16, 4, mode, false).unwrap();
        verify(&mut nvme, &mut queue, buffer, &slbas, 16384);
        assert!(run(&mut nvme, &mut queue, &flush(u32::MAX)).is_success());
    }
    let rig = Rig::start(&[&spec], |_| {});
    let mut nvme = rig.driver();
    let buffer = nvme.allocate(64 << 10).unwrap();
    let mut queue = nvme.create_queue_pair(16, 4, DoorbellMode::Mapped, false).unwrap();
    for slba in slbas {
        assert!(run(&mut nvme, &mut queue, &transfer(READ, slba, IOVA + buffer, 16384)).is_success());
        let mut found = vec![0; 16384];
        nvme.memory().read(buffer, &mut found);
        assert!(found == pattern(slba + 1, 16384));
    }
}

#[test]
fn a_directory_is_named_as_spdk_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = doorbell_vhost::device::DeviceConfig::new(
        folder.path().to_path_buf(),
        vec!["ram=16M".parse().unwrap()],
    );
    let server = doorbell_vhost::device::Server::start(config).unwrap();
    let mut nvme = crate::rig::driver(&folder.path().join("cntrl"));
    assert!(nvme.is_ready().unwrap());
    assert!(server.attach_line().contains("/cntrl"));
    drop(server);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
