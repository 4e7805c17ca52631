//! What the host decides once, before the guest sees the controller.

/// The configuration of a [`Controller`](super::Controller). Values out of range are brought into range by
/// [`Controller::new`](super::Controller::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Queue groups in use, at most the controller's `GROUPS`.
    pub groups: u16,
    /// I/O queue pairs, at most the controller's `QUEUES`.
    pub io_queues: u16,
    /// Entries that an I/O queue may have (CAP.MQES + 1), 2 to 65,536.
    pub max_queue_entries: u32,
    /// Maximum Data Transfer Size in bytes: a power of two, at least two of the smallest memory pages, because
    /// one page is MDTS 0, which means no limit. The groups are told the same.
    pub mdts_bytes: u32,
    /// Interrupt vectors of the device, 1 to 128.
    pub vectors: u16,
    /// Smallest memory page as a power of two (CAP.MPSMIN + 12), 12 to 27.
    pub page_shift_min: u8,
    /// Largest memory page as a power of two (CAP.MPSMAX + 12).
    pub page_shift_max: u8,
    /// How long CSTS.RDY may take to follow CC.EN, in units of 500 ms (CAP.TO). A reset waits for commands
    /// that storage is carrying out.
    pub timeout_500ms: u8,
    /// Doorbell Buffer Config (shadow doorbells) is offered.
    pub doorbell_buffer: bool,
    /// SGLs are offered for I/O commands.
    pub sgl: bool,
    /// The storage has a volatile write cache, so that Flush means something.
    pub write_cache: bool,
    /// Controller ID (CNTLID).
    pub controller_id: u16,
    /// PCI Vendor ID, as in configuration space.
    pub vendor_id: u16,
    /// PCI Subsystem Vendor ID, as in configuration space.
    pub subsystem_vendor_id: u16,
    /// IEEE OUI, least significant byte first; 0 where there is none.
    pub ieee_oui: [u8; 3],
    /// Serial Number; no two controllers should have the same.
    pub serial: Ascii<20>,
    /// Model Number.
    pub model: Ascii<40>,
    /// Firmware Revision.
    pub firmware: Ascii<8>,
    /// NVM Subsystem NVMe Qualified Name.
    pub subsystem_nqn: Ascii<223>,
}

impl ControllerConfig {
    /// A controller with one group, 64 queue pairs of up to 65,536 entries, 1 MiB a command, everything
    /// offered. The identifiers are the same for every controller that is made with this: set `serial` and
    /// `subsystem_nqn`.
    pub const DEFAULT: Self = Self {
        groups: 1,
        io_queues: 64,
        max_queue_entries: 65_536,
        mdts_bytes: 1 << 20,
        vectors: 64,
        page_shift_min: 12,
        page_shift_max: 16,
        timeout_500ms: 60,
        doorbell_buffer: true,
        sgl: true,
        write_cache: true,
        controller_id: 0,
        vendor_id: crate::pci::VENDOR_ID,
        subsystem_vendor_id: crate::pci::VENDOR_ID,
        ieee_oui: [0; 3],
        serial: Ascii::lossy("DOORBELL0"),
        model: Ascii::lossy("Doorbell NVMe Controller"),
        firmware: Ascii::lossy(env!("CARGO_PKG_VERSION")),
        subsystem_nqn: Ascii::lossy("nqn.2014-08.org.nvmexpress:uuid:d0072be1-1000-4000-8000-000000000000"),
    };

    /// Zero bytes: what a controller has before it is configured.
    pub(super) const BLANK: Self = Self {
        groups: 0,
        io_queues: 0,
        max_queue_entries: 0,
        mdts_bytes: 0,
        vectors: 0,
        page_shift_min: 0,
        page_shift_max: 0,
        timeout_500ms: 0,
        doorbell_buffer: false,
        sgl: false,
        write_cache: false,
        controller_id: 0,
        vendor_id: 0,
        subsystem_vendor_id: 0,
        ieee_oui: [0; 3],
        serial: Ascii::BLANK,
        model: Ascii::BLANK,
        firmware: Ascii::BLANK,
        subsystem_nqn: Ascii::BLANK,
    };

    /// The same with every value in range for tables of these sizes.
    pub(super) const fn in_range(mut self, groups: usize, queues: usize) -> Self {
        self.groups = at_most(at_least(self.groups, 1), groups);
        self.io_queues = at_most(at_least(self.io_queues, 1), queues);
        self.vectors = at_most(at_least(self.vectors, 1), 128);
        if self.max_queue_entries < 2 {
            self.max_queue_entries = 2;
        }
        if self.max_queue_entries > 65_536 {
            self.max_queue_entries = 65_536;
        }
        if self.page_shift_min < 12 || self.page_shift_min > 27 {
            self.page_shift_min = 12;
        }
        if self.page_shift_max < self.page_shift_min || self.page_shift_max > 27 {
            self.page_shift_max = self.page_shift_min;
        }
        if self.mdts_bytes >> self.page_shift_min < 2 {
            self.mdts_bytes = 2u32.wrapping_shl(self.page_shift_min as u32);
        }
        self.mdts_bytes = 1u32.wrapping_shl(log2(self.mdts_bytes));
        self
    }

