//! The frontend's memory table: regions by guest physical address, for descriptors, and by address in the
//! frontend's process, for rings.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::Error;

use crate::memory::{MapError, MemoryMap, Region, ReleaseSignal, Rights};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct GuestMemory {
    slots: Vec<Slot>,
    map: Arc<MemoryMap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    guest: u64,
    len_bytes: u64,
    user: u64,
}

impl GuestMemory {
    /// Adds a region.
    pub(super) fn add(
        &mut self,
        guest: u64,
        len_bytes: u64,
        user: u64,
        file: &File,
        offset: u64,
    ) -> Result<(), Error> {
        let file = Some((std::os::fd::AsFd::as_fd(file), offset));
        let added = Region::new(guest, len_bytes, Rights::READ_WRITE, file, ReleaseSignal::default())
            .and_then(|region| self.map.with(Arc::new(region)));
        match added {
            Ok(map) => {
                self.map = Arc::new(map);
                self.slots.push(Slot { guest, len_bytes, user });
                Ok(())
            }
            Err(error) => Err(refused(guest, error)),
        }
    }

    /// Removes the region that is exactly that.
    pub(super) fn remove(&mut self, guest: u64, len_bytes: u64, user: u64) -> Result<(), Error> {
        let wanted = Slot { guest, len_bytes, user };
        let place = self.slots.iter().position(|slot| *slot == wanted).ok_or(Error::InvalidParam)?;
        let (map, _region) = self.map.without(guest, len_bytes).map_err(|error| refused(guest, error))?;
        self.map = Arc::new(map);
        self.slots.swap_remove(place);
        Ok(())
    }

    /// How many regions there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The guest physical address of an address in the frontend's process.
    pub(super) fn translate(&self, user: u64) -> Option<u64> {
        self.slots.iter().find_map(|slot| {
            let offset = user.checked_sub(slot.user).filter(|offset| *offset < slot.len_bytes)?;
            slot.guest.checked_add(offset)
        })
    }

    /// The regions by guest physical address.
    pub(super) fn map(&self) -> &Arc<MemoryMap> {
        &self.map
    }
}

fn refused(guest: u64, error: MapError) -> Error {
    crate::rate_limit::warn_sometimes(|| {
        tracing::warn!("the frontend's memory at {guest:#x} can't be used: {error}");
    });
    Error::ReqHandlerError(std::io::Error::other(error))
}
