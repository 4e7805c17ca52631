//! Enabling and the admin commands, in the order of Linux's probe.

use doorbell_core::controller::ControllerConfig;
use doorbell_core::memory::DmaMemory;
use doorbell_core::spec::admin::AdminOpcode;
use doorbell_core::spec::feature::FeatureId;
use doorbell_core::spec::queue_entry::SubmissionQueueEntry;
use doorbell_core::spec::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, VS};

use super::host::{Bench, Failure, Host, REPLY, SHADOWS, same};
use super::queue::Completion;
use super::ram::PAGE;
use crate::device::NSID;
use crate::media::Media;

/// CC: 16-byte CQEs, 64-byte SQEs, enabled.
const CC_ENABLED: u64 = 4 << 20 | 6 << 16 | 1;

/// Status: Invalid Field in Command, Invalid Command Opcode, Invalid Namespace or Format.
const INVALID_FIELD: u16 = 0x02;
const INVALID_OPCODE: u16 = 0x01;
const INVALID_NAMESPACE: u16 = 0x0b;
/// Status: Invalid Queue Identifier, Invalid Queue Deletion.
const INVALID_QID: u16 = 0x101;
const INVALID_DELETION: u16 = 0x10c;

/// An admin command.
pub(super) fn entry(opcode: AdminOpcode, nsid: u32, cdw10: u32, cdw11: u32) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        opcode: opcode.0,
        nsid: nsid.into(),
        cdw10: cdw10.into(),
        cdw11: cdw11.into(),
        ..SubmissionQueueEntry::default()
    }
}

