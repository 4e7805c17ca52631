//! The exports of the queue group, but for its turn.

use doorbell_abi::{MessageRecord, NO_INTERRUPTS, QueueRecord, StatisticsRecord};
use doorbell_core::group::{Armed, GroupConfig};
use doorbell_turn::leave;
use doorbell_turn::memory::Guest;
use doorbell_turn::tables::{blank_group, group, registers, scratch, set_scratch};

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
