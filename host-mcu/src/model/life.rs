//! Resets and shutdown.

use doorbell_core::controller::ResetKind;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::register::{CC, CSTS};

use super::buffer::Buffer;
use super::host::{Bench, Failure, Host, same};
use super::io::on_blocks;
use crate::media::Media;

/// Turns in which a device that was reset could still do something wrong.
const AFTERMATH: u32 = 100;

/// CC: entry sizes, enabled, SHN 01b (normal shutdown).
const CC_SHUTDOWN: u64 = 4 << 20 | 6 << 16 | 1 << 14 | 1;

impl<B: Bench, M: Media, const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize>
    Host<'_, B, M, QUEUES, COMMANDS, ERRORS>
{
    /// CC.EN goes to 0 with commands in flight: RDY falls, and from then on memory is left alone.
    pub(super) fn reset_with_commands_in_flight(&mut self) -> Result<(), Failure> {
        self.put_commands_in_flight()?;
        self.write_register(CC, 0, 4)?;
        self.wait_ready(0)?;
        self.nothing_is_touched()?;
        self.report.resets += 1;
        Ok(())
    }

    /// Function Level Reset with commands in flight.
    pub(super) fn function_level_reset(&mut self) -> Result<(), Failure> {
        self.put_commands_in_flight()?;
        let before = self.endpoint.resets;
        self.send_reset(ResetKind::Flr)?;
        self.until("the end of the reset", |host| (host.endpoint.resets == before + 1).then_some(()))?;
        same("CC after the reset", self.read_register(CC, 4)?, 0_u64)?;
        same("CSTS after the reset", self.read_register(CSTS, 4)?, 0_u64)?;
        self.nothing_is_touched()?;
        self.report.resets += 1;
        Ok(())
    }

    /// A normal shutdown, and the reset that has to follow it.
    pub(super) fn shut_down(&mut self) -> Result<(), Failure> {
        self.write_register(CC, CC_SHUTDOWN, 4)?;
        self.until("CSTS.SHST: complete", |host| match host.read_register(CSTS, 4) {
            Ok(csts) if csts >> 2 & 3 == 2 => Some(()),
            _ => None,
        })?;
        self.nothing_is_touched()?;
        self.write_register(CC, 0, 4)?;
        self.wait_ready(0)?;
        self.report.resets += 1;
        Ok(())
    }

    fn put_commands_in_flight(&mut self) -> Result<(), Failure> {
        self.media.shut();
        let buffer = Buffer::default();
        let many = COMMANDS.min(2);
        for _ in 0..many {
            let read = on_blocks(NvmOpcode::READ, 0, 1, &buffer);
            let _ = self.put_io(QUEUES - 1, read);
        }
        self.ring_io(QUEUES - 1)?;
        self.until("the commands are in flight", |host| (host.in_flight() == many).then_some(()))
    }

    fn nothing_is_touched(&mut self) -> Result<(), Failure> {
        self.endpoint.seal();
        self.media.open();
        for _ in 0..AFTERMATH {
            self.turn();
        }
        same("accesses to memory that was given back", self.endpoint.unseal(), 0_u32)?;
        same("commands left over", self.in_flight() as u64, 0_u64)
    }
}
