//! What the tests share: a server with a folder of its own, a driver, verified I/O, and looks at this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_core::spec::status::Status;
use doorbell_vhost::client::Client;
use doorbell_vhost::client::memory::ClientMemory;
use doorbell_vhost::client::nvme::Nvme;
use doorbell_vhost::client::queue::{DataPointer, DriverCommand, QueuePair};
use doorbell_vhost::ctl::client::ask;
use doorbell_vhost::ctl::protocol::{Answer, Command, Statistics};
use doorbell_vhost::device::{DeviceConfig, DoorbellMode, Opened, Server};
use doorbell_vhost::engine::Hosting;
use doorbell_vhost::storage::fault::{FaultControl, FaultStorage};
use doorbell_vhost::storage::{RamStorage, Storage};
use tempfile::TempDir;

/// Where the driver's memory is.
pub const IOVA: u64 = 0x1_0000_0000;
/// Bytes of it.
pub const MEMORY_BYTES: u64 = 32 << 20;
pub const WRITE: u8 = 1;
pub const READ: u8 = 2;
/// How long anything may take.
pub const LONG: Duration = Duration::from_secs(20);

/// A running server.
pub struct Rig {
    pub server: Option<Server>,
    pub socket: PathBuf,
    faults: Option<FaultControl>,
    _folder: TempDir,
}

impl Drop for Rig {
    /// A test that fails must not wait for a storage that it has stopped.
    fn drop(&mut self) {
        if let Some(faults) = &self.faults {
            faults.clear();
            faults.release();
        }
    }
}

