//! Starting QEMU.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::layout;
use crate::process::Process;

/// The disk that the machine gets.
#[derive(Clone, Debug)]
pub enum Device {
    /// Ours: QEMU's vfio-user client on this socket.
    VfioUser(PathBuf),
    /// Ours as a virtio disk with two queues: QEMU's vhost-user client on this socket, which comes back when the
    /// server does.
    VhostUser(PathBuf),
    /// QEMU's own emulation, the known-good device that the harness is checked against. The image is
    /// raw; the text is further properties, for instance `,mqes=63`.
    Emulated {
        /// The raw image behind its one namespace.
        image: PathBuf,
        /// Properties of QEMU's `nvme` device, each with a comma before it.
        properties: String,
    },
}

impl Device {
    /// QEMU's own device on `image` with default properties.
    #[must_use]
    pub fn emulated(image: &Path) -> Self {
        Self::Emulated { image: image.to_owned(), properties: String::new() }
    }

    fn arguments(&self) -> Vec<String> {
        match self {
            Self::VfioUser(socket) => {
                let device = json!({
                    "driver": "vfio-user-pci",
                    "bootindex": BOOT_INDEX,
                    "socket": { "type": "unix", "path": socket },
                });
                vec!["-device".into(), device.to_string()]
            }
            Self::VhostUser(socket) => {
                let chardev = format!("socket,id=virtio,path={},reconnect-ms=100", socket.display());
                let device = format!("vhost-user-blk-pci,chardev=virtio,num-queues=2,bootindex={BOOT_INDEX}");
                vec!["-chardev".into(), chardev, "-device".into(), device]
            }
            Self::Emulated { image, properties } => {
                let drive = format!("if=none,id=disk,format=raw,file={}", image.display());
                let controller = format!("nvme,serial=harness{properties}");
                let namespace = format!("nvme-ns,drive=disk,bootindex={BOOT_INDEX},uuid={UUID}");
                vec!["-drive".into(), drive, "-device".into(), controller, "-device".into(), namespace]
            }
        }
    }
}

/// Firmware boots from the device, unless QEMU was given a kernel, which takes index 0.
const BOOT_INDEX: u32 = 1;

/// Of the namespace of the known-good device, which has none by itself.
const UUID: &str = "6f1c2a4e-0d5b-4a8f-9c57-3b8a1d2e4f60";

/// Memory of every machine, in MiB: shared with the device's server, which is what makes DMA possible.
pub const MEMORY_MIB: u64 = 1024;

/// A running QEMU. Dropping it ends it.
#[derive(Debug)]
pub struct Qemu {
    /// The process, for signals and for what it said.
    pub process: Process,
    folder: TempDir,
}

impl Qemu {
    /// Starts a q35 machine with the devices given. `more` gets a scratch folder and adds what is special
    /// about this machine: accelerator, firmware, console.
    pub fn start(devices: &[Device], more: impl FnOnce(&Path, &mut Command) -> Result<()>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("doorbell-qemu.").tempdir()?;
        let mut command = Command::new(layout::part("qemu-system-x86_64")?);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-M", "q35,memory-backend=m", "-m", &format!("{MEMORY_MIB}M")])
            .args(["-object", &format!("memory-backend-memfd,id=m,size={MEMORY_MIB}M,share=on")]);
        for device in devices {
            command.args(device.arguments());
        }
        more(folder.path(), &mut command)?;
        let process = Process::start("QEMU", &mut command)?;
        Ok(Self { process, folder })
    }

    /// Where its monitor is, if it was started with one.
    #[must_use]
    pub fn monitor(&self) -> PathBuf {
        monitor(self.folder.path())
    }

    /// A folder that lives as long as the machine.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// The socket of a monitor.
#[must_use]
pub fn monitor(folder: &Path) -> PathBuf {
    folder.join("monitor")
}

/// A raw image of `len_bytes` zero bytes in `folder`.
pub fn blank_image(folder: &Path, len_bytes: u64) -> Result<PathBuf> {
    ensure!(len_bytes.is_multiple_of(512), "an image is whole sectors of 512 bytes");
    let path = folder.join("disk.img");
    let file = std::fs::File::create(&path).with_context(|| format!("{} can't be made", path.display()))?;
    file.set_len(len_bytes)?;
    Ok(path)
}
