//! Instructions a command.

use doorbell_core::spec::nvm::NvmOpcode;

use super::admin::succeeded;
use super::buffer::{Buffer, Pool};
use super::host::{Bench, Failure, Host, LISTS, same};
use super::io::on_blocks;
use super::ram::PAGE;
use crate::media::Media;

/// Commands that are measured.
const MEASURED: u64 = 1024;

/// Instructions a 4 KiB read, from the turn that finds its doorbell to its completion queue entry and its
/// interrupt, without moving the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instructions {
    /// One command at a time, doorbell register.
    pub alone: u64,
    /// One command at a time, shadow doorbells.
    pub alone_by_shadow: u64,
    /// As many as fit at a time, doorbell register.
    pub in_batches: u64,
}

impl<B: Bench, M: Media, const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize>
    Host<'_, B, M, QUEUES, COMMANDS, ERRORS>
{
    /// Measures reads of 4 KiB from a medium of 4096-byte blocks.
    ///
    /// # Errors
    /// The first thing that isn't as it should be.
    pub fn measure(&mut self) -> Result<Instructions, Failure> {
        same("the block size", self.media.block_bytes(), 4096_u32)?;
        self.endpoint.set_drops_data(true);
        self.bring_up(false)?;
        let alone = self.measure_reads(1)?;
        let in_batches = self.measure_reads(COMMANDS.min(8) as u64)?;
        self.shut_down()?;
        self.bring_up(true)?;
        let alone_by_shadow = self.measure_reads(1)?;
        self.shut_down()?;
        Ok(Instructions { alone, alone_by_shadow, in_batches })
    }

    fn measure_reads(&mut self, batch: u64) -> Result<u64, Failure> {
        let pool = Pool { data: self.data(), pages: 1, list: LISTS };
        let buffer = Buffer::prp(self.ram(), pool, 0, PAGE as u32);
        let mut sum = 0;
        for turn in 0..MEASURED / batch {
            // The last batch's head doorbell.
            self.turn();
            for _ in 0..batch {
                let _ = self.put_io(0, on_blocks(NvmOpcode::READ, turn % 16, 1, &buffer));
            }
            self.ring_io(0)?;
            let before = self.bench.instructions();
            self.turn();
            sum += self.bench.instructions() - before;
            for _ in 0..batch {
                let ram = self.ram();
                let done = self.io.first_mut().and_then(|pair| pair.take(ram));
                let done =
                    done.ok_or(Failure { what: "completions in one turn", found: 0, wanted: batch })?;
                succeeded("Read", &done)?;
            }
            self.ring_head(0)?;
        }
        Ok(sum / (MEASURED / batch * batch))
    }
}
