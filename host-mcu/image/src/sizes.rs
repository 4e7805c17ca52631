//! The sizes of an image's tables, from the environment of its build: `DOORBELL_QUEUES`, `DOORBELL_COMMANDS`
//! and `DOORBELL_ERRORS`; by default the smallest that is useful.

/// I/O queue pairs.
pub const QUEUES: usize = number(option_env!("DOORBELL_QUEUES"), 1);
/// I/O commands in flight.
pub const COMMANDS: usize = number(option_env!("DOORBELL_COMMANDS"), 8);
/// Entries of the Error Information log.
pub const ERRORS: usize = number(option_env!("DOORBELL_ERRORS"), 4);
/// Doorbell registers: a tail and a head for each queue pair, the admin queue's included.
pub const REGISTERS: usize = 2 * (QUEUES + 1);

const fn number(text: Option<&str>, default: usize) -> usize {
    let Some(text) = text else { return default };
    let bytes = text.as_bytes();
    assert!(!bytes.is_empty(), "a number is empty");
    let mut value = 0;
    let mut index = 0;
    while index < bytes.len() {
        assert!(bytes[index].is_ascii_digit(), "not a number");
        value = value * 10 + (bytes[index] - b'0') as usize;
        index += 1;
    }
    value
}
