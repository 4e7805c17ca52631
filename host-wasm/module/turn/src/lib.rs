//! A turn of the queue group: the export that runs for every batch of commands, in a package of its own so that it is
//! optimised for speed and the rest of the module for size. And what both share: memory and tables.
#![no_std]
#![warn(missing_docs)]

pub mod memory;
pub mod tables;

use doorbell_abi::{CommandRecord, MessageRecord, NEVER, NO_INTERRUPTS, TurnRecord};
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;
use zerocopy::little_endian::U32;

use crate::memory::Guest;
use crate::tables::{group, registers, shared};

/// Records of the list of writes that one call of the core's `poll_command` may add: the completions of what it
/// refuses and an EventIdx for each doorbell.
const WRITES_PER_COMMAND: u32 = 33 + 2 * 64;

/// Room of the list of writes that is left when commands are still fetched.
const WRITE_ROOM: u32 = 512 - WRITES_PER_COMMAND;

/// Entries that the next `group_poll` reads ahead.
static mut BATCH: u32 = 1;

/// Ends commands, then fetches others, then looks for interrupts, unless `now_ns` is all ones.
#[unsafe(no_mangle)]
pub extern "C" fn group_poll(completions: u32, max_commands: u32, now_ns: u64) {
    // SAFETY: a static that only this function uses.
    let batch = unsafe { BATCH };
    let guest = Guest::staged(batch);
    let group = group();
    // SAFETY: a static; this borrow ends before the list is used otherwise.
    let ended = unsafe { &(*shared()).completions };
    for record in ended.iter().take(completions as usize) {
        let _ = group.complete(&guest, Tag::from_u64(record.tag.get()), Status(record.status.get()));
    }
    let posted = guest.entries();
    let mut commands = 0;
    // SAFETY: a static; this borrow ends before the list is used otherwise.
    let list = unsafe { &mut (*shared()).commands };
    for place in list.iter_mut().take(max_commands as usize) {
        if guest.writes() > WRITE_ROOM {
            break;
        }
        let Some(command) = group.poll_command(&guest, registers()) else { break };
        *place = CommandRecord::encode(&command);
        commands += 1;
    }
    let fetched = guest.fetched();
    if fetched > 0 {
        // SAFETY: as above.
        unsafe { BATCH = fetched.min(64) };
    }
    // Where a command was refused, or there was no room for more, the core has given up early.
    let more = max_commands > 0
        && (commands == max_commands || guest.entries() != posted || guest.writes() > WRITE_ROOM);
    let mut flags = if more { TurnRecord::MORE } else { 0 };
    if !more && !group.has_waiting() {
        flags |= TurnRecord::HAS_ROOM;
    }
    leave(commands, guest.writes(), flags, now_ns);
}

/// Leaves what the group says, and the turn record.
#[inline]
pub fn leave(commands: u32, writes: u32, mut flags: u32, now_ns: u64) {
    let group = group();
    let mut turn = TurnRecord {
        commands: commands.into(),
        writes: writes.into(),
        dropped_events: group.dropped_events().into(),
        deadline_ns: NEVER.into(),
        ..TurnRecord::default()
    };
    if group.wants_interrupt() {
        if now_ns != NO_INTERRUPTS {
            // SAFETY: a static, borrowed for this statement only.
            let list = unsafe { &mut (*shared()).interrupts };
            turn.interrupts = fill(list, || group.poll_interrupt(now_ns).map(u32::from));
            turn.deadline_ns = group.interrupt_deadline_ns().unwrap_or(NEVER).into();
        }
        if group.wants_interrupt() {
            flags |= TurnRecord::WANTS_INTERRUPT;
        }
    }
    // SAFETY: a static, borrowed for this statement and the next.
    let cancels = unsafe { &mut (*shared()).cancels };
    turn.cancels = fill(cancels, || group.poll_cancel().map(|tag| tag.to_u64()));
    // SAFETY: as above.
    let messages = unsafe { &mut (*shared()).messages };
    turn.messages =
        fill(messages, || group.poll_message().map(|message| MessageRecord::encode_message(&message)));
    if group.is_resetting() {
        flags |= TurnRecord::RESETTING;
    }
    turn.flags = flags.into();
    // SAFETY: a static, written by this statement only.
    unsafe { (*shared()).turn = turn };
}

/// Fills a list with what there is, as far as there is room; how many there are in it then.
#[inline]
fn fill<T>(list: &mut [T], mut next: impl FnMut() -> Option<T>) -> U32 {
    let mut count = 0;
    for place in list {
        let Some(value) = next() else { break };
        *place = value;
        count += 1;
    }
    U32::new(count)
}
