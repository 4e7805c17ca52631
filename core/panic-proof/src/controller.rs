//! The controller and PCI configuration space.

use doorbell_core::controller::{
    Controller, ControllerConfig, HostReply, HostRequest, NamespaceChange, NamespaceConfig, ResetKind,
    SmartCounters,
};
use doorbell_core::pci::{ConfigSpace, PciConfig};
use doorbell_core::spec::status::Status;

use crate::group::{message, statistics};
use crate::opaque::{OpaqueMemory, byte, bytes, dword, flag, half, part, registers, sink, unknown, word};

type Full = Controller<64, 511, 1024, 256>;

static mut CONTROLLER: Full = Controller::new(ControllerConfig::DEFAULT);
static mut PCI: ConfigSpace = ConfigSpace::new(PciConfig::DEFAULT);

pub fn exercise() {
    let controller = unknown(&raw mut CONTROLLER);
    let mut buffer: [u8; 64] = bytes();
    controller.read_register(dword(), part(&mut buffer));
    sink(u64::from(buffer[0]));
    controller.write_register(dword(), part(&mut buffer));
    controller.handle_doorbell_write(registers(), dword(), part(&mut buffer));
    sink(u64::from(controller.poll(&OpaqueMemory, registers(), word())));
    sink(controller.poll_group_request().map_or(0, |(group, _)| u64::from(group)));
    controller.handle_group_message(half(), message());
    controller.reset(match byte() {
        0 => ResetKind::Flr,
        1 => ResetKind::Nssr,
        2 => ResetKind::D3hot,
        _ => ResetKind::Disconnect,
    });
    if flag() {
        *controller = Full::blank();
        controller.configure(ControllerConfig {
            groups: half(),
            io_queues: half(),
            mdts_bytes: dword(),
            ..ControllerConfig::DEFAULT
        });
    }
    sink(u64::from(controller.quiesced()));
    controller.handle_unmap(word(), word());
    if let Some(HostRequest::FlushAll { abrupt }) = controller.poll_host_request() {
        sink(u64::from(abrupt));
    }
    let flushed = if flag() { Ok(()) } else { Err(Status(half())) };
    controller.handle_host_reply(HostReply::FlushAll(flushed));
    sink(controller.poll_interrupt().map_or(0, u64::from));
    sink(u64::from(controller.is_level_asserted()));
    sink(u64::from(controller.interrupt_mask()));
    sink(u64::from(controller.is_ready()));
    sink(controller.doorbell_buffer().map_or(0, |buffer| buffer.shadow));
    controller.restore_smart_counters(SmartCounters {
        bytes_read: word(),
        bytes_written: word(),
        read_commands: word(),
        write_commands: word(),
        busy_ns: word(),
        power_cycles: word(),
        power_on_ns: word(),
        unsafe_shutdowns: word(),
        media_errors: word(),
        error_log_entries: word(),
    });
    sink(controller.smart_counters().bytes_read);
    controller.update_statistics(half(), statistics());
    controller.add_busy_time(word());
    controller.set_temperature(half());
    namespaces(controller);
    pci();
}

fn namespaces(controller: &mut Full) {
    let config = NamespaceConfig {
        size_blocks: word(),
        block_bytes: dword(),
        read_only: flag(),
        deallocated_reads_zero: flag(),
        uuid: bytes(),
        nguid: bytes(),
        eui64: bytes(),
    };
    sink(u64::from(controller.add_namespace(flag().then(dword), config).unwrap_or(0)));
    sink(u64::from(controller.resize_namespace(dword(), word()).is_ok()));
    sink(u64::from(controller.remove_namespace(dword()).is_ok()));
    match controller.poll_namespace_change() {
        Some(NamespaceChange::Removed { nsid }) => sink(u64::from(nsid)),
        _ => sink(1),
    }
}

fn pci() {
    let space = unknown(&raw mut PCI);
    if flag() {
        let config = PciConfig { vectors: half(), bar0_bytes: word(), ..PciConfig::DEFAULT };
        *space = ConfigSpace::new(config);
    }
    let mut buffer: [u8; 64] = bytes();
    space.read(dword(), part(&mut buffer));
    sink(u64::from(buffer[0]));
    sink(u64::from(space.write(dword(), part(&mut buffer)).bits()));
    if flag() {
        space.reset();
    }
    sink(u64::from(space.bus_master()) ^ space.bar0().unwrap_or(0));
    sink(u64::from(space.intx_disabled()) ^ u64::from(space.msix_enabled()) ^ u64::from(space.msix_masked()));
    sink(u64::from(space.is_d3hot()));
    space.set_interrupt_status(flag());
}
