//! The registers below the doorbells, 0 to FFFh: reads, writes of any width, and what a write sets off.
//!
//! Read first: NVM Express Base Specification 2.0, section 3.1.3; PCIe Transport Specification 1.0,
//! section 3.1.

use super::config::ControllerConfig;
use super::{Controller, ResetKind};
use crate::spec::register::{
    ACQ, AQA, AQA_WRITABLE, ASQ, BASE_WRITABLE, CC, CC_WRITABLE, CSTS, Capabilities, ControllerConfiguration,
    ControllerStatus, INTMC, INTMS, NSSR, NSSR_RESET,
};

/// VS and Identify Controller's VER: 1.4.0.
pub(super) const VERSION: u32 = 0x0001_0400;

/// Dwords from CAP to the end of ACQ.
const DWORDS: usize = 14;

/// What the registers hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterFile {
    pub(super) capabilities: Capabilities,
    /// Interrupt mask: what INTMS and INTMC read as.
    pub(super) interrupt_mask: u32,
    pub(super) configuration: ControllerConfiguration,
    pub(super) status: ControllerStatus,
    pub(super) aqa: u32,
    pub(super) asq: u64,
    pub(super) acq: u64,
}

impl RegisterFile {
    /// Every register 0.
    pub(super) const fn blank() -> Self {
        Self {
            capabilities: Capabilities::new(),
            interrupt_mask: 0,
            configuration: ControllerConfiguration::new(),
            status: ControllerStatus::new(),
            aqa: 0,
            asq: 0,
            acq: 0,
        }
    }

    pub(super) const fn new(config: &ControllerConfig) -> Self {
        Self { capabilities: capabilities(config), ..Self::blank() }
    }

    /// The byte image that every read is cut out of. Reserved registers, and those of features that are absent
    /// (CMB, boot partitions, PMR), are 0.
    fn image(&self) -> [u32; DWORDS] {
        let [cap_low, cap_high] = halves(self.capabilities.into_bits());
        let [asq_low, asq_high] = halves(self.asq);
        let [acq_low, acq_high] = halves(self.acq);
        let mask = self.interrupt_mask;
        let cc = self.configuration.into_bits();
        let csts = self.status.into_bits();
        [
            cap_low, cap_high, VERSION, mask, mask, cc, 0, csts, 0, self.aqa, asq_low, asq_high, acq_low,
            acq_high,
        ]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "MQES is at most 65,535 and shifts are below 28")]
const fn capabilities(config: &ControllerConfig) -> Capabilities {
    Capabilities::new()
        .with_mqes_z(config.max_queue_entries.saturating_sub(1) as u16)
        .with_cqr(true)
        .with_to(config.timeout_500ms)
        .with_nssrs(true)
        .with_css(1)
        .with_mpsmin(config.page_shift_min.saturating_sub(12) & 0xf)
        .with_mpsmax(config.page_shift_max.saturating_sub(12) & 0xf)
}

#[expect(clippy::cast_possible_truncation, reason = "a register is split into its two dwords")]
const fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// `old` with the bytes of `mask` replaced by those of `new`.
const fn merge(old: u32, new: u32, mask: u32) -> u32 {
    old & !mask | new & mask
}

fn merge_half(old: u64, high: bool, new: u32, mask: u32) -> u64 {
    let shift = if high { 32 } else { 0 };
    old & !(u64::from(mask) << shift) | u64::from(new & mask) << shift
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// Reads registers: fills `data` from `offset` on. Any width and alignment; what isn't a register is 0.
    pub fn read_register(&self, offset: u32, data: &mut [u8]) {
        let image = self.registers.image();
        let mut address = offset;
        for byte in data {
            let dword = image.get((address >> 2) as usize).copied().unwrap_or(0);
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

    /// Writes registers from `offset` on: an access of 1 to 8 bytes of any alignment, longer ones likewise.
    ///
    /// A 64-bit register takes one access or two halves in either order. The host calls
    /// [`Controller::poll`] afterwards. Offsets from 1000h on are doorbells and not handled here (see
    /// [`Controller::handle_doorbell_write`]).
    pub fn write_register(&mut self, offset: u32, data: &[u8]) {
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
            self.write_dword(address & !3, u32::from_le_bytes(bytes), u32::from_le_bytes(mask));
            address = address.saturating_add(4) & !3;
            rest = later;
        }
    }

    fn write_dword(&mut self, offset: u32, value: u32, mask: u32) {
        const ASQ_HIGH: u32 = ASQ + 4;
        const ACQ_HIGH: u32 = ACQ + 4;
        let registers = &mut self.registers;
        match offset {
            INTMS => registers.interrupt_mask |= value & mask,
            INTMC => registers.interrupt_mask &= !(value & mask),
            CC => {
                let old = registers.configuration;
                let new = merge(old.into_bits(), value, mask) & CC_WRITABLE;
                registers.configuration = ControllerConfiguration::from_bits(new);
                self.configuration_changed(old);
            }
            // NSSRO is the one bit that a guest can clear, by writing 1.
            CSTS if ControllerStatus::from_bits(value & mask).nssro() => registers.status.set_nssro(false),
            NSSR if value & mask == NSSR_RESET => self.reset(ResetKind::Nssr),
            // These three read back in every state; what is written while enabled counts at the next enable.
            AQA => registers.aqa = merge(registers.aqa, value, mask) & AQA_WRITABLE,
            ASQ | ASQ_HIGH => {
                registers.asq = merge_half(registers.asq, offset == ASQ_HIGH, value, mask) & BASE_WRITABLE;
            }
            ACQ | ACQ_HIGH => {
                registers.acq = merge_half(registers.acq, offset == ACQ_HIGH, value, mask) & BASE_WRITABLE;
            }
            _ => {}
        }
    }
}