impl Rig {
    /// A server of the namespaces, given as on the command line; `FOLDER` is the rig's folder.
    pub fn start(namespaces: &[&str], change: impl FnOnce(&mut DeviceConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Some(Server::start(config(folder.path(), namespaces, change)).unwrap());
        let socket = folder.path().join("s");
        Self { server, socket, faults: None, _folder: folder }
    }

    /// A server of RAM that misbehaves on request.
    pub fn with_faults(size_bytes: u64, change: impl FnOnce(&mut DeviceConfig)) -> (Self, FaultControl) {
        Self::with_faults_over(Arc::new(RamStorage::new(size_bytes).unwrap()), change)
    }

    /// A server of a storage that misbehaves on request.
    pub fn with_faults_over(
        storage: Arc<dyn Storage>,
        change: impl FnOnce(&mut DeviceConfig),
    ) -> (Self, FaultControl) {
        let folder = tempfile::tempdir().unwrap();
        let (storage, control) = FaultStorage::new(storage).unwrap();
        let opened = Opened::with_storage("fault".into(), Arc::new(storage), 512, "fault");
        let config = config(folder.path(), &[], change);
        let server = Some(Server::start_with(config, vec![opened]).unwrap());
        let socket = folder.path().join("s");
        (Self { server, socket, faults: Some(control.clone()), _folder: folder }, control)
    }

    /// A driver with memory of its own.
    pub fn driver(&self) -> Nvme {
        driver(&self.socket)
    }

    pub fn ask(&self, command: Command) -> Result<Answer, String> {
        ask(&self.socket, command).map_err(|error| error.to_string())
    }

    pub fn stat(&self) -> Statistics {
        match self.ask(Command::Stat) {
            Ok(Answer::Stat(statistics)) => *statistics,
            other => panic!("{other:?}"),
        }
    }
}

/// `shadow` mode, for [`Rig::start`].
pub fn shadow(config: &mut DeviceConfig) {
    config.doorbells = DoorbellMode::Shadow;
}

pub fn config(folder: &Path, namespaces: &[&str], change: impl FnOnce(&mut DeviceConfig)) -> DeviceConfig {
    let place = folder.display().to_string();
    let spec = |text: &&str| text.replace("FOLDER", &place).parse().unwrap();
    let mut config = DeviceConfig::new(folder.join("s"), namespaces.iter().map(spec).collect());
    config.hosting = hosting();
    change(&mut config);
    config
}

/// Where the controllers under test run: in the sandbox module that `DOORBELL_TEST_ENGINE` names, or natively.
fn hosting() -> Hosting {
    std::env::var_os("DOORBELL_TEST_ENGINE").map_or(Hosting::Native, |module| {
        Hosting::sandbox(module.into()).expect("built with --features sandbox")
    })
}

pub fn driver(socket: &Path) -> Nvme {
    let memory = ClientMemory::new(IOVA, MEMORY_BYTES, false).unwrap();
    Nvme::new(Client::connect(socket).unwrap(), memory).unwrap()
}

/// A file of zeroes.
pub fn image(path: &Path, size_bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(size_bytes).unwrap();
}

pub fn prp(iova: u64, len_bytes: u32) -> DataPointer {
    DataPointer::Prp { iova, len_bytes }
}

/// A read or write of `len_bytes` in blocks of 512.
pub fn transfer(opcode: u8, slba: u64, iova: u64, len_bytes: u32) -> DriverCommand {
    DriverCommand::transfer(opcode, 1, slba, len_bytes / 512, prp(iova, len_bytes))
}

pub fn flush(nsid: u32) -> DriverCommand {
    DriverCommand { opcode: 0, nsid, cdw: [0; 6], data: DataPointer::None }
}

/// Runs one command to its end.
pub fn run(nvme: &mut Nvme, queue: &mut QueuePair, command: &DriverCommand) -> Status {
    queue.submit(command).expect("room in the queue");
    queue.ring().unwrap();
    collect(nvme, queue, 1)[0]
}

/// Collects completions, in the order in which they come.
pub fn collect(nvme: &mut Nvme, queue: &mut QueuePair, count: usize) -> Vec<Status> {
    let deadline = Instant::now() + LONG;
    let mut found = Vec::new();
    while found.len() < count {
        queue.poll(count - found.len(), &mut |entry| found.push(entry.status)).unwrap();
        nvme.client().serve().unwrap();
        assert!(Instant::now() < deadline, "{} of {count} completions came", found.len());
        std::thread::yield_now();
    }
    found
}

/// Bytes that nothing else has.
pub fn pattern(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes);
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Writes a pattern at each of `slbas`, reads all back and compares. `buffer` is an offset of the driver's memory.
pub fn verify(nvme: &mut Nvme, queue: &mut QueuePair, buffer: u64, slbas: &[u64], len_bytes: u32) {
    let memory = Arc::clone(nvme.memory());
    for slba in slbas {
        memory.write(buffer, &pattern(*slba + 1, len_bytes as usize));
        let status = run(nvme, queue, &transfer(WRITE, *slba, IOVA + buffer, len_bytes));
        assert!(status.is_success(), "write of {slba}: {status:?}");
    }
    for slba in slbas {
        memory.write(buffer, &vec![0xee; len_bytes as usize]);
        let status = run(nvme, queue, &transfer(READ, *slba, IOVA + buffer, len_bytes));
        assert!(status.is_success(), "read of {slba}: {status:?}");
        let mut found = vec![0; len_bytes as usize];
        memory.read(buffer, &mut found);
        assert!(found == pattern(*slba + 1, len_bytes as usize), "block {slba} differs");
    }
}

/// Waits until `done`.
pub fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The threads of this process: number and name.
pub fn threads() -> Vec<(String, String)> {
    let named = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        Some((path.file_name()?.to_str()?.to_owned(), name.trim().to_owned()))
    };
    std::fs::read_dir("/proc/self/task").unwrap().filter_map(named).collect()
}

/// Time on a processor of the threads whose names start so.
pub fn cpu_time(name: &str) -> Duration {
    let ran = |(thread, _): &(String, String)| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    Duration::from_nanos(threads().iter().filter(|(_, found)| found.starts_with(name)).map(ran).sum())
}

/// A status without its Do Not Retry bit.
pub fn plain(status: Status) -> Status {
    Status::new(status.code_type(), status.code())
}
