//! A Linux guest that runs scripts and reports on its console.
//!
//! The guest boots the set-up's kernel with a root in memory. What it does is in `tests/guest/`: `init`,
//! `lib.sh` and one script for each thing to be looked at; they are appended to the image at each start.
//! The guest speaks in lines that begin with `GUEST-`:
//!
//! - `GUEST-RUN: name`, `GUEST-END: name ok`: a script begins and ends;
//! - `GUEST-ASK: words`: the guest waits until the test has answered, perhaps after doing something;
//! - `GUEST-VALUE: key number`: something measured;
//! - `GUEST-RESULT: ok` or `GUEST-RESULT: failed names`: the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::firmware;
use crate::layout;
use crate::machine::{Machine, Migration};
use crate::qemu::{Device, Qemu, monitor};

/// A guest to be started.
#[derive(Clone, Debug)]
pub struct Guest {
    devices: Vec<Device>,
    scripts: Vec<String>,
    kernel: String,
    modules: Vec<String>,
    pluggable: bool,
    from_disk: bool,
    small: bool,
    limit: Duration,
}

/// What a guest reported.
#[derive(Clone, Debug)]
pub struct Report {
    /// Everything on its console.
    pub console: String,
    /// What it measured.
    pub values: BTreeMap<String, f64>,
    /// How long each script took.
    pub scripts: Vec<(String, Duration)>,
}

impl Guest {
    /// A guest with this device that will run these scripts, in this order.
    #[must_use]
    pub fn new(device: Device, scripts: &[&str]) -> Self {
        let kernel = match device {
            Device::Emulated { .. } => "doorbell.emulated".to_owned(),
            Device::VfioUser(_) | Device::VhostUser(_) => String::new(),
        };
        let modules = match device {
            Device::VhostUser(_) => vec!["virtio_blk.ko".to_owned()],
            Device::Emulated { .. } | Device::VfioUser(_) => Vec::new(),
        };
        Self {
            modules,
            devices: vec![device],
            scripts: scripts.iter().map(|&script| script.to_owned()).collect(),
            kernel,
            pluggable: false,
            from_disk: false,
            small: false,
            limit: Duration::from_secs(600),
        }
    }

    /// A guest that OVMF starts from [`Self::boot_disk`], which one of the devices has to have.
    #[must_use]
    pub fn from_disk(scripts: &[&str]) -> Self {
        Self {
            devices: Vec::new(),
            scripts: scripts.iter().map(|&script| script.to_owned()).collect(),
            modules: vec!["virtio_blk.ko".to_owned()],
            kernel: String::new(),
            pluggable: false,
            from_disk: true,
            small: true,
            limit: Duration::from_secs(600),
        }
    }

    /// Makes the disk that the guest starts from.
    pub fn boot_disk(&self, folder: &Path) -> Result<PathBuf> {
        let options = format!("initrd=\\initramfs {}", self.command_line());
        firmware::linux_disk(folder, &layout::part("vmlinuz")?, &self.image(folder)?, &options)
    }

    /// Adds a device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Adds to the kernel's command line, for instance `nvme.sgl_threshold=1`.
    #[must_use]
    pub fn kernel(mut self, words: &str) -> Self {
        self.kernel.push(' ');
        self.kernel.push_str(words);
        self
    }

    /// With busybox and nothing else, which starts quicker.
    #[must_use]
    pub const fn small(mut self) -> Self {
        self.small = true;
        self
    }

    /// With a module of the kernel, in `/guest`.
    #[must_use]
    pub fn module(mut self, name: &str) -> Self {
        self.modules.push(name.to_owned());
        self
    }

    /// With a port that a disk can be plugged into ([`Machine::plug`]).
    #[must_use]
    pub const fn pluggable(mut self) -> Self {
        self.pluggable = true;
        self
    }

    /// How long it may run in all; 600 s if nothing else is said.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the guest to its end. Questions are an error.
    pub fn run(self) -> Result<Report> {
        self.run_with(|question| bail!("nobody answers the guest's question `{question}`"))
    }

    /// Runs the guest to its end. `answer` gets the words of each question and returns one line.
    pub fn run_with(self, mut answer: impl FnMut(&str) -> Result<String>) -> Result<Report> {
        self.run_in(|question, _| answer(question))
    }

