//! A queue group that only answers.

use std::collections::VecDeque;

use crate::message::{GroupReply, GroupRequest, GroupStatistics};

/// Stands for a [`QueueGroup`](crate::group::QueueGroup) in tests of the controller: records every request and
/// answers at once, or when it is told to.
#[derive(Debug, Default)]
pub struct FakeGroup {
    /// Every request, in order.
    pub requests: Vec<GroupRequest>,
    /// Keep answers back until [`FakeGroup::release`].
    pub hold: bool,
    /// What [`GroupRequest::ReportStatistics`] is answered with.
    pub statistics: GroupStatistics,
    /// What [`GroupRequest::Abort`] is answered with.
    pub aborts: bool,
    /// The next request other than a reset fails with this.
    pub fail_next: Option<crate::spec::status::Status>,
    replies: VecDeque<GroupReply>,
}

impl FakeGroup {
    /// Takes a request.
    pub fn handle_request(&mut self, request: GroupRequest) {
        self.requests.push(request);
        let reply = match request {
            GroupRequest::Reset => GroupReply::ResetDone,
            _ if self.fail_next.is_some() => GroupReply::Failed(self.fail_next.take().expect("just seen")),
            GroupRequest::Abort { .. } => GroupReply::Abort { aborted: self.aborts },
            GroupRequest::ReportStatistics => GroupReply::Statistics(self.statistics),
            _ => GroupReply::Done,
        };
        self.replies.push_back(reply);
    }

    /// The next answer, unless answers are held.
    pub fn poll_reply(&mut self) -> Option<GroupReply> {
        if self.hold { None } else { self.replies.pop_front() }
    }

    /// Answers from now on, also what was held.
    pub fn release(&mut self) {
        self.hold = false;
    }

    /// Forgets the requests so far.
    pub fn forget(&mut self) {
        self.requests.clear();
    }
}
