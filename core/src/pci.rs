//! The PCI configuration space of the controller: an endpoint with class code 010802h (NVMe I/O controller).
//!
//! | offset | what |
//! | --- | --- |
//! | 00h | type 0 header |
//! | 40h | Power Management: D0 and D3hot, no PME |
//! | 50h | MSI-X: table and pending bits in BAR 0 |
//! | 60h | PCI Express version 2 endpoint with Function Level Reset |
//! | 100h | no extended capabilities |
//!
//! BAR 0 is a 64-bit memory BAR: registers at 0, doorbells at 1000h, the MSI-X table at 2000h and its pending
//! bits at 3000h, each in a page of its own so that the doorbell page alone can be mapped into a guest. One
//! BAR, not a second one for MSI-X, because that is what NVMe devices have and every firmware knows.
//!
//! No_Soft_Reset is 0: the way from D3hot to D0 resets the function, so a guest has a second means of reset
//! where it can't use Function Level Reset. Read first: PCI Local Bus 3.0, section 6; PCI Express Base 3.1,
//! section 7.8; PCI Bus Power Management 1.2, section 3.2; PCIe Transport Specification 1.0, section 3.8.
//!
//! Not here: the MSI-X table (a host that has one keeps it) and interrupt delivery.

mod state;

use bitflags::bitflags;

/// Vendor ID. 1234h is assigned to nobody; emulated devices have used it for decades, so no real device and no
/// quirk in a driver's table goes by this pair. (QEMU's own 1B36h:0010h would make Linux switch Write Zeroes
/// and namespace identifiers off.) Drivers bind to the class code.
pub const VENDOR_ID: u16 = 0x1234;
/// Device ID.
pub const DEVICE_ID: u16 = 0xd00b;
/// Bytes of configuration space.
pub const CONFIG_SPACE_BYTES: u32 = 4096;
/// Offset of the MSI-X table in BAR 0.
pub const MSIX_TABLE_OFFSET: u32 = 0x2000;
/// Offset of the MSI-X Pending Bit Array in BAR 0.
pub const MSIX_PBA_OFFSET: u32 = 0x3000;
/// Smallest BAR 0, in bytes.
pub const BAR0_BYTES: u64 = 0x4000;

/// What the host decides of the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciConfig {
    /// Vendor ID.
    pub vendor_id: u16,
    /// Device ID.
    pub device_id: u16,
    /// Revision ID.
    pub revision_id: u8,
    /// Subsystem Vendor ID.
    pub subsystem_vendor_id: u16,
    /// Subsystem ID.
    pub subsystem_id: u16,
    /// Bytes of BAR 0: a power of two, at least [`BAR0_BYTES`].
    pub bar0_bytes: u64,
    /// Entries of the MSI-X table, 1 to 256.
    pub vectors: u16,
}

impl PciConfig {
    /// 64 vectors and a BAR of 16 KiB.
    pub const DEFAULT: Self = Self {
        vendor_id: VENDOR_ID,
        device_id: DEVICE_ID,
        revision_id: 1,
        subsystem_vendor_id: VENDOR_ID,
        subsystem_id: DEVICE_ID,
        bar0_bytes: BAR0_BYTES,
        vectors: 64,
    };
}

impl Default for PciConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

bitflags! {
    /// What a write to configuration space set off.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PciEvents: u8 {
        /// Function Level Reset: the host resets the controller. Configuration space has been reset.
        const FLR = 1 << 0;
        /// The function went to D3hot: the host stops it (no DMA, no interrupts, no memory space).
        const D3HOT_ENTERED = 1 << 1;
        /// The function went back to D0: the host resets the controller. Configuration space has been reset.
        const D3HOT_LEFT = 1 << 2;
        /// [`ConfigSpace::bus_master`] changed.
        const BUS_MASTER = 1 << 3;
        /// [`ConfigSpace::bar0`] changed: memory space was switched on or off, or moved.
        const BAR0 = 1 << 4;
        /// [`ConfigSpace::intx_disabled`] changed.
        const INTX_DISABLE = 1 << 5;
        /// [`ConfigSpace::msix_enabled`] or [`ConfigSpace::msix_masked`] changed.
        const MSIX = 1 << 6;
    }
}

/// The configuration space.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    config: PciConfig,
    dwords: [u32; DWORDS],
}

/// Dwords that aren't always 0.
const DWORDS: usize = 40;

const COMMAND: usize = 1;
const BAR0_LOW: usize = 0x10 / 4;
const BAR0_HIGH: usize = 0x14 / 4;
const INTERRUPT: usize = 0x3c / 4;
const PM_CONTROL: usize = 0x44 / 4;
const MSIX: usize = 0x50 / 4;
const PCIE_DEVICE_CONTROL: usize = 0x68 / 4;
const PCIE_LINK_CONTROL: usize = 0x70 / 4;
const PCIE_DEVICE_CONTROL_2: usize = 0x88 / 4;
const PCIE_LINK_CONTROL_2: usize = 0x90 / 4;

