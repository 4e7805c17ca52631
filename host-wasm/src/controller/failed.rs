//! What the guest sees of a controller whose tenant has failed: its registers as they were, CSTS.CFS, and a reset
//! that is under way until a fresh instance takes over.
//!
//! Read first: NVM Express Base Specification 2.0, sections 3.1.3 and 3.7.

use doorbell_core::spec::register::{
    ACQ, AQA, AQA_WRITABLE, ASQ, BASE_WRITABLE, CC, CC_WRITABLE, CSTS, ControllerConfiguration,
    ControllerStatus, NSSR, NSSR_RESET,
};

/// Bytes from CAP to the end of ACQ.
pub(super) const REGISTER_BYTES: usize = 0x38;

/// How far a failed tenant is on its way to a fresh start.
#[derive(Debug)]
pub(super) struct Failed {
    /// The guest has reset the controller.
    restart: bool,
    /// Groups that haven't answered the reset yet.
    waiting: Vec<bool>,
}

/// What a register write asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asks {
    pub(super) restart: bool,
    pub(super) flush: bool,
}

impl Failed {
    pub(super) fn new(groups: u16) -> Self {
        Self { restart: false, waiting: vec![true; usize::from(groups)] }
    }

    pub(super) fn ask_restart(&mut self) {
        self.restart = true;
    }

    pub(super) fn is_restart_asked(&self) -> bool {
        self.restart
    }

    pub(super) fn group_answered(&mut self, group: u16) {
        if let Some(waiting) = self.waiting.get_mut(usize::from(group)) {
            *waiting = false;
        }
    }

    pub(super) fn are_groups_quiet(&self) -> bool {
        !self.waiting.contains(&true)
    }
}

/// The registers in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterImage {
    bytes: [u8; REGISTER_BYTES],
    /// The guest has reset the controller since it failed, so that what is configured now is for the fresh one.
    was_reset: bool,
}

impl Default for RegisterImage {
    fn default() -> Self {
        Self { bytes: [0; REGISTER_BYTES], was_reset: false }
    }
}

impl RegisterImage {
    /// The registers as an instance shows them.
    pub(super) fn set(&mut self, bytes: [u8; REGISTER_BYTES]) {
        self.bytes = bytes;
    }

    pub(super) fn read(&self, offset: u32, data: &mut [u8]) {
        for (at, byte) in (offset as usize..).zip(data) {
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// The tenant has failed.
    pub(super) fn fail(&mut self, ready: bool) {
        let status = self.status().with_cfs(true).with_rdy(ready);
        self.set_dword(CSTS, status.into_bits());
        self.was_reset = false;
    }

    /// A reset from outside: all that the guest has configured is forgotten.
    pub(super) fn reset(&mut self) {
        for offset in [CC, AQA, ASQ, ASQ + 4, ACQ, ACQ + 4] {
            self.set_dword(offset, 0);
        }
        self.set_dword(CSTS, self.status().with_shst(0).into_bits());
        self.was_reset = true;
    }

    /// The host has flushed.
    pub(super) fn flushed(&mut self) {
        if self.status().shst() == 1 {
            self.set_dword(CSTS, self.status().with_shst(2).into_bits());
        }
    }

    /// Writes registers, as an enabled controller with CSTS.CFS takes them.
    pub(super) fn write(&mut self, offset: u32, data: &[u8]) -> Asks {
        let mut asks = Asks::default();
        let mut written = self.bytes;
        for (at, byte) in (offset as usize..).zip(data) {
            if let Some(place) = written.get_mut(at) {
                *place = *byte;
            }
        }
        let touches = |register: u32| {
            offset < register + 4 && u64::from(register) < u64::from(offset) + data.len() as u64
        };
        let dword = |at: u32| {
            let bytes = written.get(at as usize..).and_then(|rest| rest.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        for (register, mask) in [
            (AQA, AQA_WRITABLE),
            (ASQ, BASE_WRITABLE as u32),
            (ASQ + 4, (BASE_WRITABLE >> 32) as u32),
            (ACQ, BASE_WRITABLE as u32),
            (ACQ + 4, (BASE_WRITABLE >> 32) as u32),
        ] {
            if touches(register) {
                self.set_dword(register, dword(register) & mask);
            }
        }
        if touches(CC) {
            let old = self.configuration();
            self.set_dword(CC, dword(CC) & CC_WRITABLE);
            let new = self.configuration();
            if old.en() && !new.en() {
                asks.restart = true;
                self.was_reset = true;
            }
            if new.shn() != 0 && old.shn() == 0 && !self.was_reset {
                asks.flush = true;
                self.set_dword(CSTS, self.status().with_shst(1).into_bits());
            }
        }
        if touches(NSSR) && dword(NSSR) == NSSR_RESET {
            self.reset();
            asks.restart = true;
        }
        asks
    }

    /// What the guest has configured since the reset, to be written to a fresh controller: CC last.
    pub(super) fn configured(&self) -> Vec<(u32, Vec<u8>)> {
        let registers = [(AQA, 4), (ASQ, 8), (ACQ, 8), (CC, 4)];
        let bytes =
            |at: u32, len: usize| self.bytes.get(at as usize..at as usize + len).unwrap_or_default().to_vec();
        registers.into_iter().map(|(at, len)| (at, bytes(at, len))).collect()
    }

    fn dword(&self, at: u32) -> u32 {
        let bytes = self.bytes.get(at as usize..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn set_dword(&mut self, at: u32, value: u32) {
        if let Some(place) = self.bytes.get_mut(at as usize..at as usize + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn status(&self) -> ControllerStatus {
        ControllerStatus::from_bits(self.dword(CSTS))
    }

    fn configuration(&self) -> ControllerConfiguration {
        ControllerConfiguration::from_bits(self.dword(CC))
    }
}
