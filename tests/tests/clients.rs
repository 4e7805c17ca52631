//! Clients of a virtio disk that need no VM: `qemu-io` and `qemu-img` with QEMU's driver `virtio-blk-vhost-user`, and
//! the crate `blkio`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use doorbell_tests::backend::Backend;
use doorbell_tests::blkio::{Client, Operation};
use doorbell_tests::layout;
use doorbell_tests::qemu::blank_image;

/// Runs a program of QEMU on the disk at a socket, and returns what it printed.
fn qemu(program: &str, arguments: &[&str], options: &[&str], socket: &Path) -> Result<String> {
    let mut command = Command::new(layout::part(program)?);
    command.args(arguments).arg("--image-opts").args(options);
    // A driver that goes around the page cache is the only kind that this one can be.
    let image = format!("driver=virtio-blk-vhost-user,path={},cache.direct=on", socket.display());
    let output = command.arg(image).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    ensure!(output.status.success(), "{command:?} ended with {}:\n{said}", output.status);
    Ok(said.into_owned())
}

/// A disk in memory, and one in a file.
fn disks(test: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = blank_image(folder.path(), 64 << 20)?;
    for arguments in [["--ram", "64M"], ["--file", &image.display().to_string()]] {
        println!("{arguments:?}");
        let backend = Backend::doorbell(&arguments)?;
        test(backend.socket())?;
        backend.stop()?;
    }
    Ok(())
}

#[test]
fn qemu_io_finds_what_it_wrote() -> Result<()> {
    disks(|socket| {
        let said = qemu(
            "qemu-io",
            &[],
            &[
                "-c",
                "length",
                "-c",
                "write -P 0x5a 1M 64k",
                "-c",
                "aio_write -P 0xa5 2M 1M",
                "-c",
                "aio_write -P 0x11 3M 512",
                "-c",
                "aio_flush",
                "-c",
                "flush",
                "-c",
                "read -P 0x5a 1M 64k",
                "-c",
                "read -P 0xa5 2M 1M",
                "-c",
                "read -P 0x11 3M 512",
                "-c",
                "read -P 0 1114112 64k",
                "-c",
                "write -z 1M 32k",
                "-c",
                "discard 2M 512k",
                "-c",
                "writev -P 0x77 8M 4k 8k 512",
                "-c",
                "readv -P 0x77 8M 512 4k 8k",
                "-c",
                "read -P 0 1M 32k",
                "-c",
                "read -P 0x5a 1081344 32k",
                "-c",
                "read -P 0xa5 2621440 512k",
            ],
            socket,
        )?;
        ensure!(said.contains("64 MiB") && !said.contains("failed") && !said.contains("error"), "{said}");
        // The judge can say no.
        ensure!(qemu("qemu-io", &[], &["-c", "read -P 0x5a 1M 32k"], socket).is_err());
        Ok(())
    })
}

#[test]
fn qemu_io_can_not_write_a_read_only_disk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = blank_image(folder.path(), 1 << 20)?;
    let backend = Backend::doorbell(&["--file", &image.display().to_string(), "--read-only"])?;
    qemu("qemu-io", &["-r"], &["-c", "read -P 0 0 64k"], backend.socket())?;
    ensure!(qemu("qemu-io", &[], &["-c", "write 0 64k"], backend.socket()).is_err());
    backend.stop()
}

#[test]
fn qemu_img_bench_runs_at_every_depth() -> Result<()> {
    disks(|socket| {
        for depth in ["1", "16", "64"] {
            for write in [&[][..], &["-w", "--pattern=90", "--flush-interval=1000"]] {
                let options = [&["-t", "none", "-c", "5000", "-s", "4096", "-d", depth][..], write].concat();
                let said = qemu("qemu-img", &["bench"], &options, socket)?;
                ensure!(said.contains("Run completed in"), "{said}");
            }
        }
        Ok(())
    })
}

#[test]
fn qemu_img_copies_and_compares() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = blank_image(folder.path(), 16 << 20)?;
    std::fs::write(&image, pattern(7, 16 << 20))?;
    let backend = Backend::doorbell(&["--file", &image.display().to_string()])?;
    let copy = folder.path().join("copy.img");
    let opts = format!("driver=virtio-blk-vhost-user,path={},cache.direct=on", backend.socket().display());
    let mut command = Command::new(layout::part("qemu-img")?);
    command.args(["convert", "-T", "none", "--image-opts", &opts, "-O", "raw"]).arg(&copy);
    ensure!(command.status()?.success(), "qemu-img convert");
    ensure!(std::fs::read(&copy)? == pattern(7, 16 << 20), "the copy differs");
    backend.stop()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    };
    std::iter::from_fn(next).flatten().take(len).collect()
}

/// 32 requests in flight, each write with contents that nothing else has; all is read back.
#[test]
fn blkio_finds_what_it_wrote() -> Result<()> {
    const DEPTH: usize = 32;
    const LEN: usize = 64 << 10;
    disks(|socket| {
        let mut client = Client::connect(socket, DEPTH, LEN)?;
        ensure!(client.capacity()? == 64 << 20);
        let places = (64 << 20) / LEN;
        let place = |turn: usize| (turn * 611 % places * LEN) as u64;
        for round in 0..2 {
            let (mut idle, mut turn) = ((0..DEPTH).collect::<Vec<_>>(), 0);
            // First all are written, then all are read.
            while turn < places || idle.len() < DEPTH {
                while let Some(slot) = idle.pop_if(|_| turn < places) {
                    let written = pattern(round * 10_000 + turn as u64, LEN);
                    client.fill(slot, &written)?;
                    client.submit(Operation::Write, slot, place(turn), LEN);
                    turn += 1;
                }
                client.wait(1, |slot| idle.push(slot))?;
            }
            client.run(Operation::Flush, 0, 0)?;
            let mut reading = [0; DEPTH];
            turn = 0;
            while turn < places || idle.len() < DEPTH {
                while let Some(slot) = idle.pop_if(|_| turn < places) {
                    reading[slot] = turn;
                    client.submit(Operation::Read, slot, place(turn), LEN);
                    turn += 1;
                }
                let mut ended = Vec::new();
                client.wait(1, |slot| ended.push(slot))?;
                for slot in ended {
                    let wanted = pattern(round * 10_000 + reading[slot] as u64, LEN);
                    ensure!(client.bytes(slot, LEN)? == wanted, "block {} differs", reading[slot]);
                    idle.push(slot);
                }
            }
        }
        client.run(Operation::WriteZeroes, 4096, 8192)?;
        client.run(Operation::Read, 0, 16384)?;
        let bytes = client.bytes(0, 16384)?;
        ensure!(
            bytes[4096..12288].iter().all(|byte| *byte == 0) && bytes[12288..].iter().any(|byte| *byte != 0)
        );
        client.run(Operation::Discard, 1 << 20, 1 << 20)?;
        ensure!(client.run(Operation::Read, 64 << 20, 512).is_err(), "behind the end");
        Ok(())
    })
}
