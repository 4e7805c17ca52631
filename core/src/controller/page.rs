//! Replies without a buffer: a page of data is produced field by field, and what the driver asked for of it
//! goes straight into guest memory.

use crate::data::DataWriter;
use crate::memory::DmaMemory;
use crate::spec::status::Status;

/// Writes the window `start..end` of a page that is produced in order. Bytes that nothing was written to are 0.
#[derive(Debug)]
pub(super) struct PageWriter<'a, M> {
    memory: &'a M,
    data: DataWriter,
    start: u64,
    end: u64,
    position: u64,
}

impl<'a, M: DmaMemory> PageWriter<'a, M> {
    /// A writer of `len_bytes` bytes from offset `start` of a page into `data`.
    pub(super) fn new(memory: &'a M, data: DataWriter, start: u64, len_bytes: u32) -> Self {
        Self { memory, data, start, end: start.saturating_add(u64::from(len_bytes)), position: 0 }
    }

    /// The next bytes of the page.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let len = bytes.len();
        let first = self.start.saturating_sub(self.position);
        let last = self.end.saturating_sub(self.position);
        self.position = self.position.saturating_add(len as u64);
        let first = usize::try_from(first).unwrap_or(len).min(len);
        let last = usize::try_from(last).unwrap_or(len).min(len);
        match bytes.get(first..last) {
            Some(visible) => self.data.write(self.memory, visible),
            None => Ok(()),
        }
    }

    /// Zeroes up to `offset` of the page, then `bytes` there. Offsets only grow.
    pub(super) fn at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Status> {
        self.zeroes_to(offset)?;
        self.bytes(bytes)
    }

    /// Zeroes up to the end of what the driver asked for.
    pub(super) fn finish(mut self) -> Result<(), Status> {
        self.zeroes_to(self.end)
    }

    fn zeroes_to(&mut self, offset: u64) -> Result<(), Status> {
        let first = self.position.max(self.start);
        let last = offset.min(self.end);
        self.position = self.position.max(offset);
        let len_bytes = u32::try_from(last.saturating_sub(first)).unwrap_or(u32::MAX);
        self.data.write_zeroes(self.memory, len_bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::data::Segments;
    use crate::spec::queue_entry::SubmissionQueueEntry;
    use crate::testing::RamMemory;

    /// The window of a page that holds 1, 2, 3, 4 at offset 2 and 9 at offset 8.
    fn window(start: u64, len_bytes: u32) -> Vec<u8> {
        let memory = RamMemory::new(0, 4096);
        memory.fill(0, 4096, 0xee);
        let entry = SubmissionQueueEntry::new_zeroed();
        let data = DataWriter::new(Segments::from_prp(&entry, len_bytes, 12));
        let mut page = PageWriter::new(&memory, data, start, len_bytes);
        assert_eq!(page.at(2, &[1, 2, 3, 4]), Ok(()));
        assert_eq!(page.at(8, &[9]), Ok(()));
        assert_eq!(page.finish(), Ok(()));
        let mut bytes = memory.peek(0, 64);
        assert!(bytes[len_bytes as usize..].iter().all(|&byte| byte == 0xee), "beyond the length");
        bytes.truncate(len_bytes as usize);
        bytes
    }

    #[test]
    fn every_window_is_cut_out_of_the_same_page() {
        let page = [0, 0, 1, 2, 3, 4, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for start in 0..12 {
            for len in 0..12 {
                assert_eq!(window(start as u64, len as u32), page[start..start + len], "{start} {len}");
            }
        }
    }
}
