//! Identify (NVM Express Base Specification 2.0, section 5.17).
//!
//! Beyond what 1.4 demands there are the structures of CNS 05h to 08h, which newer drivers ask for whatever
//! version is reported.

use super::events::AERL_Z;
use super::namespaces::Entry;
use super::page::PageWriter;
use super::register::VERSION;
use super::smart::{CRITICAL_TEMPERATURE, WARNING_TEMPERATURE};
use super::{Answer, Controller};
use crate::memory::DmaMemory;
use crate::spec::admin::IdentifyDword10;
use crate::spec::identify::{
    ADMIN_ATTRIBUTES_OFFSET, AdminAttributes, Cns, ControllerCapabilities, IDENTIFY_BYTES, IdentifyNamespace,
    IndependentNamespace, NIDT_CSI, NIDT_EUI64, NIDT_NGUID, NIDT_UUID, NVM_ATTRIBUTES_OFFSET, NvmAttributes,
    POWER_STATES_OFFSET, SGLS_BIT_BUCKET, SGLS_SUPPORTED, SUBNQN_OFFSET,
};
use crate::spec::queue_entry::SubmissionQueueEntry;
use crate::spec::status::Status;
use crate::support;
use zerocopy::IntoBytes;

/// Abort Command Limit (ACL), 0's based. Aborts are carried out one after the other, so the limit can't be
/// exceeded.
const ACL_Z: u8 = 3;

/// OAES bit 8: Namespace Attribute Notices.
const OAES_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;

/// Entries of a namespace list.
const NAMESPACE_LIST_ENTRIES: usize = 1024;

