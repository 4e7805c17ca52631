//! Nothing that a module says is done before it has passed here.
//!
//! What is checked is what could reach beyond the tenant's own guest: ranges of the medium, the transfer size, tags
//! and vectors, the order of requests and answers, and that a reset or the end of a namespace is only said when
//! the host holds no command of theirs. Guest memory needs no check of its own: every address is looked up in the
//! guest's memory by whoever uses it, whatever its origin.

use doorbell_abi::CommandRecord;
use doorbell_core::command::IoCommand;
use doorbell_core::message::{GroupEvent, GroupMessage, GroupReply, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use super::{Fetched, Outstanding, SandboxedGroup, completion};
use crate::error::Fault;

/// Events that may wait for the host; more are dropped, as the core drops them.
const MAX_EVENTS: usize = 64;

/// Ranges of a deallocation.
const MAX_RANGES: u16 = 256;

impl SandboxedGroup {
    /// The commands that the module gave out and the host hasn't taken.
    fn fetched(&self) -> impl Iterator<Item = &CommandRecord> {
        let instance = self.instance.as_ref();
        let places = self.fetched.places.clone();
        places.filter_map(move |index| instance?.layout.commands.at(instance?.memory(), index))
    }

    /// Takes the first of them and checks it. `None`: there is none.
    #[inline]
    pub(super) fn deliver(&mut self) -> Result<Option<IoCommand>, Fault> {
        let Some(instance) = &self.instance else { return Ok(None) };
        let linear = instance.memory();
        for index in self.fetched.places.by_ref() {
            let record: Option<&CommandRecord> = instance.layout.commands.at(linear, index);
            let record = record.ok_or(Fault::Interface("no command record"))?;
            let nsid = record.nsid.get();
            let namespace = self.namespaces.get((nsid as usize).wrapping_sub(1)).copied().flatten();
            if let Err(reason) = check_command(record, namespace, self.shared.config.controller.mdts_bytes) {
                // With the shape that it was fetched under it may have been right.
                if self.fetched.shapes == self.shapes {
                    return Err(Fault::Interface(reason));
                }
                self.ended.push(completion(record.tag.get(), Status::LBA_OUT_OF_RANGE.dnr()));
                continue;
            }
            let command = record.decode(namespace).ok_or(Fault::Interface("a command that means nothing"))?;
            let tag = command.tag;
            let slots = instance.layout.command_slots.min(self.shared.config.command_slots.into());
            if u32::from(tag.slot) >= slots {
                return Err(Fault::Interface("a tag beyond the table"));
            }
            // Until the module is told of its end a command has its slot.
            if self.outstanding_count + self.ended.len() >= slots as usize {
                return Err(Fault::Interface("more commands than it has slots for"));
            }
            if !self.queues.submission.contains(&command.sqid) {
                return Err(Fault::Interface("a command of a queue that isn't there"));
            }
            match slot(&mut self.outstanding, tag.slot.into()) {
                Some(place @ None) => *place = Some(Outstanding { generation: tag.generation, nsid }),
                _ => return Err(Fault::Interface("a tag that is in use")),
            }
            self.outstanding_count += 1;
            return Ok(Some(command));
        }
        Ok(None)
    }

    /// Ends what the module gave out and the host hasn't taken.
    pub(super) fn refuse_fetched(&mut self, status: Status) {
        let tags: Vec<u64> = self.fetched().map(|record| record.tag.get()).collect();
        self.ended.extend(tags.into_iter().map(|tag| completion(tag, status)));
        self.fetched = Fetched::default();
    }

    /// A vector that a completion queue of this group has.
    #[inline]
    pub(super) fn check_interrupt(&self, vector: u32) -> Result<u16, Fault> {
        let mut vectors = self.queues.completion.iter().filter_map(|&(_, vector, ..)| vector);
        vectors
            .find(|&known| u32::from(known) == vector)
            .ok_or(Fault::Interface("an interrupt that no queue has"))
    }

    /// A command that the module wants cancelled, if the host has it.
    pub(super) fn cancel(&mut self, tag: u64) {
        let tag = Tag::from_u64(tag);
        let place = self.outstanding.get(usize::from(tag.slot)).copied().flatten();
        if place.is_some_and(|command| command.generation == tag.generation) {
            self.cancels.push_back(tag);
        }
    }

    /// Tells the controller that the group can't go on, unless the host hasn't passed on yet that it was told so.
    pub(super) fn note_fatal(&mut self, qid: u16) {
        let is_fatal =
            |message: &GroupMessage| matches!(message, GroupMessage::Event(GroupEvent::Fatal { .. }));
        if !self.messages.iter().any(is_fatal) {
            self.messages.push_back(GroupMessage::Event(GroupEvent::Fatal { qid }));
        }
    }

    /// A message to the controller: an answer must belong to the request under way.
    pub(super) fn check_message(&mut self, message: GroupMessage) -> Result<(), Fault> {
        let reply = match message {
            GroupMessage::Event(event) => {
                if let GroupEvent::Fatal { qid } = event {
                    // It may have given its shadow doorbells up; if not, it loads them by itself from now on.
                    self.doorbell_buffer = None;
                    self.note_fatal(qid);
                    return Ok(());
                }
                if self.messages.len() < MAX_EVENTS {
                    self.messages.push_back(message);
                }
                return Ok(());
            }
            GroupMessage::Reply(reply) => reply,
        };
        let request = self.request.take().ok_or(Fault::Interface("an answer to nothing"))?;
        let fits = match request {
            GroupRequest::Reset => reply == GroupReply::ResetDone,
            GroupRequest::Abort { .. } => matches!(reply, GroupReply::Abort { .. }),
            GroupRequest::ReportStatistics => matches!(reply, GroupReply::Statistics(_)),
            _ => matches!(reply, GroupReply::Done | GroupReply::Failed(_)),
        };
        if !fits {
            return Err(Fault::Interface("an answer to another request"));
        }
        match request {
            GroupRequest::Reset if self.outstanding_count > 0 => {
                return Err(Fault::Interface("a reset that is over before its commands are"));
            }
            GroupRequest::RemoveNamespace { nsid } if reply == GroupReply::Done && self.uses(nsid) => {
                return Err(Fault::Interface("a namespace that is gone before its commands are"));
            }
            _ => {}
        }
        self.note_reply(&request, &reply);
        self.messages.push_back(message);
        Ok(())
    }

    /// Whether a command that the host has, or may still take, concerns a namespace.
    fn uses(&self, nsid: u32) -> bool {
        let concerns = |other: u32| other == nsid || other == 0;
        self.outstanding.iter().flatten().any(|command| concerns(command.nsid))
            || self.fetched().any(|record| concerns(record.nsid.get()))
    }

    /// A reset must end when there is nothing left that it could wait for.
    pub(super) fn check_reset(&self) -> Result<(), Fault> {
        let waits = self.request == Some(GroupRequest::Reset);
        if waits && self.outstanding_count == 0 && self.ended.is_empty() {
            return Err(Fault::Interface("a reset that doesn't end"));
        }
        Ok(())
    }
}

/// The place of a slot in a table that grows with the slots that are used: a module takes low ones first.
#[inline]
pub(super) fn slot(table: &mut Vec<Option<Outstanding>>, index: usize) -> Option<&mut Option<Outstanding>> {
    if index >= table.len() {
        table.resize(index + 1, None);
    }
    table.get_mut(index)
}

/// Whether a command may be carried out as it is. `namespace` is the one that it names.
#[inline]
fn check_command(
    record: &CommandRecord,
    namespace: Option<Namespace>,
    mdts_bytes: u32,
) -> Result<(), &'static str> {
    if record.is_flush_all() {
        return if record.nsid.get() == 0 { Ok(()) } else { Err("a flush of all with a namespace") };
    }
    let Some(namespace) = namespace else { return Err("a namespace that isn't there") };
    if namespace.read_only && record.changes_medium() {
        return Err("a write to a read-only namespace");
    }
    let (offset_bytes, len_bytes) = (record.offset_bytes.get(), record.len_bytes.get());
    if record.has_range() {
        let size_bytes = namespace.size_blocks.saturating_mul(u64::from(namespace.block_bytes()));
        let end = offset_bytes.checked_add(len_bytes).ok_or("a range that wraps")?;
        let mask = u64::from(namespace.block_bytes()) - 1;
        if end > size_bytes || len_bytes == 0 || (offset_bytes | len_bytes) & mask != 0 {
            return Err("a range outside of its namespace");
        }
    }
    if record.moves_data() && len_bytes > u64::from(mdts_bytes) {
        return Err("more data than a command may move");
    }
    if record.ranges.get() > MAX_RANGES {
        return Err("more ranges than a command may name");
    }
    Ok(())
}
