//! defmt's frames on the UART. `cargo xtask firmware` decodes them with the image's own symbols.

use core::cell::RefCell;

use critical_section::{Mutex, RestoreState};

use crate::board;

// The decoder prints it as seconds.
defmt::timestamp!("{=u64:us}", board::now_ns() / 1000);

struct State {
    encoder: defmt::Encoder,
    restore: RestoreState,
}

static STATE: Mutex<RefCell<State>> =
    Mutex::new(RefCell::new(State { encoder: defmt::Encoder::new(), restore: RestoreState::invalid() }));

#[defmt::global_logger]
struct Logger;

fn send(bytes: &[u8]) {
    bytes.iter().copied().for_each(board::put_byte);
}

fn with_state(action: impl FnOnce(&mut State)) {
    critical_section::with(|token| {
        if let Ok(mut state) = STATE.borrow(token).try_borrow_mut() {
            action(&mut state);
        }
    });
}

// SAFETY: interrupts stay off from `acquire` to `release` and there is one core, so frames don't mix.
unsafe impl defmt::Logger for Logger {
    fn acquire() {
        // SAFETY: `release` gives this state back; defmt calls the two in pairs and never nested.
        let restore = unsafe { critical_section::acquire() };
        with_state(|state| {
            state.restore = restore;
            state.encoder.start_frame(send);
        });
    }

    unsafe fn flush() {}

    unsafe fn release() {
        let mut restore = RestoreState::invalid();
        with_state(|state| {
            state.encoder.end_frame(send);
            restore = state.restore;
        });
        // SAFETY: the state that `acquire` has kept.
        unsafe { critical_section::release(restore) };
    }

    unsafe fn write(bytes: &[u8]) {
        with_state(|state| state.encoder.write(bytes, send));
    }
}