impl<const GROUPS: usize, const QUEUES: usize, const NAMESPACES: usize, const ERRORS: usize>
    Controller<GROUPS, QUEUES, NAMESPACES, ERRORS>
{
    pub(super) fn identify(
        &self,
        memory: &impl DmaMemory,
        command: &SubmissionQueueEntry,
    ) -> Result<Answer, Status> {
        let cns = Cns(IdentifyDword10::from_bits(command.cdw10.get()).cns());
        // Command Set Identifier (CSI), dword 11 bits 31:24, where the CNS uses it; 0 is the NVM command set.
        let csi = command.cdw11.get() >> 24;
        let uses_csi = matches!(
            cns,
            Cns::COMMAND_SET_NAMESPACE | Cns::COMMAND_SET_CONTROLLER | Cns::COMMAND_SET_ACTIVE_NAMESPACES
        );
        if uses_csi && csi != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let nsid = command.nsid.get();
        let mut page = self.page_writer(memory, command, 0, IDENTIFY_BYTES);
        match cns {
            Cns::NAMESPACE => {
                let entry = self.namespaces.find(nsid)?;
                self.write_namespace(&mut page, entry)?;
            }
            Cns::CONTROLLER => self.write_controller(&mut page)?,
            Cns::ACTIVE_NAMESPACES | Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
                if nsid >= 0xffff_fffe {
                    return Err(Status::INVALID_NAMESPACE.dnr());
                }
                write_list(&mut page, self.namespaces.active_above(nsid))?;
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let entry = self.namespaces.find(nsid)?.ok_or(Status::INVALID_FIELD.dnr())?;
                write_descriptors(&mut page, entry)?;
            }
            // Without protection information or limits of its own, all of it is 0.
            Cns::COMMAND_SET_NAMESPACE => {
                self.namespaces.find(nsid)?;
            }
            Cns::COMMAND_SET_CONTROLLER => {}
            Cns::INDEPENDENT_NAMESPACE => {
                let entry = self.namespaces.find(nsid)?;
                write_independent(&mut page, entry)?;
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        page.finish()?;
        Ok(Answer::Result(0))
    }

    fn write_controller(&self, page: &mut PageWriter<'_, impl DmaMemory>) -> Result<(), Status> {
        let config = &self.config;
        let capabilities = ControllerCapabilities {
            vid: config.vendor_id.into(),
            ssvid: config.subsystem_vendor_id.into(),
            sn: config.serial.padded(),
            mn: config.model.padded(),
            fr: config.firmware.padded(),
            rab: 5,
            ieee: config.ieee_oui,
            mdts: config.mdts(),
            cntlid: config.controller_id.into(),
            ver: VERSION.into(),
            rtd3r: 500_000.into(),
            // Drivers take this as the time that a shutdown, with its flush, may need.
            rtd3e: 30_000_000.into(),
            oaes: OAES_NAMESPACE_ATTRIBUTE.into(),
            cntrltype: 1,
            ..zerocopy::FromZeros::new_zeroed()
        };
        page.bytes(capabilities.as_bytes())?;
        page.at(ADMIN_ATTRIBUTES_OFFSET, self.admin_attributes().as_bytes())?;
        page.at(NVM_ATTRIBUTES_OFFSET, self.nvm_attributes().as_bytes())?;
        page.at(SUBNQN_OFFSET, config.subsystem_nqn.as_bytes())?;
        // Power State Descriptor 0 says nothing of power or latency.
        page.at(POWER_STATES_OFFSET, &[0; 32])
    }

    #[expect(clippy::cast_possible_truncation, reason = "ERRORS is bounded where the controller is made")]
    fn admin_attributes(&self) -> AdminAttributes {
        let offered =
            |command: &&support::AdminCommand| self.config.doorbell_buffer || !command.needs_doorbell_buffer;
        let commands = support::ADMIN_COMMANDS.iter().filter(offered);
        let pages = support::LOG_PAGES.iter();
        AdminAttributes {
            oacs: commands.fold(0, |bits, command| bits | command.oacs).into(),
            acl_z: ACL_Z,
            aerl_z: AERL_Z,
            // One slot, which can't be written.
            frmw: 1 << 1 | 1,
            lpa: pages.fold(support::LPA_EXTENDED_DATA, |bits, page| bits | page.lpa),
            elpe_z: self.errors.capacity().saturating_sub(1) as u8,
            wctemp: WARNING_TEMPERATURE.into(),
            cctemp: CRITICAL_TEMPERATURE.into(),
            ..AdminAttributes::default()
        }
    }

    fn nvm_attributes(&self) -> NvmAttributes {
        let commands = support::IO_COMMANDS.iter();
        let oncs = commands.fold(support::ONCS_SELECT_AND_SAVE, |bits, command| bits | command.oncs);
        NvmAttributes {
            sqes: 0x66,
            cqes: 0x44,
            nn: self.namespaces.highest_nsid().into(),
            oncs: oncs.into(),
            // Flush with NSID FFFFFFFFh flushes every namespace (bits 2:1 are 11b).
            vwc: 0b110 | u8::from(self.config.write_cache),
            sgls: if self.config.sgl { SGLS_SUPPORTED | SGLS_BIT_BUCKET } else { 0 }.into(),
            ..NvmAttributes::default()
        }
    }

    /// Zeroes where the namespace is inactive.
    fn write_namespace(
        &self,
        page: &mut PageWriter<'_, impl DmaMemory>,
        entry: Option<&Entry>,
    ) -> Result<(), Status> {
        if let Some(Entry { shape, config, .. }) = entry {
            // As many as 64 bits can count, since the namespace was added.
            let bytes = shape.size_blocks.wrapping_shl(u32::from(shape.block_shift));
            let data = IdentifyNamespace {
                nsze: shape.size_blocks.into(),
                ncap: shape.size_blocks.into(),
                nuse: shape.size_blocks.into(),
                // Write Zeroes may deallocate, and leaves zeroes in any case.
                dlfeat: 1 << 3 | u8::from(config.deallocated_reads_zero),
                nvmcap: u128::from(bytes).into(),
                nsattr: u8::from(shape.read_only),
                nguid: config.nguid,
                eui64: config.eui64,
                lbaf0_lbads: shape.block_shift,
                ..IdentifyNamespace::default()
            };
            page.bytes(data.as_bytes())?;
        }
        Ok(())
    }
}

/// A list of namespace identifiers, ended by 0 where it is not full.
fn write_list(
    page: &mut PageWriter<'_, impl DmaMemory>,
    nsids: impl Iterator<Item = u32>,
) -> Result<(), Status> {
    for nsid in nsids.take(NAMESPACE_LIST_ENTRIES) {
        page.bytes(&nsid.to_le_bytes())?;
    }
    Ok(())
}

/// Namespace Identification Descriptors: type, length, two reserved bytes, identifier.
fn write_descriptors(page: &mut PageWriter<'_, impl DmaMemory>, entry: &Entry) -> Result<(), Status> {
    let config = &entry.config;
    let mut descriptor = |nidt: u8, length: u8, identifier: &[u8]| {
        if identifier.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        page.bytes(&[nidt, length, 0, 0])?;
        page.bytes(identifier)
    };
    descriptor(NIDT_EUI64, 8, &config.eui64)?;
    descriptor(NIDT_NGUID, 16, &config.nguid)?;
    descriptor(NIDT_UUID, 16, &config.uuid)?;
    // The NVM command set is Command Set Identifier 0.
    page.bytes(&[NIDT_CSI, 1, 0, 0, 0])
}

fn write_independent(page: &mut PageWriter<'_, impl DmaMemory>, entry: Option<&Entry>) -> Result<(), Status> {
    if let Some(entry) = entry {
        let nsattr = u8::from(entry.shape.read_only);
        page.bytes(IndependentNamespace { nsattr, nstat: 1, ..Default::default() }.as_bytes())?;
    }
    Ok(())
}
