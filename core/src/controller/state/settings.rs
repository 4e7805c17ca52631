//! Configuration, registers and features as records.

use super::super::config::{Ascii, ControllerConfig};
use super::super::features::Features;
use super::super::register::RegisterFile;
use crate::message::Coalescing;
use crate::spec::feature::{EVENT_CRITICAL_WARNINGS, EVENT_NAMESPACE_ATTRIBUTE, NumberOfQueues};
use crate::spec::register::{AQA_WRITABLE, BASE_WRITABLE, CC_WRITABLE, ControllerConfiguration};
use crate::state::controller::{ConfigRecord, FeaturesRecord, RegistersRecord};
use crate::state::{StateError, ensure};

impl ConfigRecord {
    #[inline(never)]
    pub(super) fn new(config: &ControllerConfig) -> Self {
        let ControllerConfig {
            groups,
            io_queues,
            max_queue_entries,
            mdts_bytes,
            vectors,
            page_shift_min,
            page_shift_max,
            timeout_500ms,
            doorbell_buffer,
            sgl,
            write_cache,
            controller_id,
            vendor_id,
            subsystem_vendor_id,
            ieee_oui,
            serial,
            model,
            firmware,
            subsystem_nqn,
        } = *config;
        Self {
            groups: groups.into(),
            io_queues: io_queues.into(),
            max_queue_entries: max_queue_entries.into(),
            mdts_bytes: mdts_bytes.into(),
            vectors: vectors.into(),
            page_shift_min,
            page_shift_max,
            timeout_500ms,
            doorbell_buffer: doorbell_buffer.into(),
            sgl: sgl.into(),
            write_cache: write_cache.into(),
            controller_id: controller_id.into(),
            vendor_id: vendor_id.into(),
            subsystem_vendor_id: subsystem_vendor_id.into(),
            ieee_oui,
            serial: serial.padded(),
            serial_len: serial.len(),
            model: model.padded(),
            model_len: model.len(),
            firmware: firmware.padded(),
            firmware_len: firmware.len(),
            subsystem_nqn: subsystem_nqn.padded(),
            subsystem_nqn_len: subsystem_nqn.len(),
        }
    }

    /// The configuration; another one, where the record is none that [`ConfigRecord::new`] makes.
    pub(super) fn restore(&self) -> ControllerConfig {
        ControllerConfig {
            groups: self.groups.get(),
            io_queues: self.io_queues.get(),
            max_queue_entries: self.max_queue_entries.get(),
            mdts_bytes: self.mdts_bytes.get(),
            vectors: self.vectors.get(),
            page_shift_min: self.page_shift_min,
            page_shift_max: self.page_shift_max,
            timeout_500ms: self.timeout_500ms,
            doorbell_buffer: self.doorbell_buffer != 0,
            sgl: self.sgl != 0,
            write_cache: self.write_cache != 0,
            controller_id: self.controller_id.get(),
            vendor_id: self.vendor_id.get(),
            subsystem_vendor_id: self.subsystem_vendor_id.get(),
            ieee_oui: self.ieee_oui,
            serial: text(&self.serial, self.serial_len),
            model: text(&self.model, self.model_len),
            firmware: text(&self.firmware, self.firmware_len),
            subsystem_nqn: text(&self.subsystem_nqn, self.subsystem_nqn_len),
        }
    }
}

fn text<const N: usize>(bytes: &[u8; N], len: u8) -> Ascii<N> {
    Ascii::from_bytes(bytes.get(..len.into()).unwrap_or_default())
}

impl ControllerConfig {
    /// Whether tables of these sizes and a host that has made `own` have room for the configuration of a state.
    pub(super) fn fits(&self, own: &Self, groups: usize, queues: usize) -> Result<(), StateError> {
        if usize::from(self.groups) > groups {
            return Err(StateError::TooSmall("groups"));
        }
        if usize::from(self.io_queues) > queues {
            return Err(StateError::TooSmall("queues"));
        }
        if self.groups != own.groups {
            return Err(StateError::Mismatch("another number of queue groups"));
        }
        if self.io_queues > own.io_queues
            || self.vectors > own.vectors
            || self.max_queue_entries > own.max_queue_entries
        {
            return Err(StateError::Mismatch(
                "fewer queues, queue entries or vectors than the guest was told",
            ));
        }
        if self.mdts_bytes > own.mdts_bytes {
            return Err(StateError::Mismatch("MDTS is less than the guest was told"));
        }
        if own.write_cache && !self.write_cache {
            return Err(StateError::Mismatch("a volatile write cache that the guest wasn't told of"));
        }
        Ok(())
    }
}

impl RegistersRecord {
    pub(super) fn new(registers: &RegisterFile) -> Self {
        let RegisterFile { capabilities: _, interrupt_mask, configuration, status, aqa, asq, acq } =
            *registers;
        Self {
            interrupt_mask: interrupt_mask.into(),
            cc: configuration.into_bits().into(),
            aqa: aqa.into(),
            rdy: status.rdy().into(),
            cfs: status.cfs().into(),
            nssro: status.nssro().into(),
            reserved: 0,
            asq: asq.into(),
            acq: acq.into(),
        }
    }

    pub(super) fn restore(&self, registers: &mut RegisterFile) {
        registers.interrupt_mask = self.interrupt_mask.get();
        registers.configuration = ControllerConfiguration::from_bits(self.cc.get() & CC_WRITABLE);
        registers.status.set_rdy(self.rdy != 0);
        registers.status.set_cfs(self.cfs != 0);
        registers.status.set_nssro(self.nssro != 0);
        registers.aqa = self.aqa.get() & AQA_WRITABLE;
        registers.asq = self.asq.get() & BASE_WRITABLE;
        registers.acq = self.acq.get() & BASE_WRITABLE;
    }
}

impl FeaturesRecord {
    pub(super) fn new(features: &Features) -> Self {
        let Features {
            arbitration,
            power,
            over_temperature,
            under_temperature,
            write_cache,
            queues,
            coalescing: Coalescing { threshold_z, time_100us },
            uncoalesced,
            write_atomicity,
            events,
        } = *features;
        Self {
            arbitration: arbitration.into(),
            power: power.into(),
            over_temperature: over_temperature.into(),
            under_temperature: under_temperature.into(),
            write_cache: write_cache.into(),
            threshold_z,
            time_100us,
            reserved: 0,
            queues: queues.into_bits().into(),
            write_atomicity: write_atomicity.into(),
            events: events.into(),
            uncoalesced: uncoalesced.into(),
        }
    }

    pub(super) fn restore(&self, config: &ControllerConfig) -> Result<Features, StateError> {
        let queues = NumberOfQueues::from_bits(self.queues.get());
        let possible = queues.submission_z().max(queues.completion_z()) < config.io_queues;
        ensure(possible, "the number of queues")?;
        Ok(Features {
            arbitration: self.arbitration.get(),
            power: self.power.get(),
            over_temperature: self.over_temperature.get(),
            under_temperature: self.under_temperature.get(),
            write_cache: self.write_cache != 0,
            queues,
            coalescing: Coalescing { threshold_z: self.threshold_z, time_100us: self.time_100us },
            uncoalesced: self.uncoalesced.get(),
            write_atomicity: self.write_atomicity.get(),
            events: self.events.get() & (EVENT_CRITICAL_WARNINGS | EVENT_NAMESPACE_ATTRIBUTE),
        })
    }
}
