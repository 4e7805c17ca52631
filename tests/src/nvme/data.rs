//! Describing memory to the controller: PRP entries (Base 1.4, 4.3) and SGL descriptors (4.4).

/// The memory page size that the driver sets in CC.MPS.
pub const PAGE_BYTES: u64 = 4096;

/// One SGL descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Address; 0 in a bit bucket.
    pub address: u64,
    /// Length.
    pub len_bytes: u32,
    /// Descriptor type in the upper four bits, sub type in the lower.
    pub identifier: u8,
}

impl Descriptor {
    /// SGL Data Block.
    #[must_use]
    pub const fn block(address: u64, len_bytes: u32) -> Self {
        Self { address, len_bytes, identifier: 0x00 }
    }

    /// SGL Bit Bucket.
    #[must_use]
    pub const fn bit_bucket(len_bytes: u32) -> Self {
        Self { address: 0, len_bytes, identifier: 0x10 }
    }

    /// SGL Segment.
    #[must_use]
    pub const fn segment(address: u64, len_bytes: u32) -> Self {
        Self { address, len_bytes, identifier: 0x20 }
    }

    /// SGL Last Segment.
    #[must_use]
    pub const fn last_segment(address: u64, len_bytes: u32) -> Self {
        Self { address, len_bytes, identifier: 0x30 }
    }

    /// The upper eight bytes.
    #[must_use]
    pub const fn tail(self) -> u64 {
        self.len_bytes as u64 | (self.identifier as u64) << 56
    }

    /// The 16 bytes in memory.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.tail().to_le_bytes());
        bytes
    }
}

/// The bytes of a list of descriptors.
#[must_use]
pub fn segment_bytes(descriptors: &[Descriptor]) -> Vec<u8> {
    descriptors.iter().flat_map(|descriptor| descriptor.bytes()).collect()
}

/// The PRP entries of the memory pieces that begin at `address`, one a page.
#[must_use]
pub fn prp_entries(address: u64, len_bytes: u64) -> Vec<u64> {
    let mut entries = vec![address];
    let mut next = (address & !(PAGE_BYTES - 1)) + PAGE_BYTES;
    while next < address + len_bytes {
        entries.push(next);
        next += PAGE_BYTES;
    }
    entries
}

/// Lays PRP entries out as a driver does: PRP1, and PRP2 either the second page or a list. `page` gives
/// memory for each page of the list; the pages are returned with their addresses, to be written.
pub fn prp_lists(entries: &[u64], mut page: impl FnMut() -> u64) -> (u64, u64, Vec<(u64, Vec<u8>)>) {
    match entries {
        [] => (0, 0, Vec::new()),
        [one] => (*one, 0, Vec::new()),
        [one, two] => (*one, *two, Vec::new()),
        [one, rest @ ..] => {
            let slots = (PAGE_BYTES / 8) as usize;
            let mut pages = Vec::new();
            let first = page();
            let mut at = first;
            let mut rest = rest;
            loop {
                // The last slot of a full page points to the next page.
                let chained = rest.len() > slots;
                let (here, more) = rest.split_at(if chained { slots - 1 } else { rest.len() });
                let mut bytes: Vec<u8> = here.iter().flat_map(|entry| entry.to_le_bytes()).collect();
                let next = if chained { page() } else { 0 };
                if chained {
                    bytes.extend(next.to_le_bytes());
                }
                pages.push((at, bytes));
                if !chained {
                    return (*one, first, pages);
                }
                at = next;
                rest = more;
            }
        }
    }
}

/// Bytes that differ from place to place and from seed to seed, so that a piece at the wrong place shows.
#[must_use]
pub fn pattern(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}
