//! One turn: a call of `group_poll`, and what comes out of any call of a group.

use doorbell_abi::{CommandRecord, MessageRecord, NEVER, TurnInput, TurnRecord, WriteKind, WriteRecord};
use doorbell_core::doorbell::Registers;
use doorbell_core::memory::DmaMemory;
use doorbell_core::message::{GroupEvent, GroupMessage};
use zerocopy::little_endian::{U32, U64};

use super::{Fetched, SandboxedGroup};
use crate::error::Fault;
use crate::mirror::WriteBack;

impl SandboxedGroup {
    /// Copies doorbells that have moved into the module; whether a turn has anything to do.
    #[inline]
    pub(super) fn wants_turn(&mut self, memory: &dyn DmaMemory, registers: &Registers) -> bool {
        let Some(instance) = &mut self.instance else { return false };
        let mut changed = false;
        let shadow = match self.doorbell_buffer {
            None => NEVER,
            Some(buffer) => match instance.stage_shadows(memory, buffer.shadow) {
                Some(moved) => {
                    changed = moved;
                    buffer.shadow
                }
                None => {
                    // Gone: the module finds that out by itself, and says so.
                    self.doorbell_buffer = None;
                    changed = true;
                    NEVER
                }
            },
        };
        changed |= instance.stage_registers(registers);
        if !changed && !self.more && self.ended.is_empty() {
            return false;
        }
        let input = instance.layout.input;
        input.set(instance.memory_mut(), 0, &TurnInput { shadow: shadow.into() });
        true
    }

    /// Calls `group_poll`: ends what has ended, fetches up to `most_commands`, and takes all that comes out of it.
    /// `None`: nothing but a decision about interrupts.
    #[inline]
    pub(super) fn turn(
        &mut self,
        memory: &dyn DmaMemory,
        registers: &Registers,
        most_commands: Option<u32>,
        now_ns: u64,
    ) {
        let Some(instance) = &mut self.instance else { return };
        let mut told = 0;
        if most_commands.is_some() {
            told = self.ended.len().min(instance.layout.completions.count);
            let area = instance.layout.completions;
            let linear = instance.memory_mut();
            for (index, record) in self.ended.iter().take(told).enumerate() {
                area.set(linear, index, record);
            }
            self.ended.drain(..told);
        }
        let call = instance.calls.group_poll.clone();
        let most = most_commands.unwrap_or(0);
        let result = instance.call_with(memory, registers, &call, (told as u32, most, now_ns));
        if result.is_ok() {
            instance.write_back(registers, WriteBack::Exchange);
            if self.doorbell_buffer.is_some() {
                instance.shadows_used();
            }
        }
        if let Err(fault) = result.and_then(|()| self.take_turn(memory, most > 0)) {
            self.fail(fault);
        }
    }

    /// Takes what a call has left. `fetched`: it may have left commands.
    pub(super) fn take_turn(&mut self, memory: &dyn DmaMemory, fetched: bool) -> Result<(), Fault> {
        let Some(instance) = &mut self.instance else { return Ok(()) };
        let layout = instance.layout;
        let turn: TurnRecord =
            layout.turn.get(instance.memory(), 0).ok_or(Fault::Interface("no turn record"))?;
        let count = |count: U32, most: usize| {
            let count = count.get() as usize;
            if count > most { Err(Fault::Interface("a list is longer than its place")) } else { Ok(count) }
        };
        // Entries that are posted belong to commands that have ended or never begun, so their data is there.
        let writes = count(turn.writes, layout.writes.count)?;
        instance.spend(writes as u64 * 16)?;
        for index in 0..writes {
            let record: WriteRecord =
                layout.writes.get(instance.memory(), index).ok_or(Fault::Interface("no write record"))?;
            let kind = record.write_kind().ok_or(Fault::Interface("a write that means nothing"))?;
            let (address, dwords) = (record.address.get(), record.dwords.map(U32::get));
            let written = match kind {
                // With release ordering before the dword with the Phase Tag.
                WriteKind::Entry => memory.publish(address, dwords),
                WriteKind::Dword => memory.store_u32(address, dwords[0]),
            };
            if written.is_err() {
                // A queue whose memory is gone: the core would say so itself if it had written it itself.
                let qid =
                    self.queues.completion.iter().find(|(_, _, base, len)| {
                        address.checked_sub(*base).is_some_and(|offset| offset < *len)
                    });
                let qid = qid.map_or(0, |(qid, ..)| *qid);
                self.messages.push_back(GroupMessage::Event(GroupEvent::Fatal { qid }));
                if kind == WriteKind::Dword {
                    self.doorbell_buffer = None;
                }
            }
        }
        let commands = count(turn.commands, if fetched { layout.commands.count } else { 0 })?;
        for index in 0..commands {
            let record: CommandRecord =
                layout.commands.get(instance.memory(), index).ok_or(Fault::Interface("no command record"))?;
            self.fetched.push_back(Fetched { record, shapes: self.shapes });
        }
        let dma_bytes = instance.take_dma_bytes();
        self.shared.count_poll(commands as u64, dma_bytes);
        let flags = turn.flags.get();
        self.more = flags & TurnRecord::MORE != 0;
        self.wants_interrupt = flags & TurnRecord::WANTS_INTERRUPT != 0;
        self.resetting = flags & TurnRecord::RESETTING != 0;
        self.deadline_ns = Some(turn.deadline_ns.get()).filter(|&deadline_ns| deadline_ns != NEVER);
        self.dropped_events = turn.dropped_events.get();
        let (messages, interrupts, cancels) = (
            count(turn.messages, layout.messages.count)?,
            count(turn.interrupts, layout.interrupts.count)?,
            count(turn.cancels, layout.cancels.count)?,
        );
        for index in 0..interrupts {
            let Some(instance) = &self.instance else { break };
            let vector: U32 =
                layout.interrupts.get(instance.memory(), index).ok_or(Fault::Interface("no vector"))?;
            let vector = self.check_interrupt(vector.get())?;
            // However many entries a queue got since the host looked last, it is one interrupt.
            if !self.interrupts.contains(&vector) {
                self.interrupts.push_back(vector);
            }
        }
        for index in 0..cancels {
            let Some(instance) = &self.instance else { break };
            let tag: U64 = layout.cancels.get(instance.memory(), index).ok_or(Fault::Interface("no tag"))?;
            self.cancel(tag.get());
        }
        for index in 0..messages {
            let Some(instance) = &self.instance else { break };
            let record: MessageRecord =
                layout.messages.get(instance.memory(), index).ok_or(Fault::Interface("no message"))?;
            let message = record.decode_message().ok_or(Fault::Interface("a message that means nothing"))?;
            self.check_message(message)?;
        }
        self.check_reset()
    }
}
