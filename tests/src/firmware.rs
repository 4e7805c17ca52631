//! Firmware that reads our disk: SeaBIOS starts a boot sector, OVMF starts its shell. Both poll a small
//! queue and use no interrupts, as firmware does.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::layout;
use crate::nvme::data::pattern;
use crate::process::Output;
use crate::qemu::{Device, Qemu};

/// What the boot sector's machine prints when every byte arrived.
pub const BOOT_MESSAGE: &str = "DOORBELL READ BY SEABIOS";

/// How much the boot sector copies, in sectors, and from and to where.
const SECTORS: u64 = 64;
const FROM_LBA: u64 = 1;
const TO_LBA: u64 = 1000;

/// A program of 16-bit code, started by the BIOS at 0000:7C00 with the drive's number in DL. It reads
/// [`SECTORS`] sectors, writes them elsewhere, prints the text at the end of what it read, and ends QEMU.
fn boot_sector() -> [u8; 512] {
    #[rustfmt::skip]
    let code: [u8; 73] = [
        0xfa,                         // 00  cli
        0x31, 0xc0,                   // 01  xor ax, ax
        0x8e, 0xd8,                   // 03  mov ds, ax
        0x8e, 0xd0,                   // 05  mov ss, ax
        0xbc, 0x00, 0x7c,             // 07  mov sp, 7c00h
        0xfb,                         // 0a  sti
        0xfc,                         // 0b  cld
        0xbe, 0x80, 0x7c,             // 0c  mov si, packet
        0xb4, 0x42,                   // 0f  mov ah, 42h          extended read
        0xcd, 0x13,                   // 11  int 13h
        0x72, 0x16,                   // 13  jc failed (2b)
        0xc7, 0x06, 0x88, 0x7c, 0xe8, 0x03, // 15  mov word [packet + 8], 1000
        0xb8, 0x00, 0x43,             // 1b  mov ax, 4300h        extended write
        0xbe, 0x80, 0x7c,             // 1e  mov si, packet
        0xcd, 0x13,                   // 21  int 13h
        0x72, 0x06,                   // 23  jc failed (2b)
        0xbe, 0x00, 0xfe,             // 25  mov si, fe00h        the last sector read
        0xe9, 0x03, 0x00,             // 28  jmp print (2e)
        0xbe, 0xa0, 0x7c,             // 2b  failed: mov si, error
        0xac,                         // 2e  print: lodsb
        0x84, 0xc0,                   // 2f  test al, al
        0x74, 0x06,                   // 31  jz done (39)
        0xba, 0xf8, 0x03,             // 33  mov dx, 3f8h         the serial port
        0xee,                         // 36  out dx, al
        0xeb, 0xf5,                   // 37  jmp print (2e)
        0xb0, 0x10,                   // 39  done: mov al, 10h
        0xba, 0x01, 0x05,             // 3b  mov dx, 501h         isa-debug-exit
        0xee,                         // 3e  out dx, al
        0xf4,                         // 3f  hlt
        0xeb, 0xfd,                   // 40  jmp 3f
        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    ];
    // Disk address packet: size, sectors, buffer 0000:8000, first LBA.
    let packet: [u8; 16] = [16, 0, SECTORS as u8, 0, 0x00, 0x80, 0, 0, FROM_LBA as u8, 0, 0, 0, 0, 0, 0, 0];
    let error = b"DISK ERROR\r\n\0";
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(&code);
    sector[0x80..0x90].copy_from_slice(&packet);
    sector[0xa0..0xa0 + error.len()].copy_from_slice(error);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Makes a disk that SeaBIOS starts from: the boot sector, then a pattern that ends in a message.
pub fn bios_disk(folder: &Path) -> Result<PathBuf> {
    let path = crate::qemu::blank_image(folder, 16 << 20)?;
    let mut disk = fs::File::options().write(true).open(&path)?;
    disk.write_all(&boot_sector())?;
    disk.write_all(&bios_payload())?;
    Ok(path)
}

fn bios_payload() -> Vec<u8> {
    let mut payload = pattern(7, (SECTORS * 512) as usize);
    let last = payload.len() - 512;
    let text = format!("{BOOT_MESSAGE}\r\n\0");
    payload[last..last + text.len()].copy_from_slice(text.as_bytes());
    payload
}

/// Whether the copy that the boot sector made is on the disk.
pub fn check_bios_disk(path: &Path) -> Result<()> {
    let mut disk = fs::File::open(path)?;
    disk.seek(SeekFrom::Start(TO_LBA * 512))?;
    let mut copy = vec![0; (SECTORS * 512) as usize];
    disk.read_exact(&mut copy)?;
    ensure!(copy == bios_payload(), "what SeaBIOS wrote to sector {TO_LBA} is not what it read");
    Ok(())
}

/// Starts SeaBIOS on this device and returns what came out of the serial port.
pub fn run_bios(device: Device) -> Result<String> {
    let mut qemu = Qemu::start(&[device], |_, command| {
        command.args(["-device", "isa-debug-exit,iobase=0x501,iosize=1"]);
        console(command);
        Ok(())
    })?;
    let serial = collect(&mut qemu)?;
    // isa-debug-exit turns 10h into 21h.
    let status = qemu.process.wait(Duration::from_secs(180)).with_context(|| serial.text())?;
    let said = qemu.process.said();
    ensure!(status.code() == Some(0x21), "QEMU ended with {status}: {said}\n{}", serial.text());
    Ok(serial.text())
}

/// Makes a FAT disk with the EFI shell as its boot program, a script that copies a file and compares.
pub fn efi_disk(folder: &Path) -> Result<PathBuf> {
    let disk = crate::qemu::blank_image(folder, 64 << 20)?;
    let file = folder.join("file.bin");
    fs::write(&file, pattern(11, EFI_FILE_BYTES))?;
    let script = folder.join("startup.nsh");
    fs::write(
        &script,
        "@echo -off\r\n\
         for %d in fs0 fs1 fs2\r\n  if exist %d:\\file.bin then\r\n    %d:\r\n  endif\r\nendfor\r\n\
         cp file.bin copy.bin\r\n\
         comp file.bin copy.bin\r\n\
         if %lasterror% == 0x0 then\r\n  echo COMPARED EQUAL\r\nelse\r\n  echo COMPARED DIFFERENT\r\nendif\r\n\
         reset -s\r\n",
    )?;
    mtools("mformat", &disk, &["-F", "::"])?;
    mtools("mmd", &disk, &["::/EFI", "::/EFI/BOOT"])?;
    let shell = layout::part("firmware/shell.efi")?;
    mtools("mcopy", &disk, &[&shell.to_string_lossy(), "::/EFI/BOOT/BOOTX64.EFI"])?;
    mtools("mcopy", &disk, &[&script.to_string_lossy(), "::/startup.nsh"])?;
    mtools("mcopy", &disk, &[&file.to_string_lossy(), "::/file.bin"])?;
    Ok(disk)
}

const EFI_FILE_BYTES: usize = 5 * 1024 * 1024 + 321;

/// Whether the copy that the shell made is on the disk, byte for byte.
pub fn check_efi_disk(disk: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("copy.bin");
    mtools("mcopy", disk, &["::/copy.bin", &copy.to_string_lossy()])?;
    ensure!(fs::read(copy)? == pattern(11, EFI_FILE_BYTES), "the shell's copy differs from the file");
    Ok(())
}

/// Starts OVMF on this device and returns what came out of the serial port.
pub fn run_efi(device: Device) -> Result<String> {
    let mut qemu = Qemu::start(&[device], |folder, command| {
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max"]);
        add_ovmf(folder, command)?;
        console(command);
        Ok(())
    })?;
    let serial = collect(&mut qemu)?;
    let status = qemu.process.wait(Duration::from_secs(300)).with_context(|| serial.text())?;
    ensure!(status.success(), "QEMU ended with {status}: {}\n{}", qemu.process.said(), serial.text());
    Ok(serial.text())
}

/// Makes a FAT disk that OVMF starts Linux from: with the shell once, which adds an entry to the boot menu, and
/// directly from then on.
pub fn linux_disk(folder: &Path, kernel: &Path, initramfs: &Path, options: &str) -> Result<PathBuf> {
    let disk = crate::qemu::blank_image(folder, 256 << 20)?;
    let script = folder.join("startup.nsh");
    fs::write(
        &script,
        "@echo -off\r\n\
         fs0:\r\n\
         bcfg boot add 0 vmlinuz linux\r\n\
         bcfg boot -opt 0 options\r\n\
         reset\r\n",
    )?;
    // As a program finds its load options: UTF-16 with a zero at the end.
    let words = options.encode_utf16().chain([0]).flat_map(u16::to_le_bytes);
    let options = folder.join("options");
    fs::write(&options, words.collect::<Vec<u8>>())?;
    mtools("mformat", &disk, &["-F", "::"])?;
    mtools("mmd", &disk, &["::/EFI", "::/EFI/BOOT"])?;
    let shell = layout::part("firmware/shell.efi")?;
    for (from, to) in [
        (shell.as_path(), "::/EFI/BOOT/BOOTX64.EFI"),
        (&script, "::/startup.nsh"),
        (&options, "::/options"),
        (kernel, "::/vmlinuz"),
        (initramfs, "::/initramfs"),
    ] {
        mtools("mcopy", &disk, &[&from.to_string_lossy(), to])?;
    }
    Ok(disk)
}

/// Gives a machine OVMF, with variables of its own.
pub(crate) fn add_ovmf(folder: &Path, command: &mut Command) -> Result<()> {
    let variables = folder.join("variables.fd");
    fs::copy(layout::part("firmware/variables.fd")?, &variables)?;
    let code = layout::part("firmware/code.fd")?;
    command
        .arg("-drive")
        .arg(format!("if=pflash,format=raw,readonly=on,file={}", code.display()))
        .arg("-drive")
        .arg(format!("if=pflash,format=raw,file={}", variables.display()));
    Ok(())
}

fn console(command: &mut Command) {
    command
        .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
}

fn collect(qemu: &mut Qemu) -> Result<Output> {
    let output = Output::default();
    output.collect(qemu.process.child().stdout.take().context("QEMU has no standard output")?);
    Ok(output)
}

fn mtools(program: &str, disk: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    // Some versions ask before they touch an image that looks odd to them.
    command.env("MTOOLS_SKIP_CHECK", "1").arg("-i").arg(disk).args(arguments).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("{program}: run `cargo xtask setup`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?} ended with {}: {said}", output.status);
    Ok(())
}