const COMMAND_MEMORY_SPACE: u32 = 1 << 1;
const COMMAND_BUS_MASTER: u32 = 1 << 2;
const COMMAND_INTX_DISABLE: u32 = 1 << 10;
const STATUS_INTERRUPT: u32 = 1 << 19;
/// BAR bits 3:0: memory, 64 bits wide, not prefetchable.
const BAR_TYPE: u32 = 0b0100;
const PM_STATE: u32 = 0b11;
const PM_D3HOT: u32 = 0b11;
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_FUNCTION_MASK: u32 = 1 << 30;
const DEVICE_CONTROL_FLR: u32 = 1 << 15;

impl ConfigSpace {
    /// The configuration space after power-on.
    #[must_use]
    pub const fn new(mut config: PciConfig) -> Self {
        if config.bar0_bytes < BAR0_BYTES || !config.bar0_bytes.is_power_of_two() {
            config.bar0_bytes = BAR0_BYTES;
        }
        if config.vectors < 1 || config.vectors > 256 {
            config.vectors = 64;
        }
        Self { config, dwords: power_on(&config) }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &PciConfig {
        &self.config
    }

    /// Reads from `offset` on; any width and alignment. What isn't there is 0.
    pub fn read(&self, offset: u32, data: &mut [u8]) {
        let mut address = offset;
        for byte in data {
            let dword = self.dword((address >> 2) as usize);
            let [b0, b1, b2, b3] = dword.to_le_bytes();
            *byte = match address & 3 {
                0 => b0,
                1 => b1,
                2 => b2,
                _ => b3,
            };
            address = address.saturating_add(1);
        }
    }

    /// Writes from `offset` on; any width and alignment. Only what a guest can write changes. Returns what the
    /// host has to act upon.
    #[must_use = "the events have to be acted upon"]
    pub fn write(&mut self, offset: u32, data: &[u8]) -> PciEvents {
        let mut events = PciEvents::empty();
        let mut address = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let lane = (address & 3) as usize;
            let room = 4usize.wrapping_sub(lane).min(rest.len());
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            let mut bytes = [0; 4];
            let mut mask = [0; 4];
            for ((byte, enable), value) in bytes.iter_mut().zip(&mut mask).skip(lane).zip(now) {
                *byte = *value;
                *enable = 0xff;
            }
            let (value, mask) = (u32::from_le_bytes(bytes), u32::from_le_bytes(mask));
            events |= self.write_dword((address >> 2) as usize, value, mask);
            address = address.saturating_add(4) & !3;
            rest = later;
        }
        events
    }

    /// The state after a reset of the function or of the machine: everything that a guest wrote is gone.
    pub fn reset(&mut self) {
        self.dwords = power_on(&self.config);
    }

    /// Bus Master Enable: whether the function may access guest memory and send messages.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.dword(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// The guest address of BAR 0, or `None` while memory space is disabled.
    #[must_use]
    pub fn bar0(&self) -> Option<u64> {
        let low = self.dword(BAR0_LOW) & !0xf;
        let address = u64::from(self.dword(BAR0_HIGH)) << 32 | u64::from(low);
        (self.dword(COMMAND) & COMMAND_MEMORY_SPACE != 0).then_some(address)
    }

    /// Interrupt Disable: the INTx pin is not to be asserted.
    #[must_use]
    pub fn intx_disabled(&self) -> bool {
        self.dword(COMMAND) & COMMAND_INTX_DISABLE != 0
    }

    /// MSI-X Enable.
    #[must_use]
    pub fn msix_enabled(&self) -> bool {
        self.dword(MSIX) & MSIX_ENABLE != 0
    }

    /// MSI-X Function Mask.
    #[must_use]
    pub fn msix_masked(&self) -> bool {
        self.dword(MSIX) & MSIX_FUNCTION_MASK != 0
    }

    /// Whether the function is in D3hot.
    #[must_use]
    pub fn is_d3hot(&self) -> bool {
        self.dword(PM_CONTROL) & PM_STATE == PM_D3HOT
    }

    /// Sets Interrupt Status, which tells of a pending INTx also while that is disabled.
    pub fn set_interrupt_status(&mut self, pending: bool) {
        if let Some(dword) = self.dwords.get_mut(COMMAND) {
            *dword = if pending { *dword | STATUS_INTERRUPT } else { *dword & !STATUS_INTERRUPT };
        }
    }

    fn dword(&self, index: usize) -> u32 {
        self.dwords.get(index).copied().unwrap_or(0)
    }

    fn write_dword(&mut self, index: usize, value: u32, mask: u32) -> PciEvents {
        let writable = self.writable(index) & mask;
        let clearable = write_1_to_clear(index) & mask & value;
        let Some(dword) = self.dwords.get_mut(index) else { return PciEvents::empty() };
        let old = *dword;
        let new = (old & !writable | value & writable) & !clearable;
        *dword = new;
        match index {
            COMMAND => {
                let mut events = PciEvents::empty();
                let changed = old ^ new;
                events.set(PciEvents::BUS_MASTER, changed & COMMAND_BUS_MASTER != 0);
                events.set(PciEvents::BAR0, changed & COMMAND_MEMORY_SPACE != 0);
                events.set(PciEvents::INTX_DISABLE, changed & COMMAND_INTX_DISABLE != 0);
                events
            }
            BAR0_LOW | BAR0_HIGH if old != new && self.bar0().is_some() => PciEvents::BAR0,
            MSIX if old != new => PciEvents::MSIX,
            PM_CONTROL => self.power_state_written(old, new),
            PCIE_DEVICE_CONTROL if value & mask & DEVICE_CONTROL_FLR != 0 => {
                self.reset();
                PciEvents::FLR
            }
            _ => PciEvents::empty(),
        }
    }

