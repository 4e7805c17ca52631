//! Guest memory of VMMs that use `vm-memory`.

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_core::memory::{Access, DmaError, DmaMemory};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions, VolatileMemory as _};

/// A `vm-memory` guest memory as the core and its sandboxes see it.
///
/// A device behind an IOMMU takes a `GuestMemory` that translates; the plain one takes guest addresses as they are.
#[derive(Clone, Debug)]
pub struct GuestRam<M>(pub M);

impl<M: GuestMemory> GuestRam<M> {
    /// Runs `access` on an aligned dword of guest memory.
    fn dword<R>(
        &self,
        address: u64,
        permissions: Permissions,
        access: impl FnOnce(&AtomicU32) -> R,
    ) -> Result<R, DmaError> {
        let mut slices = self.0.get_slices(GuestAddress(address), 4, permissions).map_err(|_| DmaError)?;
        let slice = slices.next().ok_or(DmaError)?.map_err(|_| DmaError)?;
        // Refuses what isn't aligned or, because a region ends there, isn't in one piece.
        let dword = slice.get_atomic_ref::<AtomicU32>(0).map_err(|_| DmaError)?;
        let result = access(dword);
        if permissions.has_write() {
            // For the dirty log.
            vm_memory::bitmap::Bitmap::mark_dirty(slice.bitmap(), 0, 4);
        }
        Ok(result)
    }
}

impl<M: GuestMemory> DmaMemory for GuestRam<M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.read_slice(buffer, GuestAddress(address)).map_err(|_| DmaError)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.write_slice(bytes, GuestAddress(address)).map_err(|_| DmaError)
    }

    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        self.dword(address, Permissions::Read, |dword| u32::from_le(dword.load(Ordering::Relaxed)))
    }

    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.dword(address, Permissions::Write, |dword| dword.store(value.to_le(), Ordering::Relaxed))
    }

    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        self.dword(address, Permissions::ReadWrite, |dword| {
            let (current, new) = (current.to_le(), new.to_le());
            let exchanged = dword.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
            let (Ok(found) | Err(found)) = exchanged;
            u32::from_le(found)
        })
    }

    fn check(&self, address: u64, len_bytes: u64, access: Access) -> Result<(), DmaError> {
        let len = usize::try_from(len_bytes).map_err(|_| DmaError)?;
        let permissions = match access {
            Access::Read => Permissions::Read,
            Access::Write => Permissions::Write,
        };
        if self.0.check_range(GuestAddress(address), len, permissions) { Ok(()) } else { Err(DmaError) }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestMemoryMmap;

    use super::*;

    #[test]
    fn dwords_bytes_and_bounds() {
        let regions = [(GuestAddress(0x1000), 0x1000), (GuestAddress(0x8000), 0x1000)];
        let ram = GuestRam(GuestMemoryMmap::<()>::from_ranges(&regions).expect("memory"));
        assert_eq!(ram.write(0x1ffe, &[1, 2]), Ok(()));
        assert_eq!(ram.load_u32(0x1ffc), Ok(0x0201_0000));
        assert_eq!(ram.store_u32(0x8000, 7), Ok(()));
        assert_eq!(ram.compare_exchange_u32(0x8000, 7, 9), Ok(7));
        assert_eq!(ram.compare_exchange_u32(0x8000, 7, 8), Ok(9));
        let mut bytes = [0; 4];
        assert_eq!(ram.read(0x8000, &mut bytes), Ok(()));
        assert_eq!(bytes, [9, 0, 0, 0]);
        for address in [0, 0xffc, 0x2000, 0x8ffe, 0x9000, u64::MAX - 2, u64::MAX] {
            assert_eq!(ram.read(address, &mut bytes), Err(DmaError), "{address:x}");
            assert_eq!(ram.write(address, &bytes), Err(DmaError), "{address:x}");
            assert_eq!(ram.load_u32(address), Err(DmaError), "{address:x}");
            assert_eq!(ram.store_u32(address, 0), Err(DmaError), "{address:x}");
            assert_eq!(ram.check(address, 4, Access::Read), Err(DmaError), "{address:x}");
        }
        assert_eq!(ram.load_u32(0x1001), Err(DmaError), "not aligned");
        assert_eq!(ram.check(0x1000, 0x1000, Access::Write), Ok(()));
        assert_eq!(ram.check(0x1000, 0x1001, Access::Write), Err(DmaError));
    }
}
