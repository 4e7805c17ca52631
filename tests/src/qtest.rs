//! QEMU without a guest: a client of QEMU's qtest line protocol.
//!
//! `-accel qtest` runs no processor. The test makes the accesses that a guest's would: memory by physical
//! address and I/O ports. One request is one line, and each is answered by one line that begins with `OK`.
//! (QEMU: `docs/devel/testing/qtest.rst` and the comment at the head of `system/qtest.c`.)

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::process::wait_for;
use crate::qemu::{Device, Qemu};

/// Longer than any request may take: a vfio-user message times out after 5 s on QEMU's side.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// One request carries at most this much memory, so that lines stay short.
const CHUNK_BYTES: usize = 256 << 10;

/// The width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 1 byte.
    Byte,
    /// 2 bytes.
    Word,
    /// 4 bytes.
    Long,
    /// 8 bytes.
    Quad,
}

impl Width {
    /// Every width.
    pub const ALL: [Self; 4] = [Self::Byte, Self::Word, Self::Long, Self::Quad];

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Long => 4,
            Self::Quad => 8,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::Byte => 'b',
            Self::Word => 'w',
            Self::Long => 'l',
            Self::Quad => 'q',
        }
    }
}

/// A machine without a processor, and the line to it.
#[derive(Debug)]
pub struct Qtest {
    qemu: Qemu,
    writer: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Qtest {
    /// Starts a machine with these devices.
    pub fn start(devices: &[Device]) -> Result<Self> {
        let mut listener = None;
        let mut qemu = Qemu::start(devices, |folder, command| {
            let socket = folder.join("qtest.sock");
            listener = Some(UnixListener::bind(&socket)?);
            command
                .args(["-accel", "qtest", "-qtest-log", "none", "-qtest"])
                .arg(format!("unix:{}", socket.display()));
            Ok(())
        })?;
        let listener = listener.context("QEMU was not started")?;
        listener.set_nonblocking(true)?;
        let stream = wait_for("QEMU opens the qtest socket", ANSWER_LIMIT, || {
            qemu.process.check_alive()?;
            Ok(listener.accept().ok().map(|(stream, _)| stream))
        })?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let reader = BufReader::new(stream.try_clone()?);
        let mut qtest = Self { qemu, writer: stream, reader };
        // The devices are realised before this is answered, so a refused socket shows up here.
        qtest.request("endianness")?;
        Ok(qtest)
    }

    /// The QEMU process.
    pub fn qemu(&mut self) -> &mut Qemu {
        &mut self.qemu
    }

    /// Sends one request and returns what follows `OK`.
    pub fn request(&mut self, line: &str) -> Result<String> {
        let short = || line.chars().take(60).collect::<String>();
        if let Err(error) = self.writer.write_all(format!("{line}\n").as_bytes()) {
            self.qemu.process.check_alive()?;
            return Err(error).with_context(|| format!("qtest `{}`", short()));
        }
        loop {
            let mut answer = String::new();
            match self.reader.read_line(&mut answer) {
                Ok(0) => {
                    std::thread::sleep(Duration::from_millis(50));
                    self.qemu.process.check_alive()?;
                    bail!("QEMU closed the qtest socket at `{}`", short());
                }
                Ok(_) => {}
                Err(error) => {
                    let said = self.qemu.process.said();
                    return Err(error)
                        .with_context(|| format!("no answer to qtest `{}`; QEMU said:\n{said}", short()));
                }
            }
            let answer = answer.trim_end();
            if answer.starts_with("IRQ ") {
                continue;
            }
            match answer.strip_prefix("OK") {
                Some(rest) => return Ok(rest.trim_start().to_owned()),
                None => bail!("qtest `{}` was answered with `{answer}`", short()),
            }
        }
    }

    /// Reads from a physical address.
    pub fn read(&mut self, width: Width, address: u64) -> Result<u64> {
        number(&self.request(&format!("read{} {address:#x}", width.letter()))?)
    }

    /// Writes to a physical address.
    pub fn write(&mut self, width: Width, address: u64, value: u64) -> Result<()> {
        self.request(&format!("write{} {address:#x} {value:#x}", width.letter())).map(drop)
    }

    /// Reads four bytes.
    pub fn readl(&mut self, address: u64) -> Result<u32> {
        Ok(u32::try_from(self.read(Width::Long, address)?)?)
    }

    /// Writes four bytes.
    pub fn writel(&mut self, address: u64, value: u32) -> Result<()> {
        self.write(Width::Long, address, value.into())
    }

    /// Reads eight bytes.
    pub fn readq(&mut self, address: u64) -> Result<u64> {
        self.read(Width::Quad, address)
    }

    /// Writes eight bytes.
    pub fn writeq(&mut self, address: u64, value: u64) -> Result<()> {
        self.write(Width::Quad, address, value)
    }

    /// Reads four bytes from an I/O port.
    pub fn inl(&mut self, port: u16) -> Result<u32> {
        Ok(u32::try_from(number(&self.request(&format!("inl {port:#x}"))?)?)?)
    }

    /// Writes four bytes to an I/O port.
    pub fn outl(&mut self, port: u16, value: u32) -> Result<()> {
        self.request(&format!("outl {port:#x} {value:#x}")).map(drop)
    }

    /// Reads memory.
    pub fn read_memory(&mut self, address: u64, len_bytes: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len_bytes);
        while bytes.len() < len_bytes {
            let chunk = (len_bytes - bytes.len()).min(CHUNK_BYTES);
            let from = address + bytes.len() as u64;
            let text = self.request(&format!("b64read {from:#x} {chunk:#x}"))?;
            bytes.extend(STANDARD.decode(&text).context("QEMU's base64")?);
        }
        Ok(bytes)
    }

    /// Writes memory.
    pub fn write_memory(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut to = address;
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let mut line = format!("b64write {to:#x} {:#x} ", chunk.len());
            STANDARD.encode_string(chunk, &mut line);
            self.request(&line)?;
            to += chunk.len() as u64;
        }
        Ok(())
    }

    /// Fills memory with one byte.
    pub fn fill_memory(&mut self, address: u64, len_bytes: u64, byte: u8) -> Result<()> {
        let mut line = String::new();
        write!(line, "memset {address:#x} {len_bytes:#x} {byte:#x}")?;
        self.request(&line).map(drop)
    }

    /// Moves the virtual clock on, so that timers of QEMU's own devices run. Ours has its own time.
    pub fn step_clock(&mut self, nanoseconds: u64) -> Result<()> {
        self.request(&format!("clock_step {nanoseconds}")).map(drop)
    }
}

fn number(text: &str) -> Result<u64> {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).with_context(|| format!("`{text}` is no number of qtest's"))
}
