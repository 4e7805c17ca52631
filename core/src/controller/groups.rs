//! Who of the queue groups has been asked what.
//!
//! To one group at most one request is under way, except that a reset overtakes any other. What is still to be
//! asked is kept as sets of groups, so nothing queues up however often the host or the guest changes its mind.

/// A set of queue groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupSet(u64);

impl GroupSet {
    pub(super) const EMPTY: Self = Self(0);

    /// The first `count` groups.
    pub(super) const fn first(count: u16) -> Self {
        match count {
            0 => Self(0),
            1..=63 => Self(1u64.wrapping_shl(count as u32).wrapping_sub(1)),
            _ => Self(u64::MAX),
        }
    }

    pub(super) const fn one(group: u16) -> Self {
        Self(if group < 64 { 1u64.wrapping_shl(group as u32) } else { 0 })
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn contains(self, group: u16) -> bool {
        self.0 & Self::one(group).0 != 0
    }

    pub(super) const fn insert(&mut self, group: u16) {
        self.0 |= Self::one(group).0;
    }

    pub(super) const fn insert_all(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether it was there.
    pub(super) const fn remove(&mut self, group: u16) -> bool {
        let was_there = self.contains(group);
        self.0 &= !Self::one(group).0;
        was_there
    }
}

/// What is under way to one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum UnderWay {
    Nothing,
    Reset,
    ClearDoorbellBuffer,
    /// The namespace at this index of the table.
    Namespace(u16),
    /// The pending admin command.
    Command,
}

/// The requests of all groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups<const GROUPS: usize> {
    count: u16,
    under_way: [UnderWay; GROUPS],
    reset_due: GroupSet,
    clear_due: GroupSet,
    /// Groups that the pending admin command has still to be sent to.
    pub(super) command_due: GroupSet,
    /// Groups that have it and haven't answered.
    pub(super) command_sent: GroupSet,
}

impl<const GROUPS: usize> Groups<GROUPS> {
    pub(super) const fn new(count: u16) -> Self {
        Self {
            count,
            under_way: [UnderWay::Nothing; GROUPS],
            reset_due: GroupSet::EMPTY,
            clear_due: GroupSet::EMPTY,
            command_due: GroupSet::EMPTY,
            command_sent: GroupSet::EMPTY,
        }
    }

    pub(super) const fn all(&self) -> GroupSet {
        GroupSet::first(self.count)
    }

    /// The group of a completion queue.
    pub(super) const fn of_completion_queue(&self, cqid: u16) -> u16 {
        match cqid.wrapping_sub(1).checked_rem(self.count) {
            Some(group) => group,
            None => 0,
        }
    }

    pub(super) fn reset_all(&mut self) {
        self.command_due = GroupSet::EMPTY;
        self.command_sent = GroupSet::EMPTY;
        self.clear_due = GroupSet::EMPTY;
        for (group, under_way) in (0..self.count).zip(&self.under_way) {
            // Nothing reaches a group behind a reset that it hasn't answered, so one reset is enough.
            if *under_way != UnderWay::Reset {
                self.reset_due.insert(group);
            }
        }
    }

    pub(super) fn clear_doorbell_buffers(&mut self) {
        self.clear_due = self.all();
    }

    pub(super) fn send_command(&mut self, groups: GroupSet) {
        self.command_due = groups;
        self.command_sent = GroupSet::EMPTY;
    }

    /// Whether every group that got the pending admin command has answered.
    pub(super) const fn command_answered(&self) -> bool {
        self.command_due.is_empty() && self.command_sent.is_empty()
    }

    /// Whether no group has to answer a reset, or to give up a doorbell buffer.
    pub(super) fn is_quiet(&self) -> bool {
        let busy =
            |under_way: &UnderWay| matches!(under_way, UnderWay::Reset | UnderWay::ClearDoorbellBuffer);
        self.reset_due.is_empty() && self.clear_due.is_empty() && !self.under_way.iter().any(busy)
    }

    pub(super) fn under_way(&self, group: u16) -> UnderWay {
        self.under_way.get(usize::from(group)).copied().unwrap_or(UnderWay::Nothing)
    }

    pub(super) fn set_under_way(&mut self, group: u16, under_way: UnderWay) {
        if let Some(place) = self.under_way.get_mut(usize::from(group)) {
            *place = under_way;
        }
    }

    /// What is due to `group` apart from namespaces and the pending command, and may be sent now.
    pub(super) fn take_due(&mut self, group: u16) -> Due {
        if self.reset_due.remove(group) {
            Due::Reset
        } else if self.under_way(group) != UnderWay::Nothing {
            Due::Busy
        } else if self.clear_due.remove(group) {
            Due::ClearDoorbellBuffer
        } else {
            Due::Nothing
        }
    }

    pub(super) const fn count(&self) -> u16 {
        self.count
    }
}

/// What [`Groups::take_due`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Reset,
    ClearDoorbellBuffer,
    /// The group has a request to answer first.
    Busy,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_up_to_64_groups() {
        assert!(GroupSet::first(0).is_empty());
        assert!(GroupSet::first(64).contains(63));
        assert!(!GroupSet::first(3).contains(3));
        assert!(!GroupSet::first(64).contains(64));
    }

    #[test]
    fn completion_queues_are_dealt_out_in_turn() {
        let groups = Groups::<8>::new(3);
        assert_eq!([1, 2, 3, 4, 65_535].map(|cqid| groups.of_completion_queue(cqid)), [0, 1, 2, 0, 2]);
    }

    #[test]
    fn reset_overtakes_and_is_sent_once() {
        let mut groups = Groups::<2>::new(2);
        groups.set_under_way(0, UnderWay::Command);
        groups.reset_all();
        assert_eq!(groups.take_due(0), Due::Reset);
        groups.set_under_way(0, UnderWay::Reset);
        groups.reset_all();
        assert_eq!(groups.take_due(0), Due::Busy);
        assert_eq!(groups.take_due(1), Due::Reset);
        assert!(!groups.is_quiet());
    }
}
