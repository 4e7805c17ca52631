//! One turn: a call of `group_poll`, and what comes out of any call of a group.

use doorbell_abi::{MessageRecord, NEVER, NO_INTERRUPTS, TurnInput, TurnRecord, WriteKind, WriteRecord};
use doorbell_core::doorbell::Registers;
use doorbell_core::memory::DmaMemory;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::{Fetched, SandboxedGroup, early_posts};
use crate::error::Fault;
use crate::instance::Area;
use crate::mirror::{Moved, WriteBack};

/// Which call has left something.
#[derive(Clone, Copy, Debug)]
pub(super) enum After {
    /// `group_poll`: it was told of so many completions, could fetch commands, and decided about interrupts.
    Turn { told: usize, fetches: bool, decides: bool },
    /// Another.
    Other,
}

impl SandboxedGroup {
    /// Whether a turn has anything to do.
    #[inline]
    pub(super) fn wants_turn(&mut self, memory: &dyn DmaMemory, registers: &Registers) -> bool {
        self.look_at_doorbells(memory, registers);
        self.more || !self.ended.is_empty()
    }

    /// Looks at the doorbells, and notes whether they are a reason for a turn.
    #[inline]
    pub(super) fn look_at_doorbells(&mut self, memory: &dyn DmaMemory, registers: &Registers) {
        let Some(instance) = &mut self.instance else { return };
        let mirror = instance.mirror();
        let mut moved = Moved::default();
        self.staged_shadows = NEVER;
        if let Some(buffer) = self.doorbell_buffer {
            match mirror.see_shadows(memory, buffer.shadow) {
                Some(shadows) => {
                    moved = shadows;
                    self.staged_shadows = buffer.shadow;
                }
                None => {
                    // Gone: the module finds that out by itself, and says so.
                    self.doorbell_buffer = None;
                    self.more = true;
                }
            }
        }
        moved = moved.or(mirror.see_registers(registers));
        // A driver moves heads one by one, and as long as nothing waits for room nobody needs to know at once.
        self.more |= moved.tails || moved.heads && !self.has_room;
        if moved.any() {
            self.level = None;
        }
    }

    /// Calls `group_poll`: ends what has ended, fetches up to `most_commands`, and takes all that comes out of it.
    /// `None`: nothing but a decision about interrupts.
    #[inline]
    pub(super) fn turn(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        most_commands: Option<u32>,
        now_ns: u64,
    ) {
        if !self.is_alive() {
            return;
        }
        let Some(instance) = &mut self.instance else { return };
        let (linear, layout, data) = instance.parts();
        data.mirror.store_registers(layout.registers.of(linear));
        data.mirror.store_shadows(layout.shadows.of(linear));
        layout.input.set(linear, 0, &TurnInput { shadow: self.staged_shadows.into() });
        let mut told = 0;
        if most_commands.is_some() {
            told = self.ended.len().min(layout.completions.count);
            let ended = self.ended.get(..told).unwrap_or_default().as_bytes();
            if let Some(list) = layout.completions.of(linear).get_mut(..ended.len()) {
                list.copy_from_slice(ended);
            }
            self.ended.drain(..told);
        }
        let most = most_commands.unwrap_or(0);
        let parameters = (told as u32, most, now_ns);
        let called = instance.call_with(memory, registers, |calls| &calls.group_poll, parameters);
        let taken = called.and_then(|()| {
            self.take_turn(
                memory,
                registers,
                WriteBack::Exchange,
                After::Turn { told, fetches: most > 0, decides: now_ns != NO_INTERRUPTS },
            )
        });
        if let Err(fault) = taken {
            self.fail(fault);
        }
    }

