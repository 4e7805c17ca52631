//! Counters of all threads of a device, gathered for whoever asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use doorbell_core::doorbell::{head_index, tail_index};
use doorbell_core::engine::ControllerEngine;

use super::model::{DoorbellMessages, Model};
use super::{DoorbellMode, MAX_QUEUES};
use crate::ctl::protocol::{Answer, PollerStatistics, QueueStatistics, Statistics};
use crate::mailbox::Mailbox;
use crate::poller::{GroupReport, PollerCounters, PollerMail};

/// The counters of a poller, as seen from outside.
#[derive(Debug)]
pub(super) struct PollerGauge {
    pub(super) counters: Arc<PollerCounters>,
    pub(super) mailbox: Arc<Mailbox<PollerMail>>,
}

/// Gathers the reports of all groups.
#[derive(Debug)]
pub(super) struct ReportCollector {
    pollers: Vec<PollerGauge>,
    reports: Vec<GroupReport>,
    asking: Vec<Sender<Result<Answer, String>>>,
    left: usize,
}

impl ReportCollector {
    pub(super) fn new(pollers: Vec<PollerGauge>) -> Self {
        Self { pollers, reports: Vec::new(), asking: Vec::new(), left: 0 }
    }

    /// Somebody asks; the groups have been asked to report.
    pub(super) fn ask(&mut self, reply: Sender<Result<Answer, String>>, groups: usize) {
        self.asking.push(reply);
        self.left += groups;
    }

    /// A group has reported. Returns who asked, when all groups have reported as often as they were asked.
    pub(super) fn add(&mut self, report: GroupReport) -> Vec<Sender<Result<Answer, String>>> {
        self.reports.retain(|other| other.group != report.group);
        self.reports.push(report);
        self.reports.sort_by_key(|report| report.group);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 { std::mem::take(&mut self.asking) } else { Vec::new() }
    }

    /// All that is known, but for what the control thread knows by itself.
    pub(super) fn statistics(&self, model: &Model) -> Statistics {
        let interrupts = &model.shared.interrupts;
        let raised = (0..MAX_QUEUES as u16 + 1).map(|vector| interrupts.raised(vector)).sum::<u64>();
        Statistics {
            engine: model.engine.clone(),
            ready: model.controller.is_ready(),
            shadow_doorbells: model.controller.doorbell_buffer().is_some(),
            doorbells: match model.shared.doorbell_mode {
                DoorbellMode::Mapped => "mapped".into(),
                DoorbellMode::Shadow => "shadow".into(),
            },
            doorbell_messages: model.doorbell_messages.all(),
            io_doorbell_messages: model.doorbell_messages.all()
                - model.doorbell_messages.of(0)
                - model.doorbell_messages.of(1),
            read_commands: self.reports.iter().map(|report| report.statistics.read_commands).sum(),
            write_commands: self.reports.iter().map(|report| report.statistics.write_commands).sum(),
            ioeventfds: model.ioeventfds.len() as u64,
            interrupts: raised + interrupts.intx_raised(),
            queues: self.reports.iter().flat_map(|report| queues(report, &model.doorbell_messages)).collect(),
            pollers: self.pollers.iter().map(poller).collect(),
            ..Statistics::default()
        }
    }
}

fn queues<'a>(
    report: &'a GroupReport,
    messages: &'a DoorbellMessages,
) -> impl Iterator<Item = QueueStatistics> + 'a {
    report.queues.iter().map(move |queue| {
        let counted = &queue.statistics;
        let nanoseconds = |quantile| queue.latency.quantile(quantile).map(|time| time.as_nanos() as u64);
        QueueStatistics {
            sqid: counted.sqid,
            cqid: counted.cqid,
            group: report.group,
            commands: counted.commands,
            errors: counted.errors,
            bytes_read: counted.bytes_read,
            bytes_written: counted.bytes_written,
            doorbell_messages: messages.of(tail_index(counted.sqid)) + messages.of(head_index(counted.cqid)),
            doorbell_reads: counted.doorbell_reads,
            rearms_won: counted.rearms_won,
            rearms_lost: counted.rearms_lost,
            cq_full: counted.cq_full,
            interrupts: counted.interrupts,
            latency_ns_log2: queue.latency.buckets().to_vec(),
            latency_p50_ns: nanoseconds(0.5),
            latency_p99_ns: nanoseconds(0.99),
        }
    })
}

fn poller(gauge: &PollerGauge) -> PollerStatistics {
    PollerStatistics {
        sleeps: gauge.counters.sleeps.load(Ordering::Relaxed),
        wakes: gauge.mailbox.waker().wakes(),
        io_uring_enters: gauge.counters.enters.load(Ordering::Relaxed),
    }
}
