//! Everything that the module and its host share in linear memory, and the tables of the core.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use doorbell_abi::{
    ABI_VERSION, CommandRecord, CompletionRecord, Field, LAYOUT_WORDS, MAGIC, MessageRecord, SCRATCH_BYTES,
    StateRecord, TurnInput, TurnRecord, WriteRecord,
};
use doorbell_core::controller::Controller;
use doorbell_core::doorbell::Registers;
use doorbell_core::group::QueueGroup;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queue groups of a controller.
pub const GROUPS: usize = 16;
/// I/O queue pairs of a controller, and of a group.
pub const QUEUES: usize = 64;
/// Commands in flight of a group: as many as the native host's, so that its states fit.
pub const COMMANDS: usize = 1024;
/// Namespaces.
pub const NAMESPACES: usize = 32;

/// Doorbell registers: the admin queue's and two for each queue pair.
pub const REGISTERS: usize = 2 * (QUEUES + 1);

const COMPLETION_RECORDS: usize = 256;
const COMMAND_RECORDS: usize = 32;
const WRITE_RECORDS: usize = 512;
const MESSAGE_RECORDS: usize = 16;
const CANCEL_RECORDS: usize = 4;
const OUTPUT_RECORDS: usize = 64;

/// What is shared. The host knows where from `layout`.
pub struct Shared {
    pub registers: [AtomicU32; REGISTERS],
    pub shadows: [u32; REGISTERS],
    pub completions: [CompletionRecord; COMPLETION_RECORDS],
    pub commands: [CommandRecord; COMMAND_RECORDS],
    pub writes: [WriteRecord; WRITE_RECORDS],
    pub messages: [MessageRecord; MESSAGE_RECORDS],
    pub interrupts: [u32; QUEUES],
    pub cancels: [u64; CANCEL_RECORDS],
    pub outputs: [MessageRecord; OUTPUT_RECORDS],
    pub turn: TurnRecord,
    pub input: TurnInput,
    pub state: StateRecord,
    pub scratch: Scratch,
}

/// The area that records are passed in.
#[repr(align(8))]
pub struct Scratch(pub [u8; SCRATCH_BYTES]);

static mut SHARED: MaybeUninit<Shared> = MaybeUninit::zeroed();
static mut LAYOUT: [u32; LAYOUT_WORDS] = [0; LAYOUT_WORDS];

/// The controller's tables.
pub type ModuleController = Controller<GROUPS, QUEUES, NAMESPACES>;
/// The group's tables.
pub type ModuleGroup = QueueGroup<QUEUES, COMMANDS, NAMESPACES>;

static mut CONTROLLER: ModuleController = Controller::blank();
static mut GROUP: ModuleGroup = QueueGroup::blank();

/// What is shared.
///
/// Only its own fields are borrowed from the pointer, one at a time.
pub fn shared() -> *mut Shared {
    (&raw mut SHARED).cast()
}

/// Where the doorbell registers are. Atomics: the host stores into them while an import runs.
pub fn registers() -> &'static Registers {
    // SAFETY: a static, of atomics, that is never borrowed mutably.
    unsafe { &(*shared()).registers }
}

/// The controller of this instance.
pub fn controller() -> &'static mut ModuleController {
    // SAFETY: an instance has one thread, an export borrows this once, and no import calls an export.
    unsafe { &mut *(&raw mut CONTROLLER) }
}

/// The queue group of this instance.
pub fn group() -> &'static mut ModuleGroup {
    // SAFETY: as for the controller.
    unsafe { &mut *(&raw mut GROUP) }
}

/// The record at the start of the scratch area.
pub fn scratch<R: FromBytes + Immutable + KnownLayout>() -> Option<R> {
    // SAFETY: a static of bytes, all of them initialised, borrowed for this function only.
    let bytes = unsafe { &(*shared()).scratch.0 };
    R::read_from_prefix(bytes).ok().map(|(record, _)| record)
}

/// Leaves a record at the start of the scratch area.
pub fn set_scratch<R: IntoBytes + Immutable>(record: &R) {
    // SAFETY: a static of bytes, borrowed for this function only.
    let bytes = unsafe { &mut (*shared()).scratch.0 };
    let _fits = record.write_to_prefix(bytes);
}

/// The first `len` bytes of the scratch area, or all of them.
pub fn scratch_bytes(len: u32) -> &'static mut [u8] {
    // SAFETY: a static of bytes; the exports that ask for it do so once, and use no other access meanwhile.
    let bytes = unsafe { &mut (*shared()).scratch.0 };
    let len = (len as usize).min(SCRATCH_BYTES);
    bytes.get_mut(..len).unwrap_or_default()
}

/// The version of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn abi_version() -> u32 {
    ABI_VERSION
}

/// Fills the layout table and returns where it is.
#[unsafe(no_mangle)]
pub extern "C" fn layout() -> u32 {
    let at = shared();
    // SAFETY: a static that is borrowed only here.
    let table = unsafe { &mut *(&raw mut LAYOUT) };
    let mut set = |field: Field, value: usize| {
        if let Some(place) = table.get_mut(field as usize) {
            *place = value as u32;
        }
    };
    macro_rules! list {
        ($first:ident, $count:ident, $field:ident, $records:expr) => {
            // SAFETY: only the address of a field of a static is taken.
            set(Field::$first, unsafe { &raw mut (*at).$field } as usize);
            set(Field::$count, $records);
        };
    }
    set(Field::Magic, MAGIC as usize);
    set(Field::Version, ABI_VERSION as usize);
    list!(Registers, RegisterCount, registers, REGISTERS);
    list!(Shadows, ShadowCount, shadows, REGISTERS);
    list!(Completions, CompletionCount, completions, COMPLETION_RECORDS);
    list!(Commands, CommandCount, commands, COMMAND_RECORDS);
    list!(Writes, WriteCount, writes, WRITE_RECORDS);
    list!(Messages, MessageCount, messages, MESSAGE_RECORDS);
    list!(Interrupts, InterruptCount, interrupts, QUEUES);
    list!(Cancels, CancelCount, cancels, CANCEL_RECORDS);
    list!(Outputs, OutputCount, outputs, OUTPUT_RECORDS);
    // SAFETY: only addresses of fields of a static are taken.
    set(Field::Turn, unsafe { &raw mut (*at).turn } as usize);
    // SAFETY: as above.
    set(Field::Input, unsafe { &raw mut (*at).input } as usize);
    // SAFETY: as above.
    set(Field::State, unsafe { &raw mut (*at).state } as usize);
    // SAFETY: as above.
    set(Field::Scratch, unsafe { &raw mut (*at).scratch } as usize);
    set(Field::Groups, GROUPS);
    set(Field::Queues, QUEUES);
    set(Field::CommandSlots, COMMANDS);
    set(Field::Namespaces, NAMESPACES);
    table.as_ptr() as u32
}
