//! Firmware starts from our disk.

use anyhow::{Result, ensure};
use doorbell_tests::firmware;
use doorbell_tests::subject::Subject;
use doorbell_tests::virtio::VirtioServer;

#[test]
fn seabios_starts_from_the_disk_reads_and_writes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = firmware::bios_disk(folder.path())?;
    let subject = Subject::start_on(&disk)?;
    let serial = firmware::run_bios(subject.device())?;
    ensure!(serial.contains(firmware::BOOT_MESSAGE), "SeaBIOS printed:\n{serial}");
    subject.finish()?;
    firmware::check_bios_disk(&disk)
}

#[test]
fn ovmf_starts_its_shell_copies_and_compares() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = firmware::efi_disk(folder.path())?;
    let subject = Subject::start_on(&disk)?;
    let serial = firmware::run_efi(subject.device())?;
    ensure!(serial.contains("COMPARED EQUAL"), "the shell printed:\n{serial}");
    subject.finish()?;
    firmware::check_efi_disk(&disk)
}

#[test]
fn seabios_starts_from_a_virtio_disk_reads_and_writes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = firmware::bios_disk(folder.path())?;
    let server = VirtioServer::start_on(&disk)?;
    let serial = firmware::run_bios(server.device())?;
    ensure!(serial.contains(firmware::BOOT_MESSAGE), "SeaBIOS printed:\n{serial}");
    server.stop()?;
    firmware::check_bios_disk(&disk)
}

#[test]
fn ovmf_starts_its_shell_from_a_virtio_disk_copies_and_compares() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = firmware::efi_disk(folder.path())?;
    let server = VirtioServer::start_on(&disk)?;
    let serial = firmware::run_efi(server.device())?;
    ensure!(serial.contains("COMPARED EQUAL"), "the shell printed:\n{serial}");
    server.stop()?;
    firmware::check_efi_disk(&disk)
}
