//! PRP entries and lists as drivers build them.

use super::RamMemory;
use super::entry::DataPointer;

/// Bytes of a memory page (CC.MPS 0).
pub const PAGE_BYTES: u64 = 4096;

/// Where PRP lists go: pages to take list pages from, and the byte offset of the first entry in the first.
#[derive(Clone, Debug)]
pub struct ListPages {
    /// Guest addresses of free pages.
    pub pages: Vec<u64>,
    /// Offset of the first list entry, a multiple of 8 below a page.
    pub offset_bytes: u64,
}

/// The data pointer for `len_bytes` bytes: they begin in `pages[0]` at `offset_bytes` and go on through the
/// other pages.
///
/// # Panics
/// Where there are too few pages or too few list pages.
pub fn build(
    memory: &RamMemory,
    pages: &[u64],
    offset_bytes: u64,
    len_bytes: u64,
    mut lists: ListPages,
) -> DataPointer {
    let first = pages[0] + offset_bytes;
    let spanned = (offset_bytes + len_bytes).div_ceil(PAGE_BYTES) as usize;
    let high = match &pages[1..spanned] {
        [] => 0,
        [second] => *second,
        entries => {
            let mut at = lists.pages.remove(0) + lists.offset_bytes;
            let list = at;
            for (index, &page) in entries.iter().enumerate() {
                let is_last_of_page = (at + 8).is_multiple_of(PAGE_BYTES);
                if is_last_of_page && index + 1 < entries.len() {
                    let next = lists.pages.remove(0);
                    memory.poke(at, &next.to_le_bytes());
                    at = next;
                }
                memory.poke(at, &page.to_le_bytes());
                at += 8;
            }
            list
        }
    };
    DataPointer { low: first, high, is_sgl: false }
}

/// The bytes of guest memory that [`build`] names, in order, as address and length of each piece.
#[must_use]
pub fn pieces(pages: &[u64], offset_bytes: u64, len_bytes: u64) -> Vec<(u64, u64)> {
    let mut left = len_bytes;
    let mut offset = offset_bytes;
    let mut pieces = Vec::new();
    for page in pages {
        let now = left.min(PAGE_BYTES - offset);
        if now > 0 {
            pieces.push((page + offset, now));
        }
        left -= now;
        offset = 0;
    }
    assert_eq!(left, 0, "too few pages");
    pieces
}
