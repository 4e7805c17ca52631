//! Saving a configuration space and going on with it elsewhere; see [`crate::state`].

use super::{
    COMMAND, ConfigSpace, DWORDS, PM_CONTROL, PM_D3HOT, PM_STATE, PciConfig, STATUS_INTERRUPT, power_on,
};
use crate::state::pci::ConfigSpaceRecord;
use crate::state::{HEADER_BYTES, Kind, Reader, StateError, Writer, ensure};
use zerocopy::little_endian::U32;

const _: () = assert!(size_of::<[u32; DWORDS]>() == 160);

impl ConfigSpace {
    /// Bytes of a state.
    pub const STATE_BYTES: usize = HEADER_BYTES + size_of::<ConfigSpaceRecord>();

    /// Writes the state to the start of `buffer`; its [`ConfigSpace::STATE_BYTES`] bytes.
    ///
    /// # Errors
    /// [`StateError::BufferTooSmall`].
    pub fn save(&self, buffer: &mut [u8]) -> Result<usize, StateError> {
        let Self { config, dwords } = self;
        let PciConfig {
            vendor_id,
            device_id,
            revision_id,
            subsystem_vendor_id,
            subsystem_id,
            bar0_bytes,
            vectors,
        } = *config;
        let mut writer = Writer::new(buffer);
        writer.record(&ConfigSpaceRecord {
            vendor_id: vendor_id.into(),
            device_id: device_id.into(),
            subsystem_vendor_id: subsystem_vendor_id.into(),
            subsystem_id: subsystem_id.into(),
            bar0_bytes: bar0_bytes.into(),
            vectors: vectors.into(),
            revision_id,
            reserved: 0,
            dwords: dwords.map(U32::new),
        })?;
        writer.finish(Kind::ConfigSpace, [0; 4])
    }

    /// Goes on with a saved configuration space in place of this one, identifiers included. The host acts upon
    /// what it then says ([`ConfigSpace::bus_master`] and the like), as no event tells of it.
    ///
    /// # Errors
    /// Where the state isn't one, contradicts itself, or has another BAR 0 or number of vectors; nothing has
    /// changed then.
    pub fn load(&mut self, state: &[u8]) -> Result<(), StateError> {
        let (mut reader, _) = Reader::open(state, Kind::ConfigSpace)?;
        let record: &ConfigSpaceRecord = reader.record()?;
        reader.finish()?;
        let config = PciConfig {
            vendor_id: record.vendor_id.get(),
            device_id: record.device_id.get(),
            revision_id: record.revision_id,
            subsystem_vendor_id: record.subsystem_vendor_id.get(),
            subsystem_id: record.subsystem_id.get(),
            bar0_bytes: record.bar0_bytes.get(),
            vectors: record.vectors.get(),
        };
        if config.bar0_bytes != self.config.bar0_bytes || config.vectors != self.config.vectors {
            return Err(StateError::Mismatch("another size of BAR 0 or number of MSI-X vectors"));
        }
        let loaded = Self { config, dwords: record.dwords.map(U32::get) };
        for (index, (now, initial)) in loaded.dwords.iter().zip(power_on(&config)).enumerate() {
            let status = if index == COMMAND { STATUS_INTERRUPT } else { 0 };
            let fixed = !(loaded.writable(index) | status);
            ensure((now ^ initial) & fixed == 0, "read-only bits of configuration space")?;
        }
        let power = loaded.dword(PM_CONTROL) & PM_STATE;
        ensure(power == 0 || power == PM_D3HOT, "a power state that there isn't")?;
        *self = loaded;
        Ok(())
    }
}
