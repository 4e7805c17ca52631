//! Get Log Page (NVM Express Base Specification 2.0, section 5.16).
//!
//! The offset is checked before anything else: a page is produced as if it were whole, and only the window
//! that was asked for is written.

use super::page::PageWriter;
use super::{Answer, Controller};
use crate::memory::DmaMemory;
use crate::message::GroupRequest;
use crate::spec::admin::{ALL_NAMESPACES, GetLogPageDword10};
use crate::spec::log::{
    CHANGED_NAMESPACES_BYTES, COMMAND_EFFECTS_BYTES, Effects, FIRMWARE_SLOT_BYTES, IDENTIFIER_LIST_BYTES,
    LogId, SMART_BYTES,
};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::support;
use zerocopy::IntoBytes;

/// What a Get Log Page command asks for, checked.
#[derive(Clone, Copy, Debug)]
struct LogRequest {
    id: LogId,
    offset: u64,
    len_bytes: u32,
    retain_event: bool,
}

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    pub(super) fn get_log_page(
        &mut self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        let request = self.parse_log_request(command)?;
        if request.id == LogId::SMART {
            // The counters are the groups'.
            return Ok(Answer::ForAllGroups(GroupRequest::ReportStatistics));
        }
        self.write_log_page(memory, command, request)
    }

    /// Every group has reported its statistics.
    pub(super) fn finish_smart_log(
        &mut self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        let request = self.parse_log_request(command)?;
        self.write_log_page(memory, command, request)
    }

    fn parse_log_request(&self, command: &SubmissionQueueEntry) -> Result<LogRequest, Status> {
        let dword10 = GetLogPageDword10::from_bits(command.cdw10.get());
        let dword14 = command.cdw14.get();
        let offset = u64::from(command.cdw13.get()) << 32 | u64::from(command.cdw12.get());
        let page = support::log_page(dword10.lid()).ok_or(Status::INVALID_LOG_PAGE.dnr())?;
        // Bit 23 (Offset Type) makes the offset an index, which no page here has.
        if offset > self.log_page_bytes(page.id) || offset & 3 != 0 || dword14 & 1 << 23 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        // Command Set Identifier, bits 31:24: 0 is the NVM command set.
        if page.id == LogId::COMMAND_EFFECTS && dword14 >> 24 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        // There is no SMART log of a namespace (LPA bit 0 is 0).
        let nsid = command.nsid.get();
        if page.id == LogId::SMART && nsid != 0 && nsid != ALL_NAMESPACES {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let dwords_z = u64::from(command.cdw11.get() & 0xffff) << 16 | u64::from(dword10.numdl());
        let len_bytes = dwords_z.wrapping_add(1).wrapping_mul(4);
        let len_bytes = match u32::try_from(len_bytes) {
            Ok(len_bytes) if len_bytes <= self.config.mdts_bytes => len_bytes,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(LogRequest { id: page.id, offset, len_bytes, retain_event: dword10.rae() })
    }

    fn log_page_bytes(&self, id: LogId) -> u64 {
        match id {
            LogId::ERROR_INFORMATION => (self.errors.capacity() as u64).wrapping_mul(64),
            LogId::SMART => SMART_BYTES,
            LogId::FIRMWARE_SLOT => FIRMWARE_SLOT_BYTES,
            LogId::CHANGED_NAMESPACES => CHANGED_NAMESPACES_BYTES,
            LogId::COMMAND_EFFECTS => COMMAND_EFFECTS_BYTES,
            _ => IDENTIFIER_LIST_BYTES,
        }
    }

    fn write_log_page(
        &mut self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
        request: LogRequest,
    ) -> Result<Answer, Status> {
        let mut page = self.page_writer(memory, command, request.offset, request.len_bytes);
        match request.id {
            LogId::SUPPORTED_LOG_PAGES => {
                for id in support::LOG_PAGES.iter().map(|page| page.id.0) {
                    // Log Supported (LSUPP) is bit 0.
                    page.at(u64::from(id).wrapping_mul(4), &1u32.to_le_bytes())?;
                }
            }
            LogId::ERROR_INFORMATION => {
                for entry in self.errors.newest_first() {
                    page.bytes(entry.as_bytes())?;
                }
            }
            LogId::SMART => {
                let warning = self.features.temperature_warning(self.smart.temperature());
                page.bytes(self.smart.page(self.smart_counters(), warning).as_bytes())?;
            }
            LogId::FIRMWARE_SLOT => {
                // Active Firmware Info: slot 1; its revision is at byte 8.
                page.bytes(&[1])?;
                page.at(8, &self.config.firmware.padded())?;
            }
            LogId::CHANGED_NAMESPACES => {
                for nsid in self.namespaces.changed() {
                    page.bytes(&nsid.to_le_bytes())?;
                }
            }
            LogId::COMMAND_EFFECTS => self.write_command_effects(&mut page)?,
            LogId::FEATURE_EFFECTS => {
                for id in 0..=u8::MAX {
                    let feature = support::find_feature(id, self.config.write_cache);
                    let effects = feature.map_or(Effects::new(), support::Feature::effects);
                    page.bytes(&effects.into_bits().to_le_bytes())?;
                }
            }
            _ => {}
        }
        page.finish()?;
        if !request.retain_event {
            self.events.log_page_read(request.id);
            if request.id == LogId::CHANGED_NAMESPACES {
                self.namespaces.clear_changed();
            }
        }
        Ok(Answer::Result(0))
    }

    fn write_command_effects(&self, page: &mut PageWriter<'_, impl DmaMemory>) -> Result<(), Status> {
        for opcode in 0..=u8::MAX {
            let command = support::admin_command(opcode, self.config.doorbell_buffer);
            let effects = command.map_or(Effects::new(), |command| command.effects);
            page.bytes(&effects.into_bits().to_le_bytes())?;
        }
        for opcode in 0..=u8::MAX {
            let effects = support::io_command(opcode).map_or(Effects::new(), |command| command.effects);
            page.bytes(&effects.into_bits().to_le_bytes())?;
        }
        Ok(())
    }
}
