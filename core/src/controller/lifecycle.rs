//! Enabling, resets and shutdown.
//!
//! Read first: NVM Express Base Specification 2.0, sections 3.5 (initialization), 3.6 (shutdown) and 3.7
//! (resets).
//!
//! A reset is complete only when every group has answered [`GroupRequest::Reset`], because only then nothing
//! can touch guest memory on account of the old life; CSTS.RDY falls at that point and not before.
//!
//! [`GroupRequest::Reset`]: crate::message::GroupRequest::Reset

use super::admin_queue::AdminQueue;
use super::features::Features;
use super::{Controller, HostReply, HostRequest};
use crate::doorbell::Registers;
use crate::memory::{Access, DmaMemory};
use crate::place::Place;
use crate::spec::register::{AdminQueueAttributes, ControllerConfiguration};
use crate::sync::Ordering;

/// What resets the controller other than CC.EN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetKind {
    /// PCI Express Function Level Reset (and a reset of the whole machine).
    Flr,
    /// NVM Subsystem Reset; CSTS.NSSRO tells of it afterwards. A write to NSSR does this by itself.
    Nssr,
    /// The function went to D3hot, whose way back to D0 is a reset (No_Soft_Reset is 0).
    D3hot,
    /// The guest is gone without a shutdown: its process died or was disconnected.
    Disconnect,
}

/// Where the controller is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// CC.EN is 0, or was 1 for so short that nothing has happened yet.
    Disabled,
    /// CC.EN is 1 and the groups are being made ready.
    Enabling,
    /// Ready: admin commands run.
    Running,
    /// CC.EN is 1 but the configuration is impossible (CSTS.CFS).
    Failed,
    /// Every group is giving up its queues.
    Resetting,
}

