//! A buffer that starts on a page, for `O_DIRECT`.

#![expect(unsafe_code, reason = "owns a raw mapping")]

use std::io;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};

/// See the module. All zero at first.
#[derive(Debug)]
pub(super) struct AlignedBuffer {
    base: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, rw, MapFlags::PRIVATE) }?;
        Ok(Self { base: base.expose_provenance(), len })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our own mapping, alive as long as we are, borrowed as we are, and always initialised.
        unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(self.base), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no borrow of it is left.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.base), self.len) };
    }
}