    /// MDTS: a power of two in units of the smallest memory page.
    #[expect(clippy::cast_possible_truncation, reason = "a logarithm of a 32-bit value")]
    pub(super) const fn mdts(&self) -> u8 {
        (log2(self.mdts_bytes) as u8).saturating_sub(self.page_shift_min)
    }
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The logarithm, rounded down; 0 for 0.
const fn log2(value: u32) -> u32 {
    31u32.saturating_sub(value.leading_zeros())
}

const fn at_least(value: u16, least: u16) -> u16 {
    if value < least { least } else { value }
}

#[expect(clippy::cast_possible_truncation, reason = "the limit is below a 16-bit value here")]
const fn at_most(value: u16, most: usize) -> u16 {
    if value as usize > most { most as u16 } else { value }
}

/// As much of `text` as fits, with `?` for what isn't printable ASCII; how many bytes that is.
#[inline(never)]
const fn copy_printable(mut target: &mut [u8], mut text: &[u8]) -> u8 {
    let mut len: u8 = 0;
    while let Some((first, text_rest)) = text.split_first()
        && let Some((place, target_rest)) = target.split_first_mut()
        && len < u8::MAX
    {
        *place = if matches!(*first, b' '..=b'~') { *first } else { b'?' };
        text = text_rest;
        target = target_rest;
        len = len.wrapping_add(1);
    }
    len
}

/// Printable ASCII of at most `N` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ascii<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Ascii<N> {
    /// Zero bytes.
    const BLANK: Self = Self { bytes: [0; N], len: 0 };

    /// `text`, or `None` where it is longer than `N` bytes or not printable ASCII.
    #[must_use]
    pub const fn new(text: &str) -> Option<Self> {
        let made = Self::lossy(text);
        let mut bytes = text.as_bytes();
        let fits = bytes.len() <= N && bytes.len() <= u8::MAX as usize;
        let mut printable = true;
        while let Some((first, rest)) = bytes.split_first() {
            printable &= matches!(*first, b' '..=b'~');
            bytes = rest;
        }
        if fits && printable { Some(made) } else { None }
    }

    /// As much of `text` as fits, with `?` for what isn't printable ASCII.
    #[must_use]
    pub const fn lossy(text: &str) -> Self {
        Self::from_bytes(text.as_bytes())
    }

    /// As [`Ascii::lossy`], of bytes that are believed to be a text.
    #[must_use]
    pub const fn from_bytes(text: &[u8]) -> Self {
        let mut made = Self { bytes: [b' '; N], len: 0 };
        made.len = copy_printable(&mut made.bytes, text);
        made
    }

    pub(super) const fn len(&self) -> u8 {
        self.len
    }

    /// The text, padded with spaces to `N` bytes.
    #[must_use]
    pub const fn padded(&self) -> [u8; N] {
        self.bytes
    }

    /// The text alone.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        match self.bytes.split_at_checked(self.len as usize) {
            Some((text, _)) => text,
            None => &self.bytes,
        }
    }
}

impl<const N: usize> core::fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(core::str::from_utf8(self.as_bytes()).unwrap_or(""), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_checked_and_padded() {
        assert_eq!(Ascii::<8>::new("AB 1").map(|text| text.padded()), Some(*b"AB 1    "));
        assert_eq!(Ascii::<4>::new("12345"), None);
        assert_eq!(Ascii::<8>::new("a\nb"), None);
        assert_eq!(Ascii::<4>::lossy("a\n\u{e9}b").padded(), *b"a???");
        assert_eq!(Ascii::<8>::lossy("ab").as_bytes(), b"ab");
    }

    #[test]
    fn values_are_brought_into_range() {
        let config = ControllerConfig {
            groups: 0,
            io_queues: 1000,
            max_queue_entries: 1,
            mdts_bytes: 5000,
            vectors: 4000,
            page_shift_min: 0,
            page_shift_max: 0,
            ..ControllerConfig::DEFAULT
        }
        .in_range(8, 64);
        assert_eq!((config.groups, config.io_queues, config.max_queue_entries), (1, 64, 2));
        assert_eq!((config.mdts_bytes, config.mdts(), config.vectors), (8192, 1, 128));
        assert_eq!((config.page_shift_min, config.page_shift_max), (12, 12));
        assert_eq!(ControllerConfig::DEFAULT.in_range(8, 64).mdts(), 8);
    }
}
