//! The exports of the controller.

use doorbell_abi::{
    ConfigRecord, CountersRecord, HostOutput, MessageRecord, NamespaceRecord, StateRecord, StatisticsRecord,
    namespace_error_code, reset_kind,
};
use doorbell_core::controller::{HostReply, NamespaceError};
use doorbell_core::spec::status::Status;

use doorbell_turn::memory::Guest;
use doorbell_turn::tables::{
    blank_controller, controller, registers, scratch, scratch_bytes, set_scratch, shared,
};

/// Makes the controller anew, by the configuration in the scratch area.
#[unsafe(no_mangle)]
pub extern "C" fn controller_init() {
    if let Some(config) = scratch::<ConfigRecord>() {
        blank_controller().configure(config.decode());
    }
    leave(0);
}

/// Reads `len` bytes of registers into the scratch area.
#[unsafe(no_mangle)]
pub extern "C" fn controller_read(offset: u32, len: u32) {
    controller().read_register(offset, scratch_bytes(len));
}

/// Writes `len` bytes of the scratch area to registers.
#[unsafe(no_mangle)]
pub extern "C" fn controller_write(offset: u32, len: u32) {
    controller().write_register(offset, scratch_bytes(len));
    leave(0);
}

/// A write of `len` bytes of the scratch area into the doorbell region.
#[unsafe(no_mangle)]
pub extern "C" fn controller_doorbell(offset: u32, len: u32) {
    controller().handle_doorbell_write(registers(), offset, scratch_bytes(len));
    leave(0);
}

/// Does what there is to do and leaves outputs. 1: there is more to do right now.
#[unsafe(no_mangle)]
pub extern "C" fn controller_poll(now_ns: u64) -> u32 {
    let controller = controller();
    let more = controller.poll(&Guest::direct(), registers(), now_ns);
    // SAFETY: a static, borrowed for the rest of this function only.
    let mut places = unsafe { &mut (*shared()).outputs }.iter_mut();
    let mut count = 0;
    let mut full = true;
    while let Some(place) = places.next() {
        let record = if let Some((group, request)) = controller.poll_group_request() {
            MessageRecord::encode_request(group, &request)
        } else if let Some(vector) = controller.poll_interrupt() {
            HostOutput::Interrupt(vector).encode()
        } else if let Some(request) = controller.poll_host_request() {
            HostOutput::Request(request).encode()
        } else if let Some(change) = controller.poll_namespace_change() {
            HostOutput::Namespace(change).encode()
        } else {
            full = false;
            break;
        };
        *place = record;
        count += 1;
    }
    leave(count);
    u32::from(more || full)
}

/// Takes the message in the scratch area of the group at this index. 1: it means nothing.
#[unsafe(no_mangle)]
pub extern "C" fn controller_message(group: u32) -> u32 {
    let Some(message) = scratch::<MessageRecord>().and_then(|record| record.decode_message()) else {
        return 1;
    };
    controller().handle_group_message(group as u16, message);
    leave(0);
    0
}

/// Resets the controller: 0 FLR, 1 NSSR, 2 D3hot, 3 disconnect.
#[unsafe(no_mangle)]
pub extern "C" fn controller_reset(kind: u32) {
    controller().reset(reset_kind(kind));
    leave(0);
}

/// Guest memory is going away.
#[unsafe(no_mangle)]
pub extern "C" fn controller_unmap(address: u64, len_bytes: u64) {
    controller().handle_unmap(address, len_bytes);
    leave(0);
}

/// The answer to a flush: 0, or the status that it failed with.
#[unsafe(no_mangle)]
pub extern "C" fn controller_flushed(status: u32) {
    let result = if status == 0 { Ok(()) } else { Err(Status(status as u16)) };
    controller().handle_host_reply(HostReply::FlushAll(result));
    leave(0);
}

/// The statistics in the scratch area are those of the group at this index.
#[unsafe(no_mangle)]
pub extern "C" fn controller_statistics(group: u32) {
    if let Some(record) = scratch::<StatisticsRecord>() {
        controller().update_statistics(group as u16, record.decode());
    }
}

/// Leaves the SMART counters in the scratch area, or with 1 takes them from there.
#[unsafe(no_mangle)]
pub extern "C" fn controller_counters(restore: u32) {
    if restore == 0 {
        set_scratch(&CountersRecord::encode(&controller().smart_counters()));
    } else if let Some(record) = scratch::<CountersRecord>() {
        controller().restore_smart_counters(record.decode());
    }
}

/// Adds time that a command was in flight.
#[unsafe(no_mangle)]
pub extern "C" fn controller_busy(busy_ns: u64) {
    controller().add_busy_time(busy_ns);
}

/// Sets the temperature.
#[unsafe(no_mangle)]
pub extern "C" fn controller_temperature(kelvins: u32) {
    controller().set_temperature(kelvins as u16);
    leave(0);
}

/// Adds the namespace in the scratch area, as `nsid` or, where that is 0, as the lowest free one. The identifier
/// in bits 31:0, or an error in bits 63:32.
#[unsafe(no_mangle)]
pub extern "C" fn namespace_add(nsid: u32) -> u64 {
    let Some(record) = scratch::<NamespaceRecord>() else {
        return failed(NamespaceError::InvalidSize);
    };
    let added = controller().add_namespace((nsid != 0).then_some(nsid), record.decode());
    leave(0);
    match added {
        Ok(nsid) => u64::from(nsid),
        Err(error) => failed(error),
    }
}

/// Resizes a namespace. 0, or an error in bits 63:32.
#[unsafe(no_mangle)]
pub extern "C" fn namespace_resize(nsid: u32, size_blocks: u64) -> u64 {
    let resized = controller().resize_namespace(nsid, size_blocks);
    leave(0);
    resized.map_or_else(failed, |()| 0)
}

/// Removes a namespace. 0, or an error in bits 63:32.
#[unsafe(no_mangle)]
pub extern "C" fn namespace_remove(nsid: u32) -> u64 {
    let removed = controller().remove_namespace(nsid);
    leave(0);
    removed.map_or_else(failed, |()| 0)
}

fn failed(error: NamespaceError) -> u64 {
    u64::from(namespace_error_code(error)) << 32
}

/// Leaves the state record.
pub(crate) fn leave(outputs: u32) {
    let controller = controller();
    let mut flags = 0;
    for (set, flag) in [
        (controller.is_ready(), StateRecord::READY),
        (controller.is_level_asserted(), StateRecord::LEVEL),
        (controller.quiesced(), StateRecord::QUIESCED),
        (controller.doorbell_buffer().is_some(), StateRecord::DOORBELL_BUFFER),
    ] {
        if set {
            flags |= flag;
        }
    }
    let (shadow, event_idx) =
        controller.doorbell_buffer().map_or((0, 0), |buffer| (buffer.shadow, buffer.event_idx));
    let state = StateRecord {
        flags: flags.into(),
        interrupt_mask: controller.interrupt_mask().into(),
        shadow: shadow.into(),
        event_idx: event_idx.into(),
        outputs: outputs.into(),
        reserved: 0.into(),
    };
    // SAFETY: a static, written by this statement only.
    unsafe { (*shared()).state = state };
}
