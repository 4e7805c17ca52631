//! QEMU's conventions for vhost-user backends (`docs/interop/vhost-user.rst`, "Backend program conventions"), under
//! the name that the description for management tools gives.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use rustix::io::FdFlags;

use crate::frontend::{Frontend, pattern};
use crate::memory::Memory;
use crate::program::{Program, doorbell, output, text};
use crate::rig;

/// A folder with an image and the program's other name.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        rig::image(&folder.at("disk.img"), 1 << 20);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_doorbell"), folder.at("doorbell-vhost-user-blk"))
            .unwrap();
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program under its other name with an argument made of an option and a path.
    fn backend(&self, arguments: &[(&str, &str)]) -> Command {
        let mut command = Command::new(self.at("doorbell-vhost-user-blk"));
        command.env("DOORBELL_LOG", "warn");
        for (option, name) in arguments {
            match *name {
                "" => command.arg(option),
                number if number.parse::<u32>().is_ok() => command.arg(format!("{option}={number}")),
                name => command.arg(format!("{option}={}", self.at(name).display())),
            };
        }
        command
    }
}

/// Whether the disk takes and keeps data.
fn writes(frontend: &mut Frontend) -> bool {
    frontend.negotiate(0);
    frontend.add_ring(64);
    frontend.start(0, 0);
    let data = pattern(9, 4096);
    match frontend.write_blocks(16, &data) {
        (0, 1) => frontend.read_blocks(16, 4096) == data,
        _ => false,
    }
}

#[test]
fn capabilities_are_printed_whatever_the_other_arguments_are() {
    let folder = Folder::new();
    let commands = [
        folder.backend(&[("--print-capabilities", "")]),
        folder.backend(&[
            ("--fd", "3"),
            ("--socket-path", "s"),
            ("--print-capabilities", ""),
            ("--nonsense", ""),
        ]),
        doorbell(&["vhost-user-blk", "--print-capabilities"]),
    ];
    for command in commands {
        let output = output(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["type"], "block");
        assert_eq!(value["features"], serde_json::json!(["read-only", "blk-file"]));
    }
}

#[test]
fn a_socket_path_is_served_until_sigterm() {
    let folder = Folder::new();
    let mut program =
        Program::serve(&mut folder.backend(&[("--socket-path", "s"), ("--blk-file", "disk.img")]));
    for _ in 0..2 {
        let mut frontend = Frontend::connect(&folder.at("s"));
        assert!(writes(&mut frontend));
    }
    assert_eq!(program.terminate().0, Some(0));
    assert!(!folder.at("s").exists());
    let image = std::fs::read(folder.at("disk.img")).unwrap();
    assert_eq!(image[16 * 512..][..4096], pattern(9, 4096));
}

#[test]
fn a_read_only_disk_says_so_and_takes_no_write() {
    let folder = Folder::new();
    let arguments = [("--socket-path", "s"), ("--blk-file", "disk.img"), ("--read-only", "")];
    let mut program = Program::serve(&mut folder.backend(&arguments));
    let mut frontend = Frontend::connect(&folder.at("s"));
    assert_eq!(frontend.ask_u64(crate::frontend::code::GET_FEATURES) >> 5 & 1, 1, "VIRTIO_BLK_F_RO");
    let mut frontend = {
        drop(frontend);
        Frontend::connect(&folder.at("s"))
    };
    assert!(!writes(&mut frontend));
    assert_eq!(frontend.read_blocks(16, 512), vec![0; 512]);
    assert_eq!(program.terminate().0, Some(0));
}

#[test]
fn a_connected_descriptor_is_served_until_it_is_closed() {
    let folder = Folder::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let fd = theirs.as_raw_fd().to_string();
    let mut program = Program::serve(&mut folder.backend(&[("--fd", &fd), ("--blk-file", "disk.img")]));
    drop(theirs);
    let mut frontend = Frontend { stream: ours, memory: Memory::new(), queues: Vec::new(), features: 0 };
    assert!(writes(&mut frontend));
    drop(frontend);
    assert_eq!(program.wait(), Some(0));
}

#[test]
fn a_connected_descriptor_is_left_at_sigterm() {
    let folder = Folder::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let fd = theirs.as_raw_fd().to_string();
    let mut program = Program::serve(&mut folder.backend(&[("--fd", &fd), ("--blk-file", "disk.img")]));
    drop(theirs);
    let mut frontend = Frontend { stream: ours, memory: Memory::new(), queues: Vec::new(), features: 0 };
    assert!(writes(&mut frontend));
    assert_eq!(program.terminate().0, Some(0));
    assert!(frontend.is_closed());
}

#[test]
fn a_listening_descriptor_serves_one_frontend_after_the_other() {
    let folder = Folder::new();
    let listening = UnixListener::bind(folder.at("s")).unwrap();
    rustix::io::fcntl_setfd(listening.as_fd(), FdFlags::empty()).unwrap();
    let fd = listening.as_raw_fd().to_string();
    let mut program = Program::serve(&mut folder.backend(&[("--fd", &fd), ("--blk-file", "disk.img")]));
    drop(listening);
    for _ in 0..3 {
        assert!(writes(&mut Frontend::connect(&folder.at("s"))));
    }
    assert_eq!(program.terminate().0, Some(0));
    assert!(folder.at("s").exists(), "its path is somebody else's");
}

#[test]
fn a_mistake_is_told_with_what_to_do() {
    let folder = Folder::new();
    for (arguments, told) in [
        (vec![("--blk-file", "disk.img")], "give --socket-path PATH or --fd FDNUM"),
        (vec![("--socket-path", "s")], "give --blk-file PATH"),
        (vec![("--socket-path", "s"), ("--blk-file", "no.img")], "no such file; create it first"),
        (vec![("--socket-path", "s"), ("--fd", "3")], "cannot be used with"),
        (
            vec![("--fd", "77"), ("--blk-file", "disk.img")],
            "file descriptor 77 isn't a socket of this process",
        ),
        (vec![("--evdev-path", "s")], "unexpected argument '--evdev-path'"),
    ] {
        let output = output(folder.backend(&arguments));
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(told), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}
