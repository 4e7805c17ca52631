//! `doorbell serve --config` and `doorbell check`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_vhost::client::nvme::DoorbellMode;

use crate::frontend::{Frontend, pattern};
use crate::program::{Program, doorbell, output, text};
use crate::rig::{self, LONG};

/// A folder with a devices file.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(devices: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        std::fs::write(folder.at("devices.toml"), devices).unwrap();
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self) -> String {
        self.at("devices.toml").display().to_string()
    }

    fn sockets(&self) -> usize {
        let names = std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("sock")).count()
    }
}

const THREE: &str = r#"
[[device]]
socket = "nvme.sock"
protocol = "vfio-user"
pollers = 2
serial = "FIRST"

[[device.namespace]]
ram = "32M"

[[device.namespace]]
file = "nvme.img"
block-size = 4096

[[device]]
socket = "ram.sock"
protocol = "vhost-user"
queues = 2

[[device.namespace]]
ram = "16M"

[[device]]
socket = "file.sock"
protocol = "vhost-user"
serial = "THIRD"

[[device.namespace]]
file = "blk.img"
"#;

fn three() -> Folder {
    let folder = Folder::new(THREE);
    rig::image(&folder.at("nvme.img"), 16 << 20);
    rig::image(&folder.at("blk.img"), 16 << 20);
    folder
}

/// Writes, flushes and reads back until told to stop; returns how many rounds were verified.
fn drive_virtio(socket: &Path, seed: u8, stop: &AtomicBool) -> u64 {
    let mut frontend = Frontend::connect(socket);
    frontend.negotiate(0);
    frontend.add_ring(64);
    frontend.start(0, 0);
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let (sector, data) = (rounds * 97 % 30_000, pattern(seed ^ rounds as u8, 4096));
        assert_eq!(frontend.write_blocks(sector, &data), (0, 1));
        assert_eq!(frontend.request(4, 0, 0), (0, 1));
        assert_eq!(frontend.read_blocks(sector, 4096), data);
        rounds += 1;
    }
    rounds
}

fn drive_nvme(socket: &Path, stop: &AtomicBool) -> u64 {
    let mut nvme = rig::driver(socket);
    let buffer = nvme.allocate(4096).unwrap();
    let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        rig::verify(&mut nvme, &mut queue, buffer, &[rounds * 61 % 60_000], 4096);
        rounds += 1;
    }
    rounds
}

#[test]
fn three_devices_are_served_verified_and_ended_by_one_process() {
    let folder = three();
    let mut program = Program::serve(&mut doorbell(&["serve", "--config", &folder.file()]));
    for words in ["vfio-user on", "vhost-user on", "vhost-user on"] {
        let line = program.line();
        assert!(line.contains(words), "{line}");
    }
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let nvme = scope.spawn(|| drive_nvme(&folder.at("nvme.sock"), &stop));
        let ram = scope.spawn(|| drive_virtio(&folder.at("ram.sock"), 1, &stop));
        let file = scope.spawn(|| drive_virtio(&folder.at("file.sock"), 2, &stop));
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        [nvme, ram, file].map(|thread| thread.join().unwrap())
    });
    assert!(rounds.iter().all(|rounds| *rounds > 20), "{rounds:?}");
    assert_eq!(folder.sockets(), 6, "each has its control socket");
    // With clients that are still there, too.
    let mut frontend = Frontend::connect(&folder.at("ram.sock"));
    frontend.negotiate(0);
    let _nvme = rig::driver(&folder.at("nvme.sock"));
    assert_eq!(program.terminate().0, Some(0));
    assert_eq!(folder.sockets(), 0);
    assert!(frontend.is_closed());
}

