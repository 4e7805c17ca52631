//! Set Features and Get Features (NVM Express Base Specification 2.0, sections 5.15 and 5.27).
//!
//! No feature is saveable: every controller reset brings the defaults back.

use super::config::ControllerConfig;
use super::smart::{WARNING_BIT_TEMPERATURE, WARNING_TEMPERATURE};
use super::{Answer, Controller};
use crate::message::{Coalescing, GroupRequest};
use crate::spec::admin::{ALL_NAMESPACES, GetFeaturesDword10, SetFeaturesDword10};
use crate::spec::feature::{
    EVENT_CRITICAL_WARNINGS, EVENT_NAMESPACE_ATTRIBUTE, ErrorRecovery, FeatureId, InterruptCoalescing,
    InterruptVectorConfiguration, NumberOfQueues, PowerManagement, SELECT_CAPABILITIES, SELECT_CURRENT,
    SELECT_DEFAULT, SELECT_SAVED, TemperatureThreshold,
};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::support;

/// Supported capabilities: bit 1 namespace specific, bit 2 changeable (bit 0, saveable, is never set).
const CAPABILITY_NAMESPACE_SPECIFIC: u32 = 1 << 1;
const CAPABILITY_CHANGEABLE: u32 = 1 << 2;

/// The features of the controller; Error Recovery is kept with each namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    pub(super) arbitration: u32,
    pub(super) power: u32,
    pub(super) over_temperature: u16,
    pub(super) under_temperature: u16,
    pub(super) write_cache: bool,
    pub(super) queues: NumberOfQueues,
    pub(super) coalescing: Coalescing,
    /// Coalescing Disable, bit by vector.
    pub(super) uncoalesced: u128,
    pub(super) write_atomicity: u32,
    pub(super) events: u32,
}

impl Features {
    /// Every feature 0.
    pub(super) const fn blank() -> Self {
        Self {
            arbitration: 0,
            power: 0,
            over_temperature: 0,
            under_temperature: 0,
            write_cache: false,
            queues: NumberOfQueues::new(),
            coalescing: Coalescing { threshold_z: 0, time_100us: 0 },
            uncoalesced: 0,
            write_atomicity: 0,
            events: 0,
        }
    }

    /// The defaults.
    pub(super) const fn new(config: &ControllerConfig) -> Self {
        let queues_z = config.io_queues.saturating_sub(1);
        Self {
            // Arbitration Burst 111b: no limit.
            arbitration: 7,
            over_temperature: WARNING_TEMPERATURE,
            write_cache: config.write_cache,
            queues: NumberOfQueues::new().with_submission_z(queues_z).with_completion_z(queues_z),
            ..Self::blank()
        }
    }

    /// The highest submission queue identifier.
    pub(super) const fn submission_queues(&self) -> u16 {
        self.queues.submission_z().saturating_add(1)
    }

    /// The highest completion queue identifier.
    pub(super) const fn completion_queues(&self) -> u16 {
        self.queues.completion_z().saturating_add(1)
    }

    /// Whether the driver wants Namespace Attribute Changed events.
    pub(super) const fn wants_namespace_events(&self) -> bool {
        self.events & EVENT_NAMESPACE_ATTRIBUTE != 0
    }

    /// Whether the driver wants events for these bits of Critical Warning.
    pub(super) const fn wants_warning(&self, critical_warning: u8) -> bool {
        self.events & EVENT_CRITICAL_WARNINGS & critical_warning as u32 != 0
    }

    /// Critical Warning of a composite temperature.
    pub(super) const fn temperature_warning(&self, kelvins: u16) -> u8 {
        let past = kelvins >= self.over_temperature || kelvins <= self.under_temperature;
        if past { WARNING_BIT_TEMPERATURE } else { 0 }
    }

    /// Whether a queue on this vector takes part in interrupt coalescing.
    pub(super) const fn coalesces(&self, vector: u16) -> bool {
        self.uncoalesced & vector_bit(vector) == 0
    }

    /// A request that set a feature has been obeyed by every group.
    pub(super) fn groups_obeyed(&mut self, request: &GroupRequest) {
        match *request {
            GroupRequest::SetCoalescing(coalescing) => self.coalescing = coalescing,
            GroupRequest::SetWriteCache { enabled } => self.write_cache = enabled,
            GroupRequest::SetVectorCoalescing { vector, enabled } => {
                self.uncoalesced |= vector_bit(vector);
                if enabled {
                    self.uncoalesced ^= vector_bit(vector);
                }
            }
            _ => {}
        }
    }

    /// Dword 0 of Get Features for a feature of the controller.
    fn value(&self, id: FeatureId, dword11: u32, vectors: u16) -> Result<u32, Status> {
        Ok(match id {
            FeatureId::ARBITRATION => self.arbitration,
            FeatureId::POWER_MANAGEMENT => self.power,
            FeatureId::TEMPERATURE_THRESHOLD => {
                let threshold = TemperatureThreshold::from_bits(dword11);
                u32::from(match (threshold.tmpsel(), threshold.thsel()) {
                    (0, 0) => self.over_temperature,
                    (0, 1) => self.under_temperature,
                    _ => return Err(Status::INVALID_FIELD.dnr()),
                })
            }
            FeatureId::VOLATILE_WRITE_CACHE => u32::from(self.write_cache),
            FeatureId::NUMBER_OF_QUEUES => self.queues.into_bits(),
            FeatureId::INTERRUPT_COALESCING => InterruptCoalescing::new()
                .with_thr_z(self.coalescing.threshold_z)
                .with_time(self.coalescing.time_100us)
                .into_bits(),
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let iv = InterruptVectorConfiguration::from_bits(dword11).iv();
                if iv >= vectors {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                InterruptVectorConfiguration::new().with_iv(iv).with_cd(!self.coalesces(iv)).into_bits()
            }
            FeatureId::WRITE_ATOMICITY => self.write_atomicity,
            FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION => self.events,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        })
    }
}