/// Shutdown (CC.SHN, CSTS.SHST).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Shutdown {
    /// No shutdown.
    None,
    /// The groups are giving up their queues.
    Quiescing { abrupt: bool },
    /// The host is to be asked to flush.
    FlushDue { abrupt: bool },
    /// The host is flushing.
    Flushing,
    /// Complete: no command runs until a reset.
    Complete,
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    /// Resets the controller. Every register goes to its reset value; what a guest gave is forgotten before
    /// this returns, and [`Controller::quiesced`] says when nothing can touch its memory any more.
    pub fn reset(&mut self, kind: ResetKind) {
        let was_enabled = self.registers.configuration.en();
        if kind == ResetKind::Disconnect && was_enabled && self.shutdown != Shutdown::Complete {
            self.smart.count_unsafe_shutdown();
        }
        self.registers.configuration = ControllerConfiguration::new();
        self.registers.aqa = 0;
        self.registers.asq = 0;
        self.registers.acq = 0;
        self.begin_reset();
        if kind == ResetKind::Nssr {
            self.registers.status.set_nssro(true);
        }
    }

    /// Whether nothing of an earlier life, and no doorbell buffer that was given up, can touch guest memory any
    /// more: every group has answered.
    #[must_use]
    pub fn quiesced(&self) -> bool {
        self.groups.is_quiet()
    }

    /// Guest memory `address..address + len_bytes` is going away. Shadow doorbells that lie there are given up;
    /// once [`Controller::quiesced`] says so, no group looks at them any more.
    ///
    /// Queues that lie there are not given up: firmware's memory map changes under a running controller and
    /// comes back. A queue that really is gone becomes a Controller Fatal Status at its next use.
    pub fn handle_unmap(&mut self, address: u64, len_bytes: u64) {
        let page_bytes = self.page_bytes();
        let overlaps = |start: u64| {
            start < address.saturating_add(len_bytes) && address < start.saturating_add(page_bytes)
        };
        let touches =
            |buffer: &crate::message::DoorbellBuffer| overlaps(buffer.shadow) || overlaps(buffer.event_idx);
        if self.doorbell_buffer.as_ref().is_some_and(touches) {
            self.clear_doorbell_buffer();
        }
        if let Some(pending) = self.pending.as_mut() {
            pending.fail_if_doorbell_buffer(touches);
        }
    }

    pub(super) fn clear_doorbell_buffer(&mut self) {
        self.doorbell_buffer = None;
        if let Some(admin) = self.admin.as_mut() {
            admin.detach();
        }
        self.groups.clear_doorbell_buffers();
    }

    /// A guest wrote CC.
    pub(super) fn configuration_changed(&mut self, old: ControllerConfiguration) {
        let new = self.registers.configuration;
        if old.en() && !new.en() {
            self.begin_reset();
        }
        if !old.en() && new.en() {
            // A shutdown of the disabled controller that is still under way is called off.
            self.shutdown = Shutdown::None;
            self.registers.status.set_shst(0);
        }
        if new.shn() != 0 && self.shutdown == Shutdown::None {
            self.begin_shutdown(new.shn() == 2);
        }
    }

    /// Asks for [`HostRequest`]s to carry out, or `None`.
    #[must_use = "a shutdown waits for the reply"]
    pub fn poll_host_request(&mut self) -> Option<HostRequest> {
        match self.shutdown {
            Shutdown::FlushDue { abrupt } if !self.flush_under_way => {
                self.shutdown = Shutdown::Flushing;
                self.flush_under_way = true;
                Some(HostRequest::FlushAll { abrupt })
            }
            _ => None,
        }
    }

    /// The answer to a [`HostRequest`].
    pub fn handle_host_reply(&mut self, reply: HostReply) {
        match reply {
            HostReply::FlushAll(result) => {
                self.flush_under_way = false;
                if let Err(status) = result {
                    self.log_error(super::error_log::ControllerError::of_controller(status));
                }
                if self.shutdown == Shutdown::Flushing {
                    self.shutdown = Shutdown::Complete;
                    self.registers.status.set_shst(2);
                }
            }
        }
    }

    fn begin_shutdown(&mut self, abrupt: bool) {
        self.shutdown = Shutdown::Quiescing { abrupt };
        self.registers.status.set_shst(1);
        // Whatever is still in flight is given up: a driver has let its commands finish by now (section 3.6.1).
        if !matches!(self.lifecycle, Lifecycle::Disabled | Lifecycle::Resetting) {
            self.pending = Place::Empty;
            self.groups.reset_all();
            self.namespaces.groups_were_reset();
        }
        self.doorbell_buffer = None;
        if let Some(admin) = self.admin.as_mut() {
            admin.detach();
        }
    }

    /// Forgets all that belongs to the driver, at once, and has every group do the same.
    fn begin_reset(&mut self) {
        let nothing_to_forget =
            self.lifecycle == Lifecycle::Disabled || self.lifecycle == Lifecycle::Resetting;
        self.pending = Place::Empty;
        self.admin = Place::Empty;
        self.doorbell_buffer = None;
        self.interrupt_due = false;
        self.queues.clear();
        self.features = Features::new(&self.config);
        self.events.reset();
        self.namespaces.controller_was_reset();
        self.shutdown = Shutdown::None;
        self.registers.interrupt_mask = 0;
        self.registers.status.set_cfs(false);
        self.registers.status.set_shst(0);
        if !nothing_to_forget {
            self.lifecycle = Lifecycle::Resetting;
            self.groups.reset_all();
            self.namespaces.groups_were_reset();
        }
    }

    /// Moves the state machine as far as it goes now.
    pub(super) fn advance(&mut self, memory: &impl DmaMemory, registers: &Registers) {
        if self.lifecycle == Lifecycle::Resetting && self.groups.is_quiet() {
            // Not earlier: a group that still has queues would take a zeroed tail for new commands.
            zero(registers);
            self.registers.status.set_rdy(false);
            self.lifecycle = Lifecycle::Disabled;
        }
        if let Shutdown::Quiescing { abrupt } = self.shutdown
            && self.groups.is_quiet()
        {
            self.shutdown = Shutdown::FlushDue { abrupt };
        }
        let enabled = self.registers.configuration.en();
        if self.lifecycle == Lifecycle::Disabled && enabled && self.groups.is_quiet() {
            self.lifecycle = Lifecycle::Enabling;
        }
        // A driver may use a namespace as soon as it sees it, so every group knows of all of them first.
        if self.lifecycle == Lifecycle::Enabling && self.namespaces.all_known_to_groups() {
            zero(registers);
            self.enable(memory);
        }
    }

    fn enable(&mut self, memory: &impl DmaMemory) {
        match self.admin_queue(memory) {
            Some(admin) => {
                self.page_shift = page_shift(self.registers.configuration);
                self.admin = Place::Full(admin);
                self.lifecycle = Lifecycle::Running;
                self.registers.status.set_rdy(true);
            }
            None => {
                self.lifecycle = Lifecycle::Failed;
                self.registers.status.set_cfs(true);
            }
        }
    }

    /// The admin queue that AQA, ASQ, ACQ and CC describe, or `None` where they describe none that can work.
    ///
    /// CC.IOSQES and CC.IOCQES may still be set after enabling; creating an I/O queue checks them.
    fn admin_queue(&self, memory: &impl DmaMemory) -> Option<AdminQueue> {
        let registers = &self.registers;
        let configuration = registers.configuration;
        let page_shift = page_shift(configuration);
        let page_mask = 1u64.wrapping_shl(u32::from(page_shift)).wrapping_sub(1);
        let possible = configuration.css() == 0
            && configuration.ams() == 0
            && (self.config.page_shift_min..=self.config.page_shift_max).contains(&page_shift)
            && registers.asq & page_mask == 0
            && registers.acq & page_mask == 0;
        if !possible {
            return None;
        }
        let aqa = AdminQueueAttributes::from_bits(registers.aqa);
        let submission = u32::from(aqa.asqs_z()).wrapping_add(1);
        let completion = u32::from(aqa.acqs_z()).wrapping_add(1);
        if submission < 2 || completion < 2 {
            return None;
        }
        memory.check(registers.asq, u64::from(submission).wrapping_mul(64), Access::Read).ok()?;
        memory.check(registers.acq, u64::from(completion).wrapping_mul(16), Access::Write).ok()?;
        Some(AdminQueue::new(registers.asq, submission, registers.acq, completion))
    }
}

/// Memory page size of CC.MPS as a power of two.
fn page_shift(configuration: ControllerConfiguration) -> u8 {
    configuration.mps().wrapping_add(12)
}

fn zero(registers: &Registers) {
    for register in registers {
        register.store(0, Ordering::Relaxed);
    }
}