    fn power_state_written(&mut self, old: u32, new: u32) -> PciEvents {
        match (old & PM_STATE, new & PM_STATE) {
            (0, PM_D3HOT) => PciEvents::D3HOT_ENTERED,
            (PM_D3HOT, 0) => {
                self.reset();
                PciEvents::D3HOT_LEFT
            }
            (from, to) if from == to => PciEvents::empty(),
            // D1 and D2 aren't supported: such a write is dropped (PCI Bus Power Management 1.2, 3.2.4).
            _ => {
                if let Some(dword) = self.dwords.get_mut(PM_CONTROL) {
                    *dword = old;
                }
                PciEvents::empty()
            }
        }
    }

    /// The bits of a dword that a guest can write.
    #[expect(clippy::cast_possible_truncation, reason = "the BAR's mask is split into its two dwords")]
    const fn writable(&self, index: usize) -> u32 {
        let bar = !self.config.bar0_bytes.wrapping_sub(1);
        match index {
            // Memory space, bus master, parity error response, SERR#, INTx disable.
            COMMAND => 0x0546,
            // Cache line size.
            3 => 0xff,
            BAR0_LOW => bar as u32 & !0xf,
            BAR0_HIGH => (bar >> 32) as u32,
            // Interrupt line.
            INTERRUPT => 0xff,
            PM_CONTROL => PM_STATE,
            MSIX => MSIX_ENABLE | MSIX_FUNCTION_MASK,
            // Error reporting, relaxed ordering, payload size, no snoop, read request size; bit 15 reads 0.
            PCIE_DEVICE_CONTROL => 0x78ff,
            // ASPM control, read completion boundary, common clock, extended synch.
            PCIE_LINK_CONTROL => 0x00cb,
            // Completion timeout value and disable.
            PCIE_DEVICE_CONTROL_2 => 0x001f,
            // Target link speed.
            PCIE_LINK_CONTROL_2 => 0x000f,
            _ => 0,
        }
    }
}

/// The bits of a dword that a guest clears by writing 1.
const fn write_1_to_clear(index: usize) -> u32 {
    match index {
        // Status: detected parity error, signalled and received errors, master data parity error.
        COMMAND => 0xf900_0000,
        // Device Status: the errors detected.
        PCIE_DEVICE_CONTROL => 0x000f_0000,
        _ => 0,
    }
}

/// The dwords after power-on.
const fn power_on(config: &PciConfig) -> [u32; DWORDS] {
    let vector_count_z = config.vectors.saturating_sub(1) as u32 & 0x7ff;
    [
        (config.device_id as u32) << 16 | config.vendor_id as u32,
        // Status: capabilities list.
        0x0010_0000,
        // Class code: mass storage, non-volatile memory, NVMe I/O controller.
        0x0108_0200 | config.revision_id as u32,
        0,
        // 10h: BAR 0 to BAR 5.
        BAR_TYPE,
        0,
        0,
        0,
        0,
        0,
        // 28h: CardBus CIS pointer.
        0,
        (config.subsystem_id as u32) << 16 | config.subsystem_vendor_id as u32,
        // 30h: expansion ROM.
        0,
        // Capabilities pointer.
        0x40,
        0,
        // 3Ch: interrupt pin INTA.
        0x0000_0100,
        // 40h: Power Management, version 3 (1.2 of the specification), next 50h.
        0x0003_5001,
        0,
        0,
        0,
        // 50h: MSI-X, next 60h; table and pending bits in BAR 0.
        vector_count_z << 16 | 0x6011,
        MSIX_TABLE_OFFSET,
        MSIX_PBA_OFFSET,
        0,
        // 60h: PCI Express, capability version 2, endpoint, last.
        0x0002_0010,
        // Device Capabilities: role-based error reporting, Function Level Reset, 128-byte payload.
        1 << 28 | 1 << 15,
        // Device Control: relaxed ordering, no snoop, 512-byte read requests.
        0x2810,
        // Link Capabilities: four lanes at 8 GT/s, ASPM optionality.
        1 << 22 | 4 << 4 | 3,
        // Link Status: the same.
        (4 << 4 | 3) << 16,
        0,
        0,
        0,
        0,
        // 84h: Device Capabilities 2: completion timeout can be disabled.
        1 << 4,
        0,
        // 8Ch: Link Capabilities 2: 2.5, 5 and 8 GT/s.
        0b1110,
        // Link Control 2: target 8 GT/s.
        3,
        0,
        0,
        0,
    ]
}

#[cfg(test)]
mod tests;
