//! What the controller supports: the one table that the dispatcher, Identify, Supported Log Pages, Commands
//! Supported and Effects and Feature Identifiers Supported and Effects are made from.
//!
//! Announced means implemented: a line goes in together with the code that it promises.

use crate::spec::admin::AdminOpcode;
use crate::spec::feature::FeatureId;
use crate::spec::log::{Effects, LogId};
use crate::spec::nvm::NvmOpcode;

/// An admin command that the controller carries out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminCommand {
    pub(crate) opcode: AdminOpcode,
    /// Its bit of Identify Controller's OACS, or 0 for a mandatory command.
    pub(crate) oacs: u16,
    /// Only there where the host's configuration offers Doorbell Buffer Config.
    pub(crate) needs_doorbell_buffer: bool,
    pub(crate) effects: Effects,
}

/// An I/O command that the groups carry out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoCommandSupport {
    pub(crate) opcode: NvmOpcode,
    /// Its bit of Identify Controller's ONCS, or 0 for a mandatory command.
    pub(crate) oncs: u16,
    pub(crate) effects: Effects,
}

/// A feature that Get Features and Set Features know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feature {
    pub(crate) id: FeatureId,
    /// Each namespace has its own value.
    pub(crate) namespace_specific: bool,
    /// Only there where the storage has a volatile write cache.
    pub(crate) needs_write_cache: bool,
}

/// A log page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPage {
    pub(crate) id: LogId,
    /// Its bit of Identify Controller's LPA, or 0.
    pub(crate) lpa: u8,
}

const CONTROLLER: Effects = Effects::new().with_supported(true).with_controller_scope(true);
const NAMESPACE: Effects = Effects::new().with_supported(true).with_namespace_scope(true);
const WRITES: Effects = NAMESPACE.with_content_change(true);

const fn admin(opcode: AdminOpcode) -> AdminCommand {
    AdminCommand { opcode, oacs: 0, needs_doorbell_buffer: false, effects: CONTROLLER }
}

pub(crate) const ADMIN_COMMANDS: [AdminCommand; 11] = [
    admin(AdminOpcode::DELETE_SUBMISSION_QUEUE),
    admin(AdminOpcode::CREATE_SUBMISSION_QUEUE),
    admin(AdminOpcode::GET_LOG_PAGE),
    admin(AdminOpcode::DELETE_COMPLETION_QUEUE),
    admin(AdminOpcode::CREATE_COMPLETION_QUEUE),
    admin(AdminOpcode::IDENTIFY),
    admin(AdminOpcode::ABORT),
    admin(AdminOpcode::SET_FEATURES),
    admin(AdminOpcode::GET_FEATURES),
    admin(AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST),
    AdminCommand { oacs: 1 << 8, needs_doorbell_buffer: true, ..admin(AdminOpcode::DOORBELL_BUFFER_CONFIG) },
];

const fn io(opcode: NvmOpcode, oncs: u16, effects: Effects) -> IoCommandSupport {
    IoCommandSupport { opcode, oncs, effects }
}

pub(crate) const IO_COMMANDS: [IoCommandSupport; 7] = [
    io(NvmOpcode::FLUSH, 0, NAMESPACE),
    io(NvmOpcode::WRITE, 0, WRITES),
    io(NvmOpcode::READ, 0, NAMESPACE),
    io(NvmOpcode::COMPARE, 1 << 0, NAMESPACE),
    io(NvmOpcode::WRITE_ZEROES, 1 << 3, WRITES),
    io(NvmOpcode::DATASET_MANAGEMENT, 1 << 2, WRITES),
    io(NvmOpcode::VERIFY, 1 << 7, NAMESPACE),
];

/// The opcodes of [`IO_COMMANDS`], a bit each; all are below 32.
const IO_OPCODES: u32 = opcodes(&IO_COMMANDS, false);
/// Those that change the medium.
const WRITING_IO_OPCODES: u32 = opcodes(&IO_COMMANDS, true);

const fn opcodes(mut commands: &[IoCommandSupport], only_writing: bool) -> u32 {
    let mut set = 0;
    while let Some((command, rest)) = commands.split_first() {
        assert!(command.opcode.0 < 32, "the sets of opcodes have 32 bits");
        if !only_writing || command.effects.content_change() {
            set |= 1u32.wrapping_shl(command.opcode.0 as u32);
        }
        commands = rest;
    }
    set
}

/// Whether groups carry an I/O command out.
#[inline]
pub(crate) const fn is_io_command(opcode: NvmOpcode) -> bool {
    opcode.0 < 32 && IO_OPCODES & 1u32.wrapping_shl(opcode.0 as u32) != 0
}

