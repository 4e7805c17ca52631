//! The table that the export `layout` points to: little-endian dwords, by [`Field`].

/// The first word of the table: "DBWM".
pub const MAGIC: u32 = 0x4d57_4244;

/// Words of the table.
pub const LAYOUT_WORDS: usize = 28;

/// Index of a word in the table. Addresses are offsets in linear memory, sizes are in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Field {
    /// [`MAGIC`].
    Magic = 0,
    /// [`ABI_VERSION`](crate::ABI_VERSION).
    Version,
    /// Doorbell registers: dwords.
    Registers,
    /// How many.
    RegisterCount,
    /// Staged shadow doorbells: dwords, by doorbell index.
    Shadows,
    /// How many.
    ShadowCount,
    /// [`CompletionRecord`](crate::CompletionRecord)s that the host passes to `group_poll`.
    Completions,
    /// How many fit.
    CompletionCount,
    /// [`CommandRecord`](crate::CommandRecord)s that `group_poll` leaves.
    Commands,
    /// How many fit.
    CommandCount,
    /// [`WriteRecord`](crate::WriteRecord)s that `group_poll` leaves, in order.
    Writes,
    /// How many fit.
    WriteCount,
    /// [`MessageRecord`](crate::MessageRecord)s that every group call leaves.
    Messages,
    /// How many fit.
    MessageCount,
    /// Interrupt vectors, a dword each.
    Interrupts,
    /// How many fit.
    InterruptCount,
    /// Tags of commands to cancel, a qword each.
    Cancels,
    /// How many fit.
    CancelCount,
    /// The [`TurnRecord`](crate::TurnRecord) that every group call leaves.
    Turn,
    /// The [`TurnInput`](crate::TurnInput) that the host fills before `group_poll`.
    Input,
    /// The [`StateRecord`](crate::StateRecord) that every controller call leaves.
    State,
    /// [`MessageRecord`](crate::MessageRecord)s that `controller_poll` leaves.
    Outputs,
    /// How many fit.
    OutputCount,
    /// The scratch area of [`SCRATCH_BYTES`](crate::SCRATCH_BYTES).
    Scratch,
    /// Queue groups of the controller's tables.
    Groups,
    /// I/O queue pairs of the tables.
    Queues,
    /// Commands in flight of a group's table.
    CommandSlots,
    /// Namespaces of the tables.
    Namespaces,
}