#[test]
fn a_client_that_fails_touches_no_other_device() {
    let folder = three();
    let mut program = Program::serve(&mut doorbell(&["serve", "--config", &folder.file()]));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let file = scope.spawn(|| drive_virtio(&folder.at("file.sock"), 2, &stop));
        for round in 0..20 {
            // One speaks nonsense, one breaks its ring, one goes in the middle of its work.
            for name in ["nvme.sock", "ram.sock"] {
                let mut stream = std::os::unix::net::UnixStream::connect(folder.at(name)).unwrap();
                let _ = stream.write_all(&[0xA5; 4096]);
            }
            let mut frontend = Frontend::connect(&folder.at("ram.sock"));
            frontend.negotiate(0);
            frontend.add_ring(64);
            frontend.start(0, 0);
            frontend.queues[0].ring.offer(&frontend.memory, 5000 + round);
            frontend.kick(0);
            let mut nvme = rig::driver(&folder.at("nvme.sock"));
            let buffer = nvme.allocate(1 << 20).unwrap();
            let mut queue = nvme.create_queue_pair(64, 32, DoorbellMode::Mapped, false).unwrap();
            for slot in 0..16 {
                let command = rig::transfer(rig::WRITE, slot * 8, rig::IOVA + buffer + slot * 4096, 4096);
                queue.submit(&command).unwrap();
            }
            queue.ring().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(file.join().unwrap() > 0);
    });
    // And they all go on themselves.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let nvme = scope.spawn(|| drive_nvme(&folder.at("nvme.sock"), &stop));
        let ram = scope.spawn(|| drive_virtio(&folder.at("ram.sock"), 1, &stop));
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        assert!(nvme.join().unwrap() > 0 && ram.join().unwrap() > 0);
    });
    assert_eq!(program.terminate().0, Some(0));
}

#[test]
fn many_idle_devices_burn_no_processor() {
    let mut devices = String::new();
    for index in 0..32 {
        let more = if index % 2 == 0 { "doorbells = \"shadow\"" } else { "" };
        let protocol = if index % 2 == 0 { "vfio-user" } else { "vhost-user" };
        write!(
            devices,
            "[[device]]\nsocket = \"{index}.sock\"\nprotocol = \"{protocol}\"\n{more}\n[[device.namespace]]\nram = \"1M\"\n"
        )
        .unwrap();
    }
    let folder = Folder::new(&devices);
    let mut program = Program::serve(&mut doorbell(&["serve", "--config", &folder.file()]));
    let mut clients = Vec::new();
    let mut frontends = Vec::new();
    for index in 0..32 {
        let socket = folder.at(&format!("{index}.sock"));
        if index % 2 == 0 {
            clients.push(rig::driver(&socket));
        } else {
            let mut frontend = Frontend::connect(&socket);
            frontend.negotiate(0);
            frontend.add_ring(64);
            frontend.start(0, 0);
            assert_eq!(frontend.request(4, 0, 0), (0, 1));
            frontends.push(frontend);
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    let (before, start) = (program.cpu_time(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (used, elapsed) = (program.cpu_time() - before, start.elapsed());
    assert!(used < elapsed / 50, "{used:?} in {elapsed:?}");
    let (code, took) = program.terminate();
    assert_eq!(code, Some(0));
    assert!(took < LONG / 4, "{took:?}");
}

#[test]
fn a_mistake_is_told_before_anything_is_served() {
    let folder = three();
    let wrong = THREE.replace("queues = 2", "queus = 2").replace("blk.img", "no.img");
    std::fs::write(folder.at("devices.toml"), wrong).unwrap();
    let file = folder.file();
    for command in [doorbell(&["serve", "--config", &file]), doorbell(&["check", &file])] {
        let output = output(command);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some(&*format!("doorbell: {file} has 2 mistakes:")));
        let wanted = format!("  {file}:18:1: a device has no key `queus`; did you mean `queues`?");
        assert_eq!(lines.next(), Some(&*wanted));
        let missing = folder.at("no.img");
        let missing = missing.display();
        let wanted =
            format!("  {file}:29:8: {missing}: no such file; create it with `truncate -s 1G {missing}`");
        assert_eq!(lines.next(), Some(&*wanted));
        assert_eq!(lines.next(), None);
        assert_eq!(folder.sockets(), 0);
    }
}

#[test]
fn a_device_that_cannot_start_is_named_and_the_others_leave_nothing() {
    let folder = three();
    let file = folder.file();
    let _first = Program::serve(&mut doorbell(&[
        "serve",
        "--vhost-user",
        folder.at("file.sock").to_str().unwrap(),
        "--ram",
        "1M",
    ]));
    let output = output(doorbell(&["serve", "--config", &file]));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with(&format!("doorbell: {file}:23:1: this device: another process is listening on ")),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!folder.at("nvme.sock").exists() && !folder.at("ram.sock").exists());
}

#[test]
fn check_says_what_would_be_served_and_touches_nothing() {
    let folder = three();
    let output = output(doorbell(&["check", &folder.file()]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[0].starts_with("line 2: vfio-user on ") && lines[0].contains("ram=33554432"), "{said}");
    assert!(lines[2].starts_with("line 23: vhost-user on "), "{said}");
    assert!(lines[3].ends_with("3 device(s), no mistake"), "{said}");
    assert_eq!(folder.sockets(), 0);
}