    /// Takes what a call has left.
    #[inline]
    pub(super) fn take_turn(
        &mut self,
        memory: &impl DmaMemory,
        registers: &Registers,
        how: WriteBack,
        after: After,
    ) -> Result<(), Fault> {
        let Some(instance) = &mut self.instance else { return Ok(()) };
        let fetches = matches!(after, After::Turn { fetches: true, .. });
        let (linear, layout, data) = instance.parts();
        data.mirror.write_back(registers, layout.registers.of(linear), how);
        if self.doorbell_buffer.is_some() {
            data.mirror.shadows_used(layout.shadows.of(linear));
        }
        // Field by field: the module has just stored them so, and one wide load would wait for all of its stores.
        let turn: Option<&TurnRecord> = layout.turn.at(linear, 0);
        let turn = turn.ok_or(Fault::Interface("no turn record"))?;
        let writes = count(turn.writes, layout.writes)?;
        let commands = count(turn.commands, if fetches { layout.commands } else { Area::default() })?;
        let messages = count(turn.messages, layout.messages)?;
        let interrupts = count(turn.interrupts, layout.interrupts)?;
        let cancels = count(turn.cancels, layout.cancels)?;
        // Entries that are posted belong to commands that have ended or never begun, so their data is there.
        data.spend(writes as u64 * 16)?;
        let mut lost = None;
        for record in layout.writes.list::<WriteRecord>(linear, writes) {
            let kind = record.write_kind().ok_or(Fault::Interface("a write that means nothing"))?;
            let (address, dwords) = (record.address.get(), record.dwords.map(U32::get));
            let written = match kind {
                // With release ordering before the dword with the Phase Tag.
                WriteKind::Entry => memory.publish(address, dwords),
                WriteKind::Dword => memory.store_u32(address, dwords[0]),
            };
            if written.is_err() {
                // A queue whose memory is gone: the core would say so itself if it had written it itself.
                lost = Some(self.queues.completion_at(address));
                if kind == WriteKind::Dword {
                    self.doorbell_buffer = None;
                }
            }
        }
        if let After::Turn { told, fetches: true, .. } = after {
            self.fetched = Fetched { places: 0..commands, shapes: self.shapes };
            self.post_at = early_posts(commands, told);
        }
        let (dma_bytes, restaged) = data.take_moved();
        self.shared.count_poll(commands as u64, dma_bytes);
        self.level = None;
        let flags = turn.flags.get();
        // Only a call that looks for commands can say that there are no more.
        let more = restaged || flags & TurnRecord::MORE != 0;
        self.more = more || self.more && !fetches;
        // What has ended has left a slot to a command that may wait for one.
        self.more |= !self.has_room && matches!(after, After::Turn { told: 1.., fetches: false, .. });
        if fetches {
            self.has_room = flags & TurnRecord::HAS_ROOM != 0;
        }
        self.wants_interrupt = flags & TurnRecord::WANTS_INTERRUPT != 0;
        self.resetting = flags & TurnRecord::RESETTING != 0;
        // Another call leaves what was decided before as it is, unless there are new entries to decide about.
        if writes > 0 || matches!(after, After::Turn { decides: true, .. }) {
            self.deadline_ns = Some(turn.deadline_ns.get()).filter(|&deadline_ns| deadline_ns != NEVER);
        }
        self.dropped_events = turn.dropped_events.get();
        if let Some(qid) = lost {
            self.note_fatal(qid);
        }
        if messages | interrupts | cancels != 0 {
            self.take_lists(messages, interrupts, cancels)?;
        }
        self.check_reset()
    }

    /// Takes what isn't in every turn.
    fn take_lists(&mut self, messages: usize, interrupts: usize, cancels: usize) -> Result<(), Fault> {
        for index in 0..interrupts {
            let Some(instance) = &self.instance else { break };
            let vector: U32 = instance
                .layout
                .interrupts
                .get(instance.memory(), index)
                .ok_or(Fault::Interface("no vector"))?;
            let vector = self.check_interrupt(vector.get())?;
            // However many entries a queue got since the host looked last, it is one interrupt.
            if !self.interrupts.contains(&vector) {
                self.interrupts.push_back(vector);
            }
        }
        for index in 0..cancels {
            let Some(instance) = &self.instance else { break };
            let tag: U64 =
                instance.layout.cancels.get(instance.memory(), index).ok_or(Fault::Interface("no tag"))?;
            self.cancel(tag.get());
        }
        for index in 0..messages {
            let Some(instance) = &self.instance else { break };
            let record: MessageRecord = instance
                .layout
                .messages
                .get(instance.memory(), index)
                .ok_or(Fault::Interface("no message"))?;
            let message = record.decode_message().ok_or(Fault::Interface("a message that means nothing"))?;
            self.check_message(message)?;
        }
        Ok(())
    }
}

/// What the module says that a list holds.
#[inline]
fn count(count: U32, list: Area) -> Result<usize, Fault> {
    let count = count.get() as usize;
    if count > list.count { Err(Fault::Interface("a list is longer than its place")) } else { Ok(count) }
}
