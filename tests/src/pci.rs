//! A PCI function as firmware and a driver see it: configuration space through ports CF8h and CFCh, BARs,
//! capabilities, MSI-X. (PCI Local Bus 3.0, 3.2.2.3.2 and 6.2; PCI Express Base 4.0, 7.5.)

use anyhow::{Context, Result, bail, ensure};

use crate::qtest::{Qtest, Width};

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;

/// Where BARs are placed: above memory, below the I/O APIC. Firmware would do this.
const FIRST_BAR: u64 = 0xe000_0000;

/// Registers of the configuration header that the tests use.
pub mod register {
    /// Vendor and device identifiers.
    pub const ID: u8 = 0x00;
    /// Command and status.
    pub const COMMAND: u8 = 0x04;
    /// Revision and class code.
    pub const CLASS: u8 = 0x08;
    /// The first of six base address registers.
    pub const BAR0: u8 = 0x10;
    /// Subsystem vendor and device identifiers.
    pub const SUBSYSTEM: u8 = 0x2c;
    /// Where the list of capabilities begins.
    pub const CAPABILITIES: u8 = 0x34;
    /// Interrupt line and pin.
    pub const INTERRUPT: u8 = 0x3c;
}

/// Capability identifiers.
pub mod capability {
    /// Power management.
    pub const POWER_MANAGEMENT: u8 = 0x01;
    /// PCI Express.
    pub const PCI_EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSI_X: u8 = 0x11;
}

/// Memory space enable.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// Bus master enable.
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// INTx disable.
pub const COMMAND_INTX_DISABLE: u16 = 1 << 10;

/// A base address register after placing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The physical address.
    pub address: u64,
    /// The size.
    pub len_bytes: u64,
    /// Whether it takes two registers.
    pub wide: bool,
}

/// A function on bus 0.
#[derive(Debug)]
pub struct Function {
    slot: u8,
    /// The placed BARs, by register.
    pub bars: [Option<Bar>; 6],
}

impl Function {
    /// Finds the `nth` NVMe controller (class code 010802h), places its BARs and lets it decode memory and
    /// master the bus.
    pub fn find_nvme(qtest: &mut Qtest, nth: usize) -> Result<Self> {
        let slot = (0..32)
            .filter_map(|slot| {
                let function = Self { slot, bars: [None; 6] };
                match function.read(qtest, register::CLASS) {
                    Ok(class) => (class >> 8 == 0x01_08_02).then_some(Ok(slot)),
                    Err(error) => Some(Err(error)),
                }
            })
            .nth(nth)
            .context("there is no NVMe controller on bus 0")??;
        let mut function = Self { slot, bars: [None; 6] };
        // Each function has a window of its own.
        function.place_bars(qtest, FIRST_BAR + 0x0100_0000 * nth as u64)?;
        function.set_command(qtest, COMMAND_MEMORY | COMMAND_BUS_MASTER)?;
        Ok(function)
    }

    /// Reads the aligned 32-bit register at `offset`.
    pub fn read(&self, qtest: &mut Qtest, offset: u8) -> Result<u32> {
        qtest.outl(ADDRESS_PORT, self.address(offset)?)?;
        qtest.inl(DATA_PORT)
    }

    /// Writes the aligned 32-bit register at `offset`.
    pub fn write(&self, qtest: &mut Qtest, offset: u8, value: u32) -> Result<()> {
        qtest.outl(ADDRESS_PORT, self.address(offset)?)?;
        qtest.outl(DATA_PORT, value)
    }

    /// Reads 16 bits.
    pub fn read_word(&self, qtest: &mut Qtest, offset: u8) -> Result<u16> {
        let shift = u32::from(offset & 2) * 8;
        Ok((self.read(qtest, offset & !3)? >> shift) as u16)
    }

    /// Writes 16 bits with a 16-bit access, so that the other half (often write-1-to-clear) is untouched.
    pub fn write_word(&self, qtest: &mut Qtest, offset: u8, value: u16) -> Result<()> {
        qtest.outl(ADDRESS_PORT, self.address(offset & !3)?)?;
        let port = DATA_PORT + u16::from(offset & 2);
        qtest.request(&format!("outw {port:#x} {value:#x}")).map(drop)
    }

