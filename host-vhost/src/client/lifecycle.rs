//! Bringing a controller up, down and up again, by its registers.

use std::time::{Duration, Instant};

use super::nvme::{ADMIN_DEPTH, DriverError, Nvme, TIMEOUT, admin_queue, take_queue};
use super::queue::QueueLayout;

const REG_CSTS: u64 = 0x1c;
const REG_AQA: u64 = 0x24;
const REG_ASQ: u64 = 0x28;
const REG_ACQ: u64 = 0x30;
const REG_CC: u64 = 0x14;
const CSTS_RDY: u32 = 1;
const CSTS_CFS: u32 = 2;
const CSTS_SHST: u32 = 3 << 2;
const CSTS_SHST_COMPLETE: u32 = 2 << 2;
const CC_SHN: u32 = 3 << 14;
const CC_SHN_NORMAL: u32 = 1 << 14;

impl Nvme {
    /// CSTS.RDY.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn is_ready(&mut self) -> Result<bool, DriverError> {
        Ok(self.read_u32(REG_CSTS)? & CSTS_RDY != 0)
    }

    /// Disables the controller (CC.EN 0) and waits until it is.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn disable(&mut self) -> Result<(), DriverError> {
        self.write_u32(REG_CC, 0)?;
        self.await_ready(false)
    }

    /// Resets the controller (CC.EN 0) and brings it up again. Queue pairs, shadow doorbells and allocated memory
    /// of before are void.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn restart(&mut self) -> Result<(), DriverError> {
        self.disable()?;
        self.unused = 0;
        self.next_qid = 1;
        self.shadow = None;
        let layout = take_queue(&self.memory, &mut self.unused, ADMIN_DEPTH, 1)?;
        self.admin = admin_queue(&self.client, &self.memory, layout);
        self.enable(layout)
    }

    /// Normal shutdown (CC.SHN 01b), until it is complete (CSTS.SHST 10b).
    ///
    /// # Errors
    /// See [`DriverError`].
    pub fn shut_down(&mut self) -> Result<(), DriverError> {
        let configuration = self.read_u32(REG_CC)?;
        self.write_u32(REG_CC, configuration & !CC_SHN | CC_SHN_NORMAL)?;
        let deadline = Instant::now() + TIMEOUT;
        while self.read_u32(REG_CSTS)? & CSTS_SHST != CSTS_SHST_COMPLETE {
            if Instant::now() > deadline {
                return Err(DriverError::TimedOut { what: "CSTS.SHST" });
            }
            self.client.serve()?;
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    pub(super) fn enable(&mut self, layout: QueueLayout) -> Result<(), DriverError> {
        self.disable()?;
        let depth = ADMIN_DEPTH - 1;
        self.write_u32(REG_AQA, depth << 16 | depth)?;
        let base = self.memory.iova();
        self.client.region_write(0, REG_ASQ, &(base + layout.sq).to_le_bytes())?;
        self.client.region_write(0, REG_ACQ, &(base + layout.cq).to_le_bytes())?;
        // Entries of 64 and 16 bytes, NVM command set, pages of 4 KiB.
        self.write_u32(REG_CC, 4 << 20 | 6 << 16 | 1)?;
        self.await_ready(true)
    }

    fn await_ready(&mut self, ready: bool) -> Result<(), DriverError> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let csts = self.read_u32(REG_CSTS)?;
            if csts & CSTS_CFS != 0 && ready {
                return Err(DriverError::Fatal);
            }
            if (csts & CSTS_RDY != 0) == ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(DriverError::TimedOut { what: "CSTS.RDY" });
            }
            self.client.serve()?;
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