    /// The same for tests that do something to the machine.
    pub fn run_in(&self, mut answer: impl FnMut(&str, &mut Machine) -> Result<String>) -> Result<Report> {
        let mut machine = Machine::new(self.start(&self.devices, &[])?)?;
        let mut report = Report { console: String::new(), values: BTreeMap::new(), scripts: Vec::new() };
        let start = Instant::now();
        let mut script_start = start;
        let mut result = None;
        loop {
            let left = self.limit.saturating_sub(start.elapsed());
            let line = match machine.line(left) {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(_) => bail!("the guest has not ended within {:?}:\n{}", self.limit, report.console),
            };
            report.console.push_str(&line);
            report.console.push('\n');
            if std::env::var_os("DOORBELL_CONSOLE").is_some() {
                println!("{:7.2} {line}", start.elapsed().as_secs_f64());
            }
            if line.contains("Kernel panic") {
                bail!("the guest's kernel has panicked:\n{}", report.console);
            }
            // A message of the kernel may stand before it on the same line.
            let Some((key, words)) = line.find("GUEST-").and_then(|at| line[at + 6..].split_once(": "))
            else {
                continue;
            };
            match key {
                "RUN" => script_start = Instant::now(),
                "END" => {
                    let name = words.split(' ').next().unwrap_or_default();
                    report.scripts.push((name.to_owned(), script_start.elapsed()));
                }
                "VALUE" => {
                    let (key, number) =
                        words.split_once(' ').context("GUEST-VALUE needs a key and a number")?;
                    report.values.insert(key.to_owned(), number.parse()?);
                }
                "ASK" => {
                    // The guest hears of an error too, so that its console tells the whole story.
                    let reply = answer(words, &mut machine);
                    let text = match &reply {
                        Ok(text) => text.lines().next().unwrap_or("ok").to_owned(),
                        Err(error) => format!("error {error:#}").replace('\n', " "),
                    };
                    // Where QEMU has ended, why it has is what counts.
                    let told = machine.answer(&text);
                    reply
                        .with_context(|| format!("answer to `{words}`; the console:\n{}", report.console))?;
                    told?;
                }
                "RESULT" => result = Some(words.to_owned()),
                _ => {}
            }
        }
        let qemu = machine.qemu();
        let status = qemu.process.wait(Duration::from_secs(60))?;
        let result = result.ok_or_else(|| {
            anyhow!(
                "QEMU ended with {status}, no result; it said:\n{}\n{}",
                qemu.process.said(),
                report.console
            )
        })?;
        ensure!(result == "ok", "the guest's result is `{result}`:\n{}", report.console);
        ensure!(
            report.scripts.len() == self.scripts.len(),
            "the guest ran {:?} instead of {:?}:\n{}",
            report.scripts,
            self.scripts,
            report.console
        );
        for (script, time) in &report.scripts {
            println!("guest script {script}: {:.1} s", time.as_secs_f64());
        }
        Ok(report)
    }

    /// Moves the guest that runs in `machine` to another QEMU, whose one device is this.
    pub fn migrate(&self, machine: &mut Machine, device: Device) -> Result<Migration> {
        machine.migrate(self.start(&[device], &["-incoming", "defer"])?)
    }

    fn start(&self, devices: &[Device], more: &[&str]) -> Result<Qemu> {
        Qemu::start(devices, |folder, command| {
            if self.from_disk {
                firmware::add_ovmf(folder, command)?;
            } else {
                command.arg("-kernel").arg(layout::part("vmlinuz")?);
                command.arg("-initrd").arg(self.image(folder)?).arg("-append").arg(self.command_line());
            }
            command
                .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
                .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
                .arg("-qmp")
                .arg(format!("unix:{},server=on,wait=off", monitor(folder).display()))
                .args(more)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            if self.pluggable {
                command.args(["-device", "pcie-root-port,id=plug,slot=9"]);
            }
            Ok(())
        })
    }

    fn command_line(&self) -> String {
        format!("console=ttyS0 quiet loglevel=2 panic=0 iomem=relaxed {}", self.kernel)
    }

    /// The set-up's image with the scripts appended: the kernel unpacks one archive after the other.
    fn image(&self, folder: &Path) -> Result<PathBuf> {
        let root = folder.join("overlay");
        let scripts = root.join("guest");
        fs::create_dir_all(&scripts)?;
        fs::copy(layout::scripts().join("init"), root.join("init"))?;
        fs::copy(layout::scripts().join("lib.sh"), scripts.join("lib.sh"))?;
        let mut order = String::new();
        for script in &self.scripts {
            let name = format!("{script}.sh");
            let from = layout::scripts().join(&name);
            fs::copy(&from, scripts.join(&name)).with_context(|| format!("{} is missing", from.display()))?;
            order.push_str(script);
            order.push('\n');
        }
        fs::write(scripts.join("order"), order)?;
        for module in &self.modules {
            fs::copy(layout::part("modules")?.join(module), scripts.join(module))?;
        }

        let image = folder.join("initramfs");
        let mut names = "init\nguest\n".to_owned();
        for entry in fs::read_dir(&scripts)? {
            writeln!(names, "guest/{}", entry?.file_name().to_string_lossy())?;
        }
        if self.small {
            unpack(&layout::part("initramfs")?, &root)?;
            names.push_str("bin\nsbin\nlib\ndev\nproc\nsys\ntmp\nusr\nusr/bin\nusr/bin/busybox\n");
            for entry in fs::read_dir(root.join("usr/bin"))? {
                let entry = entry?;
                if entry.file_type()?.is_symlink() {
                    writeln!(names, "usr/bin/{}", entry.file_name().to_string_lossy())?;
                }
            }
            File::create(&image)?;
        } else {
            fs::copy(layout::part("initramfs")?, &image)?;
        }
        append(&image, &root, &names)?;
        Ok(image)
    }
}

/// Appends an archive of the files of `root` that are named, one a line.
fn append(image: &Path, root: &Path, names: &str) -> Result<()> {
    let mut cpio = cpio(&["--create", "--format=newc", "--owner=+0:+0", "--quiet"], root)
        .stdin(Stdio::piped())
        .stdout(File::options().append(true).open(image)?)
        .spawn()
        .context("cpio can't be started: run `cargo xtask setup`")?;
    cpio.stdin.take().context("cpio has no standard input")?.write_all(names.as_bytes())?;
    ensure!(cpio.wait()?.success(), "cpio could not write {}", image.display());
    Ok(())
}

/// Unpacks an archive; what is there already stays.
fn unpack(image: &Path, root: &Path) -> Result<()> {
    let status = cpio(&["--extract", "--make-directories", "--quiet"], root)
        .stdin(File::open(image)?)
        .status()
        .context("cpio can't be started: run `cargo xtask setup`")?;
    ensure!(status.success(), "cpio could not read {}", image.display());
    Ok(())
}

fn cpio(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new("cpio");
    command.args(arguments).current_dir(folder);
    command
}