/// Whether an I/O command changes the medium.
#[inline]
pub(crate) const fn changes_medium(opcode: NvmOpcode) -> bool {
    opcode.0 < 32 && WRITING_IO_OPCODES & 1u32.wrapping_shl(opcode.0 as u32) != 0
}

/// ONCS bit 4: the Select field of Get Features and the Save field of Set Features are understood.
pub(crate) const ONCS_SELECT_AND_SAVE: u16 = 1 << 4;

const fn feature(id: FeatureId) -> Feature {
    Feature { id, namespace_specific: false, needs_write_cache: false }
}

pub(crate) const FEATURES: [Feature; 10] = [
    feature(FeatureId::ARBITRATION),
    feature(FeatureId::POWER_MANAGEMENT),
    feature(FeatureId::TEMPERATURE_THRESHOLD),
    Feature { namespace_specific: true, ..feature(FeatureId::ERROR_RECOVERY) },
    Feature { needs_write_cache: true, ..feature(FeatureId::VOLATILE_WRITE_CACHE) },
    feature(FeatureId::NUMBER_OF_QUEUES),
    feature(FeatureId::INTERRUPT_COALESCING),
    feature(FeatureId::INTERRUPT_VECTOR_CONFIGURATION),
    feature(FeatureId::WRITE_ATOMICITY),
    feature(FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION),
];

pub(crate) const LOG_PAGES: [LogPage; 7] = [
    LogPage { id: LogId::SUPPORTED_LOG_PAGES, lpa: 0 },
    LogPage { id: LogId::ERROR_INFORMATION, lpa: 0 },
    LogPage { id: LogId::SMART, lpa: 0 },
    LogPage { id: LogId::FIRMWARE_SLOT, lpa: 0 },
    LogPage { id: LogId::CHANGED_NAMESPACES, lpa: 0 },
    LogPage { id: LogId::COMMAND_EFFECTS, lpa: 1 << 1 },
    LogPage { id: LogId::FEATURE_EFFECTS, lpa: 0 },
];

/// LPA bit 2: Get Log Page takes a 32-bit number of dwords and a 64-bit offset.
pub(crate) const LPA_EXTENDED_DATA: u8 = 1 << 2;

pub(crate) fn admin_command(opcode: u8, doorbell_buffer: bool) -> Option<&'static AdminCommand> {
    ADMIN_COMMANDS
        .iter()
        .find(|command| command.opcode.0 == opcode && (doorbell_buffer || !command.needs_doorbell_buffer))
}

pub(crate) fn io_command(opcode: u8) -> Option<&'static IoCommandSupport> {
    IO_COMMANDS.iter().find(|command| command.opcode.0 == opcode)
}

pub(crate) fn find_feature(id: u8, write_cache: bool) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.id.0 == id && (write_cache || !feature.needs_write_cache))
}

pub(crate) fn log_page(id: u8) -> Option<&'static LogPage> {
    LOG_PAGES.iter().find(|page| page.id.0 == id)
}

impl Feature {
    /// Its dword of Feature Identifiers Supported and Effects.
    pub(crate) const fn effects(&self) -> Effects {
        if self.namespace_specific { NAMESPACE } else { CONTROLLER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dispatcher_knows_every_opcode_of_the_table_and_no_other() {
        // NVM Command Set Specification 1.0, Figure 13: Flush, Write, Read, Compare, Write Zeroes, Dataset
        // Management, Verify; those that write.
        let supported = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c];
        let writing = [0x01, 0x08, 0x09];
        for opcode in 0..=u8::MAX {
            assert_eq!(is_io_command(NvmOpcode(opcode)), supported.contains(&opcode), "{opcode:#04x}");
            assert_eq!(changes_medium(NvmOpcode(opcode)), writing.contains(&opcode), "{opcode:#04x}");
            assert_eq!(io_command(opcode).is_some(), supported.contains(&opcode), "{opcode:#04x}");
        }
    }

    #[test]
    fn what_is_not_implemented_is_not_in_the_table() {
        for opcode in [
            AdminOpcode::NAMESPACE_MANAGEMENT,
            AdminOpcode::FIRMWARE_COMMIT,
            AdminOpcode::DEVICE_SELF_TEST,
            AdminOpcode::NAMESPACE_ATTACHMENT,
            AdminOpcode::KEEP_ALIVE,
            AdminOpcode::FORMAT_NVM,
            AdminOpcode::SANITIZE,
        ] {
            assert!(admin_command(opcode.0, true).is_none());
        }
        assert!(admin_command(0x7c, false).is_none());
    }
}