    /// The whole 256-byte configuration space.
    pub fn read_all(&self, qtest: &mut Qtest) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for offset in (0..=0xfc).step_by(4) {
            bytes.extend(self.read(qtest, offset)?.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Writes the command register.
    pub fn set_command(&self, qtest: &mut Qtest, command: u16) -> Result<()> {
        self.write_word(qtest, register::COMMAND, command)
    }

    /// Where the capability with this identifier begins.
    pub fn capability(&self, qtest: &mut Qtest, id: u8) -> Result<u8> {
        for (found, offset) in self.capabilities(qtest)? {
            if found == id {
                return Ok(offset);
            }
        }
        bail!("the function has no capability {id:#04x}")
    }

    /// Every capability: identifier and offset, in the order of the list.
    pub fn capabilities(&self, qtest: &mut Qtest) -> Result<Vec<(u8, u8)>> {
        let status = self.read(qtest, register::COMMAND)? >> 16;
        ensure!(status & 0x10 != 0, "Status says that there is no list of capabilities");
        let mut list = Vec::new();
        let mut offset = self.read(qtest, register::CAPABILITIES)? as u8 & !3;
        while offset != 0 {
            ensure!(offset >= 0x40, "a capability at {offset:#x} lies in the header");
            ensure!(list.len() < 48, "the list of capabilities has no end");
            let head = self.read(qtest, offset)?;
            list.push((head as u8, offset));
            offset = (head >> 8) as u8 & !3;
        }
        Ok(list)
    }

    /// Function level reset (PCI Express Base 4.0, 7.5.3.4), then what a driver restores after it.
    pub fn reset(&mut self, qtest: &mut Qtest) -> Result<()> {
        let express = self.capability(qtest, capability::PCI_EXPRESS)?;
        let capable = self.read(qtest, express + 4)? & 1 << 28 != 0;
        ensure!(capable, "Device Capabilities don't announce Function Level Reset");
        let control = self.read_word(qtest, express + 8)?;
        self.write_word(qtest, express + 8, control | 1 << 15)?;
        // 6.6.2: software waits 100 ms before the first access.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let again = self.read_word(qtest, express + 8)?;
        ensure!(again & 1 << 15 == 0, "Initiate Function Level Reset reads back as 1");
        let command = self.read(qtest, register::COMMAND)? as u16;
        ensure!(
            command & (COMMAND_MEMORY | COMMAND_BUS_MASTER) == 0,
            "the command register is {command:#06x} after the reset, not cleared"
        );
        self.restore(qtest)
    }

    /// Writes back what a reset of the function clears.
    pub fn restore(&self, qtest: &mut Qtest) -> Result<()> {
        for index in 0..6_u8 {
            if let Some(bar) = self.bars[usize::from(index)] {
                self.write(qtest, register::BAR0 + 4 * index, bar.address as u32)?;
                if bar.wide {
                    self.write(qtest, register::BAR0 + 4 * (index + 1), (bar.address >> 32) as u32)?;
                }
            }
        }
        self.set_command(qtest, COMMAND_MEMORY | COMMAND_BUS_MASTER)
    }

    fn place_bars(&mut self, qtest: &mut Qtest, window: u64) -> Result<()> {
        let mut next = window;
        let mut index = 0_u8;
        while index < 6 {
            let offset = register::BAR0 + 4 * index;
            self.write(qtest, offset, u32::MAX)?;
            let mask = self.read(qtest, offset)?;
            // Absent, or I/O space.
            if mask == 0 || mask & 1 != 0 {
                index += 1;
                continue;
            }
            let wide = mask & 6 == 4;
            let mut size_mask = u64::from(mask & !0xf) | 0xffff_ffff_0000_0000;
            if wide {
                self.write(qtest, offset + 4, u32::MAX)?;
                let high = self.read(qtest, offset + 4)?;
                size_mask = u64::from(high) << 32 | u64::from(mask & !0xf);
            }
            let len_bytes = size_mask.wrapping_neg();
            ensure!(len_bytes.is_power_of_two(), "BAR {index} has the size {len_bytes:#x}");
            let address = next.next_multiple_of(len_bytes);
            next = address + len_bytes;
            self.write(qtest, offset, address as u32)?;
            if wide {
                self.write(qtest, offset + 4, (address >> 32) as u32)?;
            }
            self.bars[usize::from(index)] = Some(Bar { address, len_bytes, wide });
            index += if wide { 2 } else { 1 };
        }
        Ok(())
    }

    fn address(&self, offset: u8) -> Result<u32> {
        ensure!(offset.is_multiple_of(4), "configuration space is read in aligned 32-bit words");
        Ok(1 << 31 | u32::from(self.slot) << 11 | u32::from(offset))
    }
}

/// MSI-X of a function, with every vector's message aimed at a word of memory: an interrupt is then a
/// value that a test can read.
#[derive(Clone, Copy, Debug)]
pub struct MsiX {
    control: u8,
    table: u64,
    pending: u64,
    /// How many vectors the function has.
    pub vectors: u16,
    mailbox: u64,
}

impl MsiX {
    /// The value that vector `index` writes.
    #[must_use]
    pub const fn message(index: u16) -> u32 {
        0x5af0_0000 | index as u32
    }

    /// Reads the capability and aims vector `n` at `mailbox + 4n`, unmasked; then enables MSI-X. The
    /// mailbox needs 4 bytes a vector.
    pub fn enable(qtest: &mut Qtest, function: &Function, mailbox: u64) -> Result<Self> {
        let control = function.capability(qtest, capability::MSI_X)?;
        let vectors = (function.read_word(qtest, control + 2)? & 0x7ff) + 1;
        let place = |word: u32| -> Result<u64> {
            let bar = function.bars.get((word & 7) as usize).copied().flatten();
            let bar = bar.context("MSI-X names a BAR that the function doesn't have")?;
            Ok(bar.address + u64::from(word & !7))
        };
        let table = place(function.read(qtest, control + 4)?)?;
        let pending = place(function.read(qtest, control + 8)?)?;
        let msix = Self { control, table, pending, vectors, mailbox };
        qtest.fill_memory(mailbox, u64::from(vectors) * 4, 0)?;
        for index in 0..vectors {
            let entry = table + 16 * u64::from(index);
            qtest.writel(entry, (mailbox + 4 * u64::from(index)) as u32)?;
            qtest.writel(entry + 4, 0)?;
            qtest.writel(entry + 8, Self::message(index))?;
            qtest.writel(entry + 12, 0)?;
        }
        function.write_word(qtest, control + 2, 1 << 15)?;
        Ok(msix)
    }

    /// Masks or unmasks one vector.
    pub fn mask(&self, qtest: &mut Qtest, index: u16, masked: bool) -> Result<()> {
        qtest.writel(self.table + 16 * u64::from(index) + 12, masked.into())
    }

    /// Whether vector `index` is pending behind its mask.
    pub fn pending(&self, qtest: &mut Qtest, index: u16) -> Result<bool> {
        let word = qtest.read(Width::Quad, self.pending + 8 * u64::from(index / 64))?;
        Ok(word >> (index % 64) & 1 != 0)
    }

    /// Whether vector `index` has fired since this was asked last.
    pub fn take(&self, qtest: &mut Qtest, index: u16) -> Result<bool> {
        let address = self.mailbox + 4 * u64::from(index);
        let value = qtest.readl(address)?;
        ensure!(
            value == 0 || value == Self::message(index),
            "vector {index} left {value:#x} where {:#x} belongs",
            Self::message(index)
        );
        qtest.writel(address, 0)?;
        Ok(value != 0)
    }

    /// Disables MSI-X.
    pub fn disable(&self, qtest: &mut Qtest, function: &Function) -> Result<()> {
        function.write_word(qtest, self.control + 2, 0)
    }
}