impl<B: Bench, M: Media, const QUEUES: usize, const COMMANDS: usize, const ERRORS: usize>
    Host<'_, B, M, QUEUES, COMMANDS, ERRORS>
{
    /// From reset to I/O queues, with shadow doorbells or without.
    pub(super) fn bring_up(&mut self, shadow: bool) -> Result<(), Failure> {
        self.enable()?;
        let wanted = QUEUES as u32 - 1;
        let number = self.set_feature(FeatureId::NUMBER_OF_QUEUES, wanted << 16 | wanted)?;
        same("the number of queues", number, wanted << 16 | wanted)?;
        if shadow {
            self.use_shadow_doorbells()?;
        }
        for index in 0..QUEUES {
            self.create_queue(index)?;
        }
        Ok(())
    }

    fn enable(&mut self) -> Result<(), Failure> {
        let cap = self.read_register(CAP, 8)?;
        same("CAP.DSTRD", cap >> 32 & 0xf, 0_u64)?;
        same("CAP.CSS", cap >> 37 & 1, 1_u64)?;
        same("VS", self.read_register(VS, 4)?, 0x0001_0400_u64)?;
        same("CSTS before it is enabled", self.read_register(CSTS, 4)? & 0xf, 0_u64)?;
        self.make_admin_queue();
        self.shadow = false;
        let entries_z = self.admin.entries() - 1;
        self.write_register(AQA, u64::from(entries_z << 16 | entries_z), 4)?;
        self.write_register(ASQ, self.admin.sq(), 8)?;
        self.write_register(ACQ, self.admin.cq(), 8)?;
        self.write_register(CC, CC_ENABLED, 4)?;
        self.wait_ready(1)
    }

    /// Waits until CSTS.RDY is `ready`.
    pub(super) fn wait_ready(&mut self, ready: u64) -> Result<(), Failure> {
        for _ in 0..1000 {
            let csts = self.read_register(CSTS, 4)?;
            same("CSTS.CFS", csts >> 1 & 1, 0_u64)?;
            if csts & 1 == ready {
                return Ok(());
            }
        }
        Err(Failure { what: "CSTS.RDY", found: 1 - ready, wanted: ready })
    }

    fn use_shadow_doorbells(&mut self) -> Result<(), Failure> {
        let command = SubmissionQueueEntry {
            prp1: SHADOWS.shadow.into(),
            prp2: SHADOWS.event_idx.into(),
            ..entry(AdminOpcode::DOORBELL_BUFFER_CONFIG, 0, 0, 0)
        };
        let completion = self.admin(command)?;
        succeeded("Doorbell Buffer Config", &completion)?;
        self.shadow = true;
        Ok(())
    }

    fn create_queue(&mut self, index: usize) -> Result<(), Failure> {
        let pair = self.make_io_queue(index);
        let qid = u32::from(pair.qid);
        let dword10 = (pair.entries() - 1) << 16 | qid;
        let completion = SubmissionQueueEntry {
            prp1: pair.cq().into(),
            // Interrupts enabled, vector as the queue, physically contiguous.
            ..entry(AdminOpcode::CREATE_COMPLETION_QUEUE, 0, dword10, qid << 16 | 0b11)
        };
        succeeded("Create I/O Completion Queue", &self.admin(completion)?)?;
        let submission = SubmissionQueueEntry {
            prp1: pair.sq().into(),
            ..entry(AdminOpcode::CREATE_SUBMISSION_QUEUE, 0, dword10, qid << 16 | 1)
        };
        succeeded("Create I/O Submission Queue", &self.admin(submission)?)
    }

    fn delete_queue(&mut self, index: usize) -> Result<(), Failure> {
        let qid = index as u32 + 1;
        let early = self.admin(entry(AdminOpcode::DELETE_COMPLETION_QUEUE, 0, qid, 0))?;
        same("deleting a queue in use", early.code(), INVALID_DELETION)?;
        let submission = self.admin(entry(AdminOpcode::DELETE_SUBMISSION_QUEUE, 0, qid, 0))?;
        succeeded("Delete I/O Submission Queue", &submission)?;
        let completion = self.admin(entry(AdminOpcode::DELETE_COMPLETION_QUEUE, 0, qid, 0))?;
        succeeded("Delete I/O Completion Queue", &completion)?;
        let late = self.admin(entry(AdminOpcode::DELETE_SUBMISSION_QUEUE, 0, qid, 0))?;
        same("deleting a queue twice", late.code(), INVALID_QID)
    }

    /// Every I/O queue is deleted and made again.
    pub(super) fn queues_come_and_go(&mut self) -> Result<(), Failure> {
        for index in 0..QUEUES {
            self.delete_queue(index)?;
            self.create_queue(index)?;
        }
        Ok(())
    }

    fn identify_into_reply(&mut self, cns: u32, nsid: u32) -> Result<Completion, Failure> {
        let ram = self.ram();
        for at in (0..PAGE).step_by(4) {
            let _ = ram.store_u32(REPLY + at, 0xeeee_eeee);
        }
        let command =
            SubmissionQueueEntry { prp1: REPLY.into(), ..entry(AdminOpcode::IDENTIFY, nsid, cns, 0) };
        self.admin(command)
    }

    fn reply<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.ram().read(REPLY + offset, &mut bytes);
        bytes
    }

    /// Identify, as Linux asks: controller, namespace list, namespace, its descriptors.
    pub(super) fn identify(&mut self) -> Result<(), Failure> {
        succeeded("Identify Controller", &self.identify_into_reply(1, 0)?)?;
        let serial: [u8; 20] = self.reply(4);
        let wanted = ControllerConfig::DEFAULT.serial.padded();
        same("the serial number", u8::from(serial == wanted), 1_u8)?;
        same("VER", u32::from_le_bytes(self.reply(80)), 0x0001_0400_u32)?;
        same("SQES", self.reply::<1>(512)[0], 0x66_u8)?;
        same("CQES", self.reply::<1>(513)[0], 0x44_u8)?;
        same("NN", u32::from_le_bytes(self.reply(516)), 1_u32)?;
        same("OACS: Doorbell Buffer Config", u16::from_le_bytes(self.reply(256)) >> 8 & 1, 1_u16)?;
        same("SGLS", u32::from_le_bytes(self.reply(536)) & 3, 1_u32)?;
        same("the last byte of the page", self.reply::<1>(4095)[0], 0_u8)?;
        succeeded("Identify Active Namespace List", &self.identify_into_reply(2, 0)?)?;
        same("the first namespace", u32::from_le_bytes(self.reply(0)), NSID)?;
        same("the end of the list", u32::from_le_bytes(self.reply(4)), 0_u32)?;
        succeeded("Identify Namespace", &self.identify_into_reply(0, NSID)?)?;
        same("NSZE", u64::from_le_bytes(self.reply(0)), self.media.size_blocks())?;
        let shift = self.reply::<1>(128 + 2)[0];
        same("LBADS", 1_u64 << shift, self.media.block_bytes())?;
        succeeded("Identify Descriptors", &self.identify_into_reply(3, NSID)?)?;
        same("the first descriptor: EUI-64", self.reply::<1>(0)[0], 1_u8)?;
        same("its length", self.reply::<1>(1)[0], 8_u8)?;
        let other = self.identify_into_reply(0, NSID + 1)?;
        same("Identify of another namespace", other.code(), INVALID_NAMESPACE)?;
        same("Identify of an unknown kind", self.identify_into_reply(0x7f, 0)?.code(), INVALID_FIELD)?;
        let unknown = self.admin(entry(AdminOpcode(0xc7), 0, 0, 0))?;
        same("an unknown opcode", unknown.code(), INVALID_OPCODE)
    }

    fn set_feature(&mut self, id: FeatureId, value: u32) -> Result<u32, Failure> {
        let completion = self.admin(entry(AdminOpcode::SET_FEATURES, 0, u32::from(id.0), value))?;
        succeeded("Set Features", &completion)?;
        Ok(completion.result)
    }

    fn get_feature(&mut self, id: FeatureId) -> Result<u32, Failure> {
        let completion = self.admin(entry(AdminOpcode::GET_FEATURES, 0, u32::from(id.0), 0))?;
        succeeded("Get Features", &completion)?;
        Ok(completion.result)
    }

    /// Features that go through the group, and an event that a wrong doorbell raises.
    pub(super) fn features(&mut self) -> Result<(), Failure> {
        let _ = self.set_feature(FeatureId::INTERRUPT_COALESCING, 0x0203)?;
        same("Interrupt Coalescing", self.get_feature(FeatureId::INTERRUPT_COALESCING)?, 0x0203_u32)?;
        let _ = self.set_feature(FeatureId::INTERRUPT_COALESCING, 0)?;
        let waiting = self.submit_admin(entry(AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST, 0, 0, 0))?;
        // A doorbell beyond the last queue.
        let offset = doorbell_core::spec::register::DOORBELLS + (QUEUES as u32 + 1) * 8;
        self.write_register(offset, 1, 4)?;
        let event = self.take_admin()?;
        same("the event's CID", event.cid, waiting)?;
        same("the event: Write to Invalid Doorbell Register", event.result, 0x0001_0000_u32)
    }

    /// SMART counters and the Error Information log.
    pub(super) fn logs(&mut self) -> Result<(), Failure> {
        let before = self.reply_of_log(2)?;
        succeeded("Get Log Page: SMART", &before)?;
        let reads = u128::from_le_bytes(self.reply(64));
        let writes = u128::from_le_bytes(self.reply(80));
        same("SMART: there were reads and writes", u8::from(reads > 0 && writes > 0), 1_u8)?;
        let power_on_temperature = u16::from_le_bytes(self.reply(1));
        same("SMART: temperature", power_on_temperature, 313_u16)?;
        succeeded("Get Log Page: Error Information", &self.reply_of_log(1)?)?;
        same("the error log has entries", u8::from(u64::from_le_bytes(self.reply(0)) > 0), 1_u8)?;
        same("a log page that isn't there", self.reply_of_log(0x7f)?.code(), 0x109_u16)
    }

    fn reply_of_log(&mut self, page: u32) -> Result<Completion, Failure> {
        let dwords_z = 512 / 4 - 1;
        let bytes = match page {
            1 => 64 / 4 - 1,
            _ => dwords_z,
        };
        let command = SubmissionQueueEntry {
            prp1: REPLY.into(),
            ..entry(AdminOpcode::GET_LOG_PAGE, u32::MAX, bytes << 16 | page, 0)
        };
        self.admin(command)
    }
}

/// Fails unless the command succeeded.
pub(super) fn succeeded(what: &'static str, completion: &Completion) -> Result<(), Failure> {
    same(what, completion.code(), 0_u16)
}
