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
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

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

/// Bytes that may be read ahead: a page, because a read ahead doesn't cross pages.
pub const AHEAD_BYTES: usize = 4096;

/// Everything that the module has in linear memory beside its stack and constants, from low addresses to high ones.
/// The host knows from `layout` where its part is.
///
/// First comes what every instance touches, then the controller's, then the group's, and at the end what only a
/// busy group gets to. So a tenant needs few pages, and those that an instance touches first are the low ones,
/// which a host's pool may keep for the next instance.
#[repr(C)]
pub struct Shared {
    /// What every controller call leaves.
    pub state: StateRecord,
    /// What every group call leaves.
    pub turn: TurnRecord,
    /// What the host says before a turn.
    pub input: TurnInput,
    /// Tags of commands to cancel.
    pub cancels: [u64; CANCEL_RECORDS],
    /// Where records are passed.
    pub scratch: Scratch,
    layout: [u32; LAYOUT_WORDS],
    /// Vectors that are due.
    pub interrupts: [u32; QUEUES],
    /// The doorbell registers as the host has staged them.
    pub registers: [AtomicU32; REGISTERS],
    /// The shadow doorbells as the host has staged them.
    pub shadows: [u32; REGISTERS],
    /// `controller` isn't as a fresh instance has it.
    controller_used: bool,
    /// `group` isn't as a fresh instance has it.
    group_used: bool,
    controller: ModuleController,
    /// What the controller wants of its host.
    pub outputs: [MessageRecord; OUTPUT_RECORDS],
    /// Messages of the group to its controller.
    pub messages: [MessageRecord; MESSAGE_RECORDS],
    /// Commands to carry out.
    pub commands: [CommandRecord; COMMAND_RECORDS],
    /// Commands that the host has ended.
    pub completions: [CompletionRecord; COMPLETION_RECORDS],
    /// Submission queue entries that were read ahead; the module's own.
    pub ahead: [u8; AHEAD_BYTES],
    group: ModuleGroup,
    /// Writes to guest memory that the host carries out after a turn.
    pub writes: [WriteRecord; WRITE_RECORDS],
}

/// The area that records are passed in, its bytes.
#[derive(FromZeros)]
#[repr(align(8))]
pub struct Scratch(pub [u8; SCRATCH_BYTES]);

/// Zero bytes throughout, so it takes no room in the file and a fresh instance's needn't be initialised.
static mut SHARED: Shared = Shared {
    state: zeroed(),
    turn: zeroed(),
    input: zeroed(),
    cancels: zeroed(),
    scratch: zeroed(),
    layout: zeroed(),
    interrupts: zeroed(),
    registers: zeroed(),
    shadows: zeroed(),
    controller_used: false,
    group_used: false,
    controller: Controller::blank(),
    outputs: zeroed(),
    messages: zeroed(),
    commands: zeroed(),
    completions: zeroed(),
    ahead: zeroed(),
    group: QueueGroup::blank(),
    writes: zeroed(),
};

const fn zeroed<T: FromZeros>() -> T {
    // SAFETY: zero bytes are a value of such a type.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The controller's tables.
pub type ModuleController = Controller<GROUPS, QUEUES, NAMESPACES>;
/// The group's tables.
pub type ModuleGroup = QueueGroup<QUEUES, COMMANDS, NAMESPACES>;

/// What is in linear memory.
///
/// Only its own fields are borrowed from the pointer, one at a time.
pub fn shared() -> *mut Shared {
    &raw mut SHARED
}

/// Where the doorbell registers are. Atomics: the host stores into them while an import runs.
pub fn registers() -> &'static Registers {
    // SAFETY: a static, of atomics, that is never borrowed mutably.
    unsafe { &(*shared()).registers }
}

/// The controller of this instance.
pub fn controller() -> &'static mut ModuleController {
    // SAFETY: an instance has one thread, an export borrows this once, and no import calls an export.
    unsafe { &mut (*shared()).controller }
}

/// The queue group of this instance.
pub fn group() -> &'static mut ModuleGroup {
    // SAFETY: as for the controller.
    unsafe { &mut (*shared()).group }
}

/// The controller, blank. A fresh instance has it so, and then nothing is written: a page that isn't touched is one
/// that the host needn't provide.
pub fn blank_controller() -> &'static mut ModuleController {
    // SAFETY: a static, written by this statement only.
    let used = unsafe { (&raw mut (*shared()).controller_used).replace(true) };
    if used {
        // SAFETY: nothing borrows it now. A blank controller is zero bytes throughout, which is what the core says
        // of it; `cargo xtask module` sees in the file that none of them has to be initialised. In place, because
        // the value wouldn't fit on the stack.
        unsafe { (&raw mut (*shared()).controller).write_bytes(0, 1) };
    }
    controller()
}

/// The queue group, blank; as [`blank_controller`].
pub fn blank_group() -> &'static mut ModuleGroup {
    // SAFETY: a static, written by this statement only.
    let used = unsafe { (&raw mut (*shared()).group_used).replace(true) };
    if used {
        // SAFETY: as for the controller.
        unsafe { (&raw mut (*shared()).group).write_bytes(0, 1) };
    }
    group()
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
    let table = unsafe { &mut (*at).layout };
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
