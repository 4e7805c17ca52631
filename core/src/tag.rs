//! Tags: how a completion finds its command, and how a late one is recognised.

/// Names one command in flight in one [`QueueGroup`](crate::group::QueueGroup).
///
/// A slot's generation changes whenever its command ends, however it ends, so a completion that arrives after
/// a reset or for an abandoned command matches nothing and touches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tag {
    /// Index into the group's command table.
    pub slot: u16,
    /// The slot's generation when the command was fetched.
    pub generation: u32,
}

impl Tag {
    /// The tag as one word, for hosts whose storage carries a 64-bit token.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 16 | self.slot as u64
    }

    /// The inverse of [`Tag::to_u64`]. Any value is accepted; one that was never a tag matches no command.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two fields are cut out of the word on purpose")]
    pub const fn from_u64(word: u64) -> Self {
        Self { slot: word as u16, generation: (word >> 16) as u32 }
    }
}
