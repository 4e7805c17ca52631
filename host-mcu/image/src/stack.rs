//! How deep the stack grows under a call: it is painted before and looked at afterwards.

use crate::board::stack_pointer;

/// Bytes below the caller that are left alone: the frames of the painting itself.
const MARGIN: usize = 128;

/// Bytes that are painted.
const PAINTED: usize = 8 * 1024;

const PAINT: u32 = 0x0db0_0b1e;

/// The worst depth so far.
#[derive(Debug, Default)]
pub struct Worst {
    bytes: usize,
}

impl Worst {
    /// Runs `call` and notes how many bytes of stack it used below this function's frame.
    #[inline(never)]
    pub fn around<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let top = stack_pointer();
        paint(top);
        let result = call();
        self.bytes = self.bytes.max(depth(top));
        result
    }

    /// Bytes; [`PAINTED`] and more read as `PAINTED`.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

fn words(top: usize) -> impl Iterator<Item = *mut u32> {
    (top - MARGIN - PAINTED..top - MARGIN).step_by(4).map(|address| address as *mut u32)
}

#[inline(never)]
fn paint(top: usize) {
    for word in words(top & !3) {
        // SAFETY: free stack: below every frame in use, this one's lie within the margin, and the images have
        // far more stack than is painted.
        unsafe { word.write_volatile(PAINT) };
    }
}

#[inline(never)]
fn depth(top: usize) -> usize {
    for word in words(top & !3) {
        // SAFETY: as in `paint`.
        if unsafe { word.read_volatile() } != PAINT {
            return top - word as usize;
        }
    }
    0
}
