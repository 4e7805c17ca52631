//! The exports that save and load states (`doorbell_core::state`), for a live upgrade.
//!
//! A state is passed in a buffer of its own. Storages are the host's, which has asked itself about them.

use doorbell_turn::tables::{ModuleController, ModuleGroup, controller, group};

/// Bytes of the larger of the two states.
const BUFFER_BYTES: usize = if ModuleController::STATE_BYTES > ModuleGroup::STATE_BYTES {
    ModuleController::STATE_BYTES
} else {
    ModuleGroup::STATE_BYTES
};

static mut BUFFER: [u8; BUFFER_BYTES] = [0; BUFFER_BYTES];

/// The buffer.
fn buffer() -> &'static mut [u8; BUFFER_BYTES] {
    // SAFETY: an instance has one thread, and an export borrows this once.
    unsafe { &mut *(&raw mut BUFFER) }
}

/// Where states are passed: the buffer's address in bits 63:32, its bytes in bits 31:0.
#[unsafe(no_mangle)]
pub extern "C" fn state_buffer() -> u64 {
    (buffer().as_mut_ptr() as u64) << 32 | BUFFER_BYTES as u64
}

/// Saves the controller; its state's bytes, or 0 where it can't.
#[unsafe(no_mangle)]
pub extern "C" fn controller_save() -> u32 {
    controller().save(buffer()).map_or(0, |len| len as u32)
}

/// Goes on with the controller in the first `len` bytes of the buffer. 1: it can't; the controller is a new one.
#[unsafe(no_mangle)]
pub extern "C" fn controller_load(len: u32) -> u32 {
    let loaded = controller().load(fit(buffer(), len), |_, _| true);
    crate::controller::leave(0);
    u32::from(loaded.is_err())
}

/// Saves the group; its state's bytes, or 0 where it can't.
#[unsafe(no_mangle)]
pub extern "C" fn group_save() -> u32 {
    group().save(buffer()).map_or(0, |len| len as u32)
}

/// Goes on with the group in the first `len` bytes of the buffer. 1: it can't; the group is a new one.
#[unsafe(no_mangle)]
pub extern "C" fn group_load(len: u32) -> u32 {
    u32::from(group().load(fit(buffer(), len), |_, _| true).is_err())
}

/// The first `len` bytes, or none where there aren't so many.
fn fit(bytes: &mut [u8], len: u32) -> &[u8] {
    bytes.get(..len as usize).unwrap_or_default()
}