const fn vector_bit(vector: u16) -> u128 {
    // A shift of 128 bits by a variable is a function on machines of 64.
    let bit = 1u64.wrapping_shl((vector & 63) as u32) as u128;
    match vector {
        0..=63 => bit,
        64..=127 => bit << 64,
        _ => 0,
    }
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    pub(super) fn get_features(&self, command: &SubmissionQueueEntry) -> Result<Answer, Status> {
        let dword10 = GetFeaturesDword10::from_bits(command.cdw10.get());
        let feature = support::find_feature(dword10.fid(), self.config.write_cache)
            .ok_or(Status::INVALID_FIELD.dnr())?;
        if dword10.sel() > SELECT_CAPABILITIES {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if dword10.sel() == SELECT_CAPABILITIES {
            let scope = if feature.namespace_specific { CAPABILITY_NAMESPACE_SPECIFIC } else { 0 };
            return Ok(Answer::Result(CAPABILITY_CHANGEABLE | scope));
        }
        if feature.namespace_specific {
            let tler = self.namespaces.time_limit(command.nsid.get())?;
            let tler = if dword10.sel() == SELECT_CURRENT { tler } else { 0 };
            return Ok(Answer::Result(ErrorRecovery::new().with_tler(tler).into_bits()));
        }
        let dword11 = command.cdw11.get();
        let defaults;
        let features = match dword10.sel() {
            // What can't be saved has its default as saved value.
            SELECT_DEFAULT | SELECT_SAVED => {
                defaults = Features::new(&self.config);
                &defaults
            }
            _ => &self.features,
        };
        Ok(Answer::Result(features.value(feature.id, dword11, self.config.vectors)?))
    }

    pub(super) fn set_features(&mut self, command: &SubmissionQueueEntry) -> Result<Answer, Status> {
        let dword10 = SetFeaturesDword10::from_bits(command.cdw10.get());
        let feature = support::find_feature(dword10.fid(), self.config.write_cache)
            .ok_or(Status::INVALID_FIELD.dnr())?;
        if dword10.sv() {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        let nsid = command.nsid.get();
        let value = command.cdw11.get();
        if feature.namespace_specific {
            let recovery = ErrorRecovery::from_bits(value);
            // DULBE needs NSFEAT bit 2, which no namespace has.
            if recovery.dulbe() {
                return Err(Status::INVALID_FIELD.dnr());
            }
            self.namespaces.set_time_limit(nsid, recovery.tler())?;
            return Ok(Answer::Result(0));
        }
        if nsid != 0 && nsid != ALL_NAMESPACES {
            self.namespaces.check_nsid(nsid)?;
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr());
        }
        self.set_controller_feature(feature.id, value)
    }

    fn set_controller_feature(&mut self, id: FeatureId, value: u32) -> Result<Answer, Status> {
        let features = &mut self.features;
        match id {
            FeatureId::ARBITRATION => features.arbitration = value,
            FeatureId::POWER_MANAGEMENT => {
                // There is one power state.
                if PowerManagement::from_bits(value).ps() != 0 {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                features.power = value;
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let threshold = TemperatureThreshold::from_bits(value);
                match (threshold.tmpsel(), threshold.thsel()) {
                    (0 | 0xf, 0) => features.over_temperature = threshold.tmpth(),
                    (0 | 0xf, 1) => features.under_temperature = threshold.tmpth(),
                    _ => return Err(Status::INVALID_FIELD.dnr()),
                }
                self.check_temperature();
            }
            FeatureId::NUMBER_OF_QUEUES => return self.set_number_of_queues(value),
            FeatureId::VOLATILE_WRITE_CACHE => {
                return Ok(Answer::ForAllGroups(GroupRequest::SetWriteCache { enabled: value & 1 != 0 }));
            }
            FeatureId::INTERRUPT_COALESCING => {
                let coalescing = InterruptCoalescing::from_bits(value);
                let (threshold_z, time_100us) = (coalescing.thr_z(), coalescing.time());
                let coalescing = Coalescing { threshold_z, time_100us };
                return Ok(Answer::ForAllGroups(GroupRequest::SetCoalescing(coalescing)));
            }
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let configuration = InterruptVectorConfiguration::from_bits(value);
                let (vector, enabled) = (configuration.iv(), !configuration.cd());
                if vector >= self.config.vectors {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                return Ok(Answer::ForAllGroups(GroupRequest::SetVectorCoalescing { vector, enabled }));
            }
            FeatureId::WRITE_ATOMICITY => features.write_atomicity = value & 1,
            FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION => {
                features.events = value & (EVENT_CRITICAL_WARNINGS | EVENT_NAMESPACE_ATTRIBUTE);
                self.check_temperature();
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(Answer::Result(0))
    }

    fn set_number_of_queues(&mut self, value: u32) -> Result<Answer, Status> {
        let wanted = NumberOfQueues::from_bits(value);
        if wanted.submission_z() == 0xffff || wanted.completion_z() == 0xffff {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if !self.queues.is_empty() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let most_z = self.config.io_queues.saturating_sub(1);
        let queues = NumberOfQueues::new()
            .with_submission_z(wanted.submission_z().min(most_z))
            .with_completion_z(wanted.completion_z().min(most_z));
        self.features.queues = queues;
        Ok(Answer::Result(queues.into_bits()))
    }
}
