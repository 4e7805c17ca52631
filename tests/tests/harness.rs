//! The harness judged by a device that is known to be good: QEMU's own NVMe controller goes through the
//! same driver and the same guest as ours. A failure here is a fault of the harness.

use anyhow::{Result, ensure};
use doorbell_tests::firmware;
use doorbell_tests::guest::Guest;
use doorbell_tests::nvme::{Command, Controller, Rule, register};
use doorbell_tests::pci::{MsiX, capability};
use doorbell_tests::qemu::{Device, blank_image};
use tempfile::TempDir;

fn device() -> Result<(TempDir, Device)> {
    let folder = tempfile::tempdir()?;
    let image = blank_image(folder.path(), 64 << 20)?;
    Ok((folder, Device::emulated(&image)))
}

#[test]
fn driver_identifies_and_verifies_data() -> Result<()> {
    let (_folder, device) = device()?;
    let mut nvme = Controller::start_enabled(&device)?;
    let identify = nvme.identify(1, 0)?;
    ensure!(identify[4..11] == *b"harness", "the serial number is {:?}", &identify[4..24]);
    nvme.create_pair(1, 16, None)?;
    for (lba, blocks) in [(0, 1), (7, 8), (100, 17), (1000, 256), (5000, 1024)] {
        nvme.write_and_compare(1, lba, blocks, lba + 1)?;
    }
    Ok(())
}

#[test]
fn driver_takes_interrupts() -> Result<()> {
    let (_folder, device) = device()?;
    let mut nvme = Controller::start(&device)?;
    nvme.function.capability(&mut nvme.qtest, capability::PCI_EXPRESS)?;
    let mailbox = nvme.allocate(4096)?;
    let msix = MsiX::enable(&mut nvme.qtest, &nvme.function, mailbox)?;
    nvme.enable(32)?;
    nvme.identify(1, 0)?;
    ensure!(msix.take(&mut nvme.qtest, 0)?, "the admin queue did not interrupt");
    nvme.create_pair(1, 16, Some(1))?;
    nvme.write_and_compare(1, 0, 8, 1)?;
    ensure!(msix.take(&mut nvme.qtest, 1)?, "queue 1 did not interrupt");
    Ok(())
}

#[test]
fn driver_resets_the_controller_and_the_function() -> Result<()> {
    let (_folder, device) = device()?;
    let mut nvme = Controller::start_enabled(&device)?;
    nvme.create_pair(1, 16, None)?;
    nvme.write_and_compare(1, 0, 8, 1)?;
    nvme.enable(16)?;
    nvme.create_pair(1, 8, None)?;
    nvme.write_and_compare(1, 0, 8, 2)?;
    nvme.forget();
    nvme.function.reset(&mut nvme.qtest)?;
    ensure!(nvme.read(register::CSTS)? & 1 == 0, "ready after a function level reset");
    nvme.enable(16)?;
    nvme.create_pair(1, 8, None)?;
    nvme.write_and_compare(1, 0, 8, 3)
}

#[test]
fn driver_rings_shadow_doorbells_by_both_rules() -> Result<()> {
    for rule in [Rule::Linux, Rule::Spdk] {
        let (_folder, device) = device()?;
        let mut nvme = Controller::start_enabled(&device)?;
        nvme.create_pair(1, 16, None)?;
        nvme.enable_shadow(rule)?;
        for round in 0..40 {
            nvme.write_and_compare(1, round, 8, round)?;
        }
        // A queue that is made while shadows are in use.
        nvme.create_pair(2, 16, None)?;
        for round in 0..40 {
            nvme.write_and_compare(2, round, 8, round)?;
        }
    }
    Ok(())
}

#[test]
fn driver_reports_a_refused_command() -> Result<()> {
    let (_folder, device) = device()?;
    let mut nvme = Controller::start_enabled(&device)?;
    // Create I/O Submission Queue on a completion queue that isn't there: Completion Queue Invalid.
    nvme.admin_refused(&Controller::create_sq_command(1, 0x0200_0000, 16, 1), (1, 0x00))?;
    nvme.admin_refused(&Command::new(0xff), (0, 0x01))
}

#[test]
fn guest_runs_the_scripts() -> Result<()> {
    let (_folder, device) = device()?;
    let report = Guest::new(device, &["probe", "io", "admin", "lifecycle"]).run()?;
    println!("{:?}", report.values);
    Ok(())
}

#[test]
fn guest_reboots_and_asks() -> Result<()> {
    let (_folder, device) = device()?;
    let mut boots = 0;
    Guest::new(device, &["reboot"]).run_with(|question| {
        boots += u32::from(question == "boot");
        Ok(if question == "boot" {
            boots.to_string()
        } else {
            (if boots < 2 { "yes" } else { "no" }).to_owned()
        })
    })?;
    ensure!(boots == 2, "the guest booted {boots} times");
    Ok(())
}

#[test]
fn seabios_reads_and_writes_the_disk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = firmware::bios_disk(folder.path())?;
    let serial = firmware::run_bios(Device::emulated(&disk))?;
    ensure!(serial.contains(firmware::BOOT_MESSAGE), "SeaBIOS printed:\n{serial}");
    firmware::check_bios_disk(&disk)
}

#[test]
fn ovmf_copies_and_compares_a_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = firmware::efi_disk(folder.path())?;
    let serial = firmware::run_efi(Device::emulated(&disk))?;
    ensure!(serial.contains("COMPARED EQUAL"), "the shell printed:\n{serial}");
    firmware::check_efi_disk(&disk)
}
