//! Calls to the peer, and who waits how for their answers.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::PoisonError;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::receive::Receiver;
use super::{CallError, Lost, MAX_QUEUED_REQUESTS, Message, Shared, lock};
use crate::vfio_user::protocol::{Command, Header};

#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) reader: Option<ThreadId>,
    pub(super) next_id: u16,
    pub(super) waiting: HashMap<u16, Option<Answer>>,
    /// Calls that timed out, whose replies may still come.
    pub(super) overdue: Vec<u16>,
    pub(super) lost: Option<Lost>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<(), Errno>,
    pub(super) payload: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Shared {
    /// Gives a reply to its caller. Returns whether the message was a reply that needs no answer.
    pub(super) fn is_reply(&self, message: &mut Message) -> bool {
        if message.header.message_type() != Header::TYPE_REPLY {
            return false;
        }
        let id = message.header.message_id.get();
        let mut calls = lock(&self.calls);
        if let Some(slot @ None) = calls.waiting.get_mut(&id) {
            let result = match message.fault {
                Some(errno) => Err(errno),
                None => message.header.result(),
            };
            let payload = std::mem::take(&mut message.payload);
            *slot = Some(Answer { result, payload, fds: std::mem::take(&mut message.fds) });
            self.answered.notify_all();
            return true;
        }
        if let Some(place) = calls.overdue.iter().position(|overdue| *overdue == id) {
            calls.overdue.swap_remove(place);
            return true;
        }
        // Nobody asked. To one of our own commands it isn't answered, for the answer could be taken for the
        // answer to a command of the peer; anything else is a command with the wrong type.
        matches!(message.header.command_code(), Command::DMA_READ | Command::DMA_WRITE)
    }

    pub(super) fn start_call(&self) -> Result<(u16, bool), CallError> {
        let mut calls = lock(&self.calls);
        if let Some(lost) = calls.lost {
            return Err(lost.into());
        }
        if !calls.overdue.is_empty() {
            return Err(CallError::TimedOut);
        }
        let id = calls.next_id;
        if calls.waiting.contains_key(&id) {
            return Err(CallError::TimedOut);
        }
        calls.next_id = id.wrapping_add(1);
        calls.waiting.insert(id, None);
        Ok((id, calls.reader == Some(std::thread::current().id())))
    }

    /// The reader's wait: reads until the answer is there and queues commands.
    pub(super) fn read_answer(&self, id: u16, deadline: Instant) -> Result<Answer, CallError> {
        loop {
            {
                let mut receiver = lock(&self.receiver);
                let mut message = Message::default();
                while self.receive_whole(&mut receiver, &mut message)? {
                    let message = std::mem::take(&mut message);
                    self.queue(&mut receiver, message)?;
                }
            }
            if let Some(answer) = self.take_answer(id)? {
                return Ok(answer);
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return self.give_up(id);
            };
            let mut flags = PollFlags::IN;
            {
                let mut sender = lock(&self.sender);
                self.drain(&mut sender)?;
                if !sender.backlog.is_empty() {
                    flags |= PollFlags::OUT;
                }
            }
            wait(self.socket.as_fd(), flags, left)?;
        }
    }

    fn queue(&self, receiver: &mut Receiver, mut message: Message) -> Result<(), Lost> {
        if self.is_reply(&mut message) {
            return Ok(());
        }
        if receiver.queued.len() >= MAX_QUEUED_REQUESTS {
            self.lose(Lost::Flood);
            return Err(Lost::Flood);
        }
        receiver.queued.push_back(message);
        Ok(())
    }

    /// Another thread's wait: the reader finds the answer.
    pub(super) fn await_answer(&self, id: u16, deadline: Instant) -> Result<Answer, CallError> {
        let mut calls = lock(&self.calls);
        loop {
            if let Some(Some(_)) = calls.waiting.get(&id) {
                break;
            }
            if calls.lost.is_some() {
                break;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                break;
            };
            calls = self.answered.wait_timeout(calls, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(calls);
        match self.take_answer(id)? {
            Some(answer) => Ok(answer),
            None => self.give_up(id),
        }
    }

    fn take_answer(&self, id: u16) -> Result<Option<Answer>, CallError> {
        let mut calls = lock(&self.calls);
        if let Some(Some(_)) = calls.waiting.get(&id) {
            return Ok(calls.waiting.remove(&id).flatten());
        }
        match calls.lost {
            Some(lost) => {
                calls.waiting.remove(&id);
                Err(lost.into())
            }
            None => Ok(None),
        }
    }

    fn give_up(&self, id: u16) -> Result<Answer, CallError> {
        let mut calls = lock(&self.calls);
        if let Some(Some(answer)) = calls.waiting.remove(&id) {
            return Ok(answer);
        }
        calls.overdue.push(id);
        Err(CallError::TimedOut)
    }
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> Result<(), Lost> {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Lost::Socket(errno)),
    }
}
