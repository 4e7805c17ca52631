//! The exports of the queue group.

use doorbell_abi::{
    CommandRecord, MessageRecord, NEVER, NO_INTERRUPTS, QueueRecord, StatisticsRecord, TurnRecord,
};
use doorbell_core::group::{Armed, GroupConfig};
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;

use crate::memory::Guest;
use crate::tables::{blank_group, group, registers, scratch, set_scratch, shared};

/// Records of the list of writes that one call of the core's `poll_command` may add: the completions of what it
/// refuses and an EventIdx for each doorbell.
const WRITES_PER_COMMAND: u32 = 33 + 2 * 64;

/// Room of the list of writes that is left when commands are still fetched.
const WRITE_ROOM: u32 = 512 - WRITES_PER_COMMAND;

/// Entries that the next `group_poll` reads ahead.
static mut BATCH: u32 = 1;

/// Makes the group anew.
#[unsafe(no_mangle)]
pub extern "C" fn group_init(mdts_bytes: u32, posted_registers: u32) {
    blank_group().configure(GroupConfig { mdts_bytes, posted_registers: posted_registers != 0 });
}

/// Takes the request in the scratch area. 1: it means nothing.
#[unsafe(no_mangle)]
pub extern "C" fn group_request() -> u32 {
    let Some((_, request)) = scratch::<MessageRecord>().and_then(|record| record.decode_request()) else {
        return 1;
    };
    group().handle_request(&Guest::direct(), registers(), request);
    leave(0, 0, 0, NO_INTERRUPTS);
    0
}

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

/// Prepares for sleep. 1: the owner may; 0: there is work.
#[unsafe(no_mangle)]
pub extern "C" fn group_arm(level_interrupts: u32) -> u32 {
    let armed = group().arm(&Guest::direct(), registers(), level_interrupts != 0);
    leave(0, 0, 0, NO_INTERRUPTS);
    u32::from(armed == Armed::Sleep)
}

/// Whether a pin-based interrupt is to be asserted.
#[unsafe(no_mangle)]
pub extern "C" fn group_level() -> u32 {
    let asserted = group().is_level_asserted(&Guest::direct(), registers());
    leave(0, 0, 0, NO_INTERRUPTS);
    u32::from(asserted)
}

/// Stops fetching, or goes on.
#[unsafe(no_mangle)]
pub extern "C" fn group_pause(paused: u32) {
    if paused != 0 {
        group().pause();
    } else {
        group().resume();
    }
    leave(0, 0, 0, NO_INTERRUPTS);
}

/// Gives up every command in flight during a reset.
#[unsafe(no_mangle)]
pub extern "C" fn group_abandon() {
    group().abandon_commands();
    leave(0, 0, 0, NO_INTERRUPTS);
}

/// Leaves the group's statistics in the scratch area.
#[unsafe(no_mangle)]
pub extern "C" fn group_statistics() {
    set_scratch(&StatisticsRecord::encode(&group().statistics()));
}

/// Leaves the counters of a submission queue, by its place among those that exist, in the scratch area. 1: there
/// are not so many.
#[unsafe(no_mangle)]
pub extern "C" fn group_queue(place: u32) -> u32 {
    match group().queue_statistics().nth(place as usize) {
        Some(statistics) => {
            set_scratch(&QueueRecord::encode(&statistics));
            0
        }
        None => 1,
    }
}

/// Leaves what the group says, and the turn record.
#[inline]
fn leave(commands: u32, writes: u32, mut flags: u32, now_ns: u64) {
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
            // SAFETY: a static, borrowed for this block only.
            let list = unsafe { &mut (*shared()).interrupts };
            let mut count = 0;
            for place in list {
                let Some(vector) = group.poll_interrupt(now_ns) else { break };
                *place = u32::from(vector);
                count += 1;
            }
            turn.interrupts = count.into();
            turn.deadline_ns = group.interrupt_deadline_ns().unwrap_or(NEVER).into();
        }
        if group.wants_interrupt() {
            flags |= TurnRecord::WANTS_INTERRUPT;
        }
    }
    // SAFETY: a static, borrowed for the next loop only.
    let cancels = unsafe { &mut (*shared()).cancels };
    let mut count = 0;
    for place in cancels {
        let Some(tag) = group.poll_cancel() else { break };
        *place = tag.to_u64();
        count += 1;
    }
    turn.cancels = count.into();
    // SAFETY: a static, borrowed for the next loop only.
    let messages = unsafe { &mut (*shared()).messages };
    let mut count = 0;
    for place in messages {
        let Some(message) = group.poll_message() else { break };
        *place = MessageRecord::encode_message(&message);
        count += 1;
    }
    turn.messages = count.into();
    if group.is_resetting() {
        flags |= TurnRecord::RESETTING;
    }
    turn.flags = flags.into();
    // SAFETY: a static, written by this statement only.
    unsafe { (*shared()).turn = turn };
}
