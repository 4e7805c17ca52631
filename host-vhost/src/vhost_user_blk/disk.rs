//! What a guest sees of the disk: feature bits and the configuration space (VIRTIO 1.3, 5.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout};

use super::announce::Announcer;
use crate::storage::Storage;

/// virtio's unit, whatever the block size.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Ranges of one discard or write zeroes request.
pub(super) const MAX_RANGES: usize = 16;
/// Sectors of one range: 2 GiB, so that one request can't keep a medium busy for minutes.
pub(super) const MAX_RANGE_SECTORS: u32 = 1 << 22;
/// Data segments of a request: with header and status they fill QEMU's queue of 128.
const SEG_MAX: u32 = 126;
/// Bytes of one of them.
const SIZE_MAX: u32 = 4 << 20;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
pub(super) const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VHOST_F_LOG_ALL`: everything that is written is logged.
pub(super) const F_LOG_ALL: u64 = 1 << 26;

pub(super) const F_EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
pub(super) const F_INDIRECT: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC;
const F_FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;

/// The disk, shared by all queues.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) storage: Arc<dyn Storage>,
    block_bytes: u32,
    queues: u16,
    id: [u8; VIRTIO_BLK_ID_BYTES as usize],
    /// `writeback` of the configuration space.
    writeback: AtomicBool,
    pub(super) announcer: Announcer,
    /// Writes have to be durable before they complete.
    write_through: AtomicBool,
}

impl Disk {
    /// `id` is cut to the 20 bytes that a guest can ask for.
    pub(super) fn new(storage: Arc<dyn Storage>, block_bytes: u32, queues: u16, id: &str) -> Self {
        let mut bytes = [0; VIRTIO_BLK_ID_BYTES as usize];
        bytes.iter_mut().zip(id.bytes()).for_each(|(place, byte)| *place = byte);
        Self {
            storage,
            block_bytes,
            queues,
            id: bytes,
            writeback: AtomicBool::new(true),
            announcer: Announcer::default(),
            write_through: AtomicBool::new(false),
        }
    }

    pub(super) fn queues(&self) -> u16 {
        self.queues
    }

    /// The answer to GET_ID.
    pub(super) fn id(&self) -> &[u8] {
        &self.id
    }

    /// What is offered.
    pub(super) fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_CONFIG_WCE,
            VIRTIO_BLK_F_MQ,
        ];
        if self.storage.read_only() {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        let mut own = F_PROTOCOL_FEATURES;
        if self.storage.can_be_handed_over() {
            // Without it a frontend knows that it can't migrate: the data would stay behind.
            own |= F_LOG_ALL;
        }
        bits.into_iter().fold(own, |all, bit| all | 1 << bit)
    }

    /// What the driver took. One that doesn't know flush can't ask for durability, so it gets it with each
    /// write (5.2.6.2).
    pub(super) fn set_features(&self, acked: u64) {
        let writeback = self.writeback.load(Ordering::Relaxed);
        self.write_through.store(acked & F_FLUSH == 0 || !writeback, Ordering::Relaxed);
    }

    /// Whether writes have to be durable before they complete.
    #[inline]
    pub(super) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    /// A range of the configuration space; behind its end it reads zero.
    pub(super) fn read_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let space = self.config_space();
        if offset == 0 && size as usize >= size_of_val(&space.capacity) {
            self.announcer.was_read(space.capacity.get());
        }
        let mut space = space.as_bytes().to_vec();
        let (offset, size) = (offset as usize, size as usize);
        space.resize(space.len().max(offset + size), 0);
        space[offset..offset + size].to_vec()
    }

    /// The driver writes the configuration space; only `writeback` can be written.
    pub(super) fn write_config(&self, offset: u32, bytes: &[u8], acked: u64) -> bool {
        let place = (WRITEBACK_OFFSET as usize).checked_sub(offset as usize);
        match place.and_then(|place| bytes.get(place)) {
            Some(&value @ 0..=1) => {
                self.writeback.store(value == 1, Ordering::Relaxed);
                self.set_features(acked);
                true
            }
            _ => false,
        }
    }

    /// Tells the frontend of a capacity that it doesn't know yet. False where it can't be told now.
    pub(super) fn announce_capacity(&self) -> bool {
        self.announcer.announce(self.storage.size_bytes() / SECTOR_BYTES)
    }

    /// The logical block size.
    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// As at the start.
    pub(super) fn reset(&self) {
        self.writeback.store(true, Ordering::Relaxed);
        self.write_through.store(false, Ordering::Relaxed);
    }

    fn config_space(&self) -> ConfigSpace {
        let physical = self.storage.preferred_alignment_bytes().clamp(self.block_bytes, 1 << 20);
        let exponent = (physical / self.block_bytes).checked_ilog2().unwrap_or(0);
        let blocks = |bytes: u32| bytes / self.block_bytes;
        let read_only = self.storage.read_only();
        let unless_read_only = |value: u32| U32::new(if read_only { 0 } else { value });
        ConfigSpace {
            capacity: U64::new(self.storage.size_bytes() / SECTOR_BYTES),
            size_max: U32::new(SIZE_MAX),
            seg_max: U32::new(SEG_MAX),
            geometry: [0; 4],
            blk_size: U32::new(self.block_bytes),
            physical_block_exp: exponent as u8,
            alignment_offset: 0,
            min_io_size: U16::new(blocks(physical) as u16),
            opt_io_size: U32::new(blocks(physical.max(128 << 10))),
            writeback: u8::from(self.writeback.load(Ordering::Relaxed)),
            unused0: 0,
            num_queues: U16::new(self.queues),
            max_discard_sectors: unless_read_only(MAX_RANGE_SECTORS),
            max_discard_seg: unless_read_only(MAX_RANGES as u32),
            discard_sector_alignment: unless_read_only(physical / SECTOR_BYTES as u32),
            max_write_zeroes_sectors: unless_read_only(MAX_RANGE_SECTORS),
            max_write_zeroes_seg: unless_read_only(MAX_RANGES as u32),
            write_zeroes_may_unmap: u8::from(!read_only),
            unused1: [0; 3],
        }
    }
}

const WRITEBACK_OFFSET: u32 = 32;

/// `struct virtio_blk_config` (5.2.4), as far as features are offered.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ConfigSpace {
    /// Sectors of 512 bytes.
    capacity: U64,
    /// Bytes of a segment at most (SIZE_MAX).
    size_max: U32,
    /// Segments of a request at most (SEG_MAX).
    seg_max: U32,
    /// Not offered.
    geometry: [u8; 4],
    /// Logical block size in bytes (BLK_SIZE).
    blk_size: U32,
    /// log2 of logical blocks in a physical one (TOPOLOGY).
    physical_block_exp: u8,
    /// First aligned logical block.
    alignment_offset: u8,
    /// In logical blocks.
    min_io_size: U16,
    /// In logical blocks.
    opt_io_size: U32,
    /// 1: a volatile cache, made durable by flush (CONFIG_WCE).
    writeback: u8,
    unused0: u8,
    /// Request queues (MQ).
    num_queues: U16,
    /// Sectors of a range (DISCARD).
    max_discard_sectors: U32,
    /// Ranges of a request.
    max_discard_seg: U32,
    /// In sectors.
    discard_sector_alignment: U32,
    /// Sectors of a range (WRITE_ZEROES).
    max_write_zeroes_sectors: U32,
    /// Ranges of a request.
    max_write_zeroes_seg: U32,
    /// The flag `unmap` may deallocate.
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

const _: () = assert!(size_of::<ConfigSpace>() == 60);
const _: () = assert!(std::mem::offset_of!(ConfigSpace, writeback) == WRITEBACK_OFFSET as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{NullStorage, StorageConfig};

    #[test]
    fn the_configuration_space_is_complete_and_read_in_pieces() {
        let disk = Disk::new(Arc::new(NullStorage::new(1 << 30)), 4096, 3, "id");
        let whole = disk.read_config(0, 96);
        assert_eq!(whole[..8], (1_u64 << 21).to_le_bytes());
        assert_eq!(whole[12..16], 126_u32.to_le_bytes());
        assert_eq!(whole[20..24], 4096_u32.to_le_bytes());
        assert_eq!(whole[32], 1);
        assert_eq!(whole[34..36], [3, 0]);
        assert_eq!(whole[36..40], (1_u32 << 22).to_le_bytes());
        assert_eq!(whole[56], 1);
        assert_eq!(whole[60..], [0; 36]);
        let pieces: Vec<u8> = (0..96).flat_map(|offset| disk.read_config(offset, 1)).collect();
        assert_eq!(pieces, whole);
    }

    #[test]
    fn without_flush_or_writeback_every_write_is_durable() {
        let disk = Disk::new(Arc::new(NullStorage::new(1 << 30)), 512, 1, "id");
        disk.set_features(0);
        assert!(disk.write_through());
        disk.set_features(F_FLUSH);
        assert!(!disk.write_through());
        assert!(disk.write_config(32, &[0], F_FLUSH));
        assert!(disk.write_through());
        assert_eq!(disk.read_config(32, 1), [0]);
        assert!(!disk.write_config(0, &[1; 8], F_FLUSH), "capacity isn't writable");
    }

    #[test]
    fn a_read_only_disk_says_so_and_offers_nothing_that_writes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let path = file.path().to_owned();
        let config = StorageConfig::File { path, read_only: true, direct: crate::storage::Direct::Off };
        let disk = Disk::new(config.open().unwrap(), 512, 1, "id");
        let has = |bit: u32| disk.features() >> bit & 1 == 1;
        assert!(has(VIRTIO_BLK_F_RO) && !has(VIRTIO_BLK_F_DISCARD) && !has(VIRTIO_BLK_F_WRITE_ZEROES));
    }
}
