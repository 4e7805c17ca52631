//! ioeventfds: eventfds that stand for doorbell writes.
//!
//! An eventfd carries no value, so one is of use only for a doorbell whose value is found elsewhere: in the
//! shadow. They are put up when shadow doorbells become active (and for queues created later), and taken down
//! exactly once: on the queue's deletion, a reset, or the loss of the client, and only where one was put up. The
//! admin queue has none, because it is always driven by register.
//!
//! The queue's poller sleeps on them; the client writes them in the place of a message.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_core::doorbell::{head_index, tail_index};
use rustix::event::epoll;

use crate::doorbell_page::DOORBELL_OFFSET;
use crate::interrupt::new_eventfd;
use crate::vfio_user::device::IoEventFdDescription;

/// The ioeventfds of a device, and the queues that have or could have some.
#[derive(Debug, Default)]
pub(super) struct IoEventFds {
    active: bool,
    /// The doorbells that exist, by index, and who serves them.
    doorbells: BTreeMap<u32, Server>,
    installed: BTreeMap<u32, Installed>,
}

/// The group behind a doorbell, and the epoll that its poller sleeps on.
#[derive(Clone, Debug)]
struct Server {
    group: u16,
    epoll: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Installed {
    eventfd: OwnedFd,
    epoll: Arc<OwnedFd>,
}

impl Drop for Installed {
    fn drop(&mut self) {
        // The poller may have gone with its epoll already; closing the eventfd does the same then.
        let _ = epoll::delete(&self.epoll, &self.eventfd);
    }
}

impl IoEventFds {
    /// A submission queue was created in `group`, whose poller sleeps on `epoll`.
    pub(super) fn submission_queue_created(&mut self, qid: u16, group: u16, epoll: &Arc<OwnedFd>) {
        self.doorbell_created(tail_index(qid), group, epoll);
    }

    /// A completion queue was created.
    pub(super) fn completion_queue_created(&mut self, qid: u16, group: u16, epoll: &Arc<OwnedFd>) {
        self.doorbell_created(head_index(qid), group, epoll);
    }

    /// The group behind the doorbell at `index`.
    pub(super) fn group_of(&self, index: u32) -> Option<u16> {
        self.doorbells.get(&index).map(|server| server.group)
    }

    fn doorbell_created(&mut self, index: u32, group: u16, epoll: &Arc<OwnedFd>) {
        self.doorbells.insert(index, Server { group, epoll: Arc::clone(epoll) });
        if self.active {
            self.install(index);
        }
    }

    /// A submission queue was deleted.
    pub(super) fn submission_queue_deleted(&mut self, qid: u16) {
        self.doorbell_deleted(tail_index(qid));
    }

    /// A completion queue was deleted.
    pub(super) fn completion_queue_deleted(&mut self, qid: u16) {
        self.doorbell_deleted(head_index(qid));
    }

    fn doorbell_deleted(&mut self, index: u32) {
        self.doorbells.remove(&index);
        self.installed.remove(&index);
    }

    /// Shadow doorbells became active, or ended.
    pub(super) fn set_active(&mut self, active: bool) {
        if self.active == active {
            return;
        }
        self.active = active;
        if active {
            let indices: Vec<u32> = self.doorbells.keys().copied().collect();
            indices.into_iter().for_each(|index| self.install(index));
        } else {
            self.installed.clear();
        }
    }

    /// Every queue is gone.
    pub(super) fn clear(&mut self) {
        self.active = false;
        self.installed.clear();
        self.doorbells.clear();
    }

    /// How many are put up.
    pub(super) fn len(&self) -> usize {
        self.installed.len()
    }

    /// What the client is told of them.
    pub(super) fn describe(&self) -> Vec<IoEventFdDescription<'_>> {
        self.installed
            .iter()
            .map(|(index, installed)| IoEventFdDescription {
                offset: u64::from(*index) * 4 + DOORBELL_OFFSET,
                size: 4,
                eventfd: installed.eventfd.as_fd(),
            })
            .collect()
    }

    fn install(&mut self, index: u32) {
        let Some(Server { epoll, .. }) = self.doorbells.get(&index) else { return };
        let made = new_eventfd().and_then(|eventfd| {
            let data = epoll::EventData::new_u64(u64::from(index));
            epoll::add(epoll, &eventfd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
            Ok(Installed { eventfd, epoll: Arc::clone(epoll) })
        });
        match made {
            Ok(installed) => {
                self.installed.insert(index, installed);
            }
            // The client does without and sends messages.
            Err(error) => tracing::warn!(%error, "no ioeventfd for a doorbell"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn they_are_up_only_while_shadow_doorbells_are_active() {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let mut table = IoEventFds::default();
        table.completion_queue_created(1, 0, &epoll);
        table.submission_queue_created(1, 0, &epoll);
        assert_eq!(table.len(), 0);
        table.set_active(true);
        assert_eq!(table.len(), 2);
        table.submission_queue_created(2, 0, &epoll);
        let offsets: Vec<u64> = table.describe().iter().map(|one| one.offset).collect();
        assert_eq!(offsets, [0x1008, 0x100c, 0x1010]);
        table.submission_queue_deleted(2);
        table.submission_queue_deleted(2);
        assert_eq!(table.len(), 2);
        table.set_active(false);
        table.set_active(false);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn many_lives_leak_no_descriptor() {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let mut table = IoEventFds::default();
        let before = descriptors();
        for _ in 0..200 {
            for qid in 1..8 {
                table.completion_queue_created(qid, 0, &epoll);
                table.submission_queue_created(qid, 0, &epoll);
            }
            table.set_active(true);
            assert_eq!(table.len(), 14);
            table.submission_queue_deleted(3);
            table.clear();
        }
        // Other tests run beside this one, so not to the letter: 200 lives would leak 2,800.
        assert!(descriptors() < before + 100);
    }
}
