//! The machine that a guest runs in, for tests that do something to it meanwhile: move it to another QEMU, plug a
//! disk in and pull it out.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::ChildStdin;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::qemu::{Device, Qemu};
use crate::qmp::Monitor;

/// See the module. The guest's console is its standard input and output.
#[derive(Debug)]
pub struct Machine {
    qemu: Qemu,
    monitor: Monitor,
    stdin: ChildStdin,
    lines: Receiver<Line>,
    sender: Sender<Line>,
    generation: u32,
}

/// A line of the console of one QEMU after the other, or the end of it.
type Line = (u32, Option<String>);

/// What a live migration took.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// From the command to the end.
    pub total: Duration,
    /// While the guest stood still, as QEMU says.
    pub downtime: Duration,
    /// How often the source looked for pages that have changed again.
    pub rounds: u64,
}

const LIMIT: Duration = Duration::from_secs(300);

impl Machine {
    /// A machine that was started with a monitor (`Qemu::monitor`) and pipes for a console.
    pub(crate) fn new(mut qemu: Qemu) -> Result<Self> {
        let (sender, lines) = mpsc::channel();
        let stdin = console(&mut qemu, 0, sender.clone())?;
        let monitor = Monitor::connect(&qemu.monitor())?;
        Ok(Self { qemu, monitor, stdin, lines, sender, generation: 0 })
    }

    /// The monitor of the QEMU that the guest is in now.
    pub fn monitor(&mut self) -> &mut Monitor {
        &mut self.monitor
    }

    /// The next line of the console; `None` when QEMU has ended.
    pub(crate) fn line(&self, limit: Duration) -> Result<Option<String>, RecvTimeoutError> {
        loop {
            match self.lines.recv_timeout(limit)? {
                (_, Some(line)) => return Ok(Some(line)),
                (generation, None) if generation == self.generation => return Ok(None),
                (_, None) => {}
            }
        }
    }

    /// Types a line.
    pub(crate) fn answer(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.stdin, "{text}")?)
    }

    /// The QEMU that the guest is in now.
    pub(crate) fn qemu(&mut self) -> &mut Qemu {
        &mut self.qemu
    }

    /// Plugs a virtio disk in, as device `name`.
    pub fn plug(&mut self, name: &str, device: &Device) -> Result<()> {
        let Device::VhostUser(socket) = device else { bail!("only a virtio disk is plugged in") };
        let address = json!({ "type": "unix", "data": { "path": socket } });
        let backend = json!({ "type": "socket", "data": { "addr": address, "server": false } });
        let chardev = format!("{name}-socket");
        self.monitor.execute("chardev-add", json!({ "id": chardev, "backend": backend }))?;
        let device = json!({
            "driver": "vhost-user-blk-pci", "id": name, "chardev": chardev, "num-queues": 2, "bus": "plug",
        });
        self.monitor.execute("device_add", device)?;
        Ok(())
    }

    /// Pulls a disk out, once the guest has let go of it.
    pub fn unplug(&mut self, name: &str) -> Result<()> {
        self.monitor.execute("device_del", json!({ "id": name }))?;
        self.monitor.wait_event("DEVICE_DELETED", &format!("\"device\":\"{name}\""))?;
        self.monitor.execute("chardev-remove", json!({ "id": format!("{name}-socket") }))?;
        Ok(())
    }

    /// Moves the running guest to another QEMU, which was started with `-incoming defer`, and ends this one.
    pub(crate) fn migrate(&mut self, mut target: Qemu) -> Result<Migration> {
        let stdin = console(&mut target, self.generation + 1, self.sender.clone())?;
        let mut there = Monitor::connect(&target.monitor())?;
        let uri = format!("unix:{}", target.folder().join("migration").display());
        there.execute("migrate-incoming", json!({ "uri": uri }))?;
        let start = Instant::now();
        self.monitor.execute(
            "migrate-set-parameters",
            json!({ "max-bandwidth": 1_u64 << 30, "downtime-limit": 500 }),
        )?;
        self.monitor.execute("migrate", json!({ "uri": uri }))?;
        let info = loop {
            let info = self.monitor.execute("query-migrate", json!({}))?;
            match info["status"].as_str() {
                Some("completed") => break info,
                Some("failed" | "cancelled") => {
                    bail!(
                        "the migration has failed: {info}\n{}\n{}",
                        self.qemu.process.said(),
                        target.process.said()
                    )
                }
                _ if start.elapsed() > LIMIT => bail!("the migration doesn't end: {info}"),
                _ => thread::sleep(Duration::from_millis(50)),
            }
        };
        loop {
            let status = there.execute("query-status", json!({}))?;
            if status["running"] == true {
                break;
            }
            ensure!(start.elapsed() < LIMIT, "the guest doesn't go on: {status}");
            thread::sleep(Duration::from_millis(10));
        }
        let total = start.elapsed();
        let downtime = info["downtime"].as_u64().context("QEMU says no downtime")?;
        let rounds = info["ram"]["dirty-sync-count"].as_u64().context("QEMU counts no rounds")?;
        self.monitor.execute("quit", json!({}))?;
        let status = self.qemu.process.wait(Duration::from_secs(60))?;
        ensure!(status.success(), "the source ended with {status}: {}", self.qemu.process.said());
        (self.qemu, self.monitor, self.stdin) = (target, there, stdin);
        self.generation += 1;
        Ok(Migration { total, downtime: Duration::from_millis(downtime), rounds })
    }
}

/// Sends the console's lines and takes its input.
fn console(qemu: &mut Qemu, generation: u32, sender: Sender<Line>) -> Result<ChildStdin> {
    let stdin = qemu.process.child().stdin.take().context("QEMU has no standard input")?;
    let stdout = qemu.process.child().stdout.take().context("QEMU has no standard output")?;
    thread::spawn(move || {
        let mut pipe = BufReader::new(stdout);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send((generation, Some(text))).is_err() {
                return;
            }
            line.clear();
        }
        let _ = sender.send((generation, None));
    });
    Ok(stdin)
}
