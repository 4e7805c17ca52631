//! Data buffers of the driver, named by PRP entries or SGL descriptors, and the bytes that belong in them.

use doorbell_core::memory::DmaMemory;
use heapless::Vec;

use super::ram::{GuestRam, PAGE};

/// Most pieces of a buffer.
const PIECES: usize = 40;

/// A buffer and its data pointer.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pieces: Vec<Piece, PIECES>,
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) is_sgl: bool,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    len: u32,
    /// The bytes are dropped (SGL Bit Bucket).
    bucket: bool,
}

/// Pages that a buffer is made in: data, and a page for PRP entries or SGL descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) data: u64,
    pub(super) pages: u64,
    pub(super) list: u64,
}

/// Lengths of SGL pieces, in turn: odd ones, and one that goes over a page.
const LENGTHS: [u32; 6] = [512, 3, 509, 5000, 1, 1023];

const BIT_BUCKET: u64 = 0x10 << 56;
const SEGMENT: u64 = 0x20 << 56;
const LAST_SEGMENT: u64 = 0x30 << 56;

/// Data descriptors of the first segment; the others are in the last one.
const FIRST_SEGMENT: usize = 3;

impl Buffer {
    /// By PRP entries, from `offset` of a page on. The pages are taken from the end of the pool to its start,
    /// so that none touches the next.
    pub(super) fn prp(ram: GuestRam<'_>, pool: Pool, offset: u64, len: u32) -> Self {
        let mut buffer = Self::default();
        let mut left = len;
        let mut offset = offset;
        let mut page = pool.pages;
        while left > 0 && page > 0 {
            page -= 1;
            let now = left.min((PAGE - offset) as u32);
            let piece = Piece { address: pool.data + page * PAGE + offset, len: now, bucket: false };
            let _ = buffer.pieces.push(piece);
            left -= now;
            offset = 0;
        }
        buffer.low = buffer.pieces.first().map_or(0, |piece| piece.address);
        buffer.high = match buffer.pieces.get(1..) {
            Some([second]) => second.address,
            Some(entries @ [_, _, ..]) => {
                // The list ends at the end of its page.
                let list = pool.list + PAGE - entries.len() as u64 * 8;
                for (at, piece) in (list..).step_by(8).zip(entries) {
                    let _ = ram.write(at, &piece.address.to_le_bytes());
                }
                list
            }
            _ => 0,
        };
        buffer
    }

    /// By SGL descriptors with gaps between the pieces; with `buckets` every third piece is dropped.
    pub(super) fn sgl(ram: GuestRam<'_>, pool: Pool, len: u32, buckets: bool) -> Self {
        let mut buffer = Self { is_sgl: true, ..Self::default() };
        let mut left = len;
        let mut address = pool.data + 1;
        for (turn, most) in LENGTHS.iter().cycle().enumerate() {
            if left == 0 {
                break;
            }
            let now = left.min(*most);
            let bucket = buckets && turn % 3 == 2;
            let _ = buffer.pieces.push(Piece { address, len: now, bucket });
            address += u64::from(now) + 5;
            left -= now;
        }
        let many = buffer.pieces.len();
        if let [only] = buffer.pieces.as_slice() {
            (buffer.low, buffer.high) = (only.address, u64::from(only.len));
            return buffer;
        }
        let mut at = pool.list;
        for (turn, piece) in buffer.pieces.iter().enumerate() {
            let kind = if piece.bucket { BIT_BUCKET } else { 0 };
            put(ram, at, if piece.bucket { 0 } else { piece.address }, u64::from(piece.len) | kind);
            at += 16;
            if turn + 1 == FIRST_SEGMENT && many > FIRST_SEGMENT {
                let rest = (many - FIRST_SEGMENT) as u64 * 16;
                let next = pool.list + PAGE / 2;
                put(ram, at, next, rest | LAST_SEGMENT);
                at = next;
            }
        }
        let (first, kind) = if many > FIRST_SEGMENT {
            ((FIRST_SEGMENT as u64 + 1) * 16, SEGMENT)
        } else {
            (many as u64 * 16, LAST_SEGMENT)
        };
        (buffer.low, buffer.high) = (pool.list, first | kind);
        buffer
    }

    /// Fills the buffer: `byte` says what belongs at each position.
    pub(super) fn fill(&self, ram: GuestRam<'_>, byte: impl Fn(u32) -> u8) {
        let mut position = 0;
        for piece in &self.pieces {
            let mut done = 0;
            while done < piece.len && !piece.bucket {
                let mut bytes = [0; 64];
                let now = (piece.len - done).min(64);
                for (index, place) in (position + done..).zip(&mut bytes) {
                    *place = byte(index);
                }
                let part = bytes.get(..now as usize).unwrap_or_default();
                let _ = ram.write(piece.address + u64::from(done), part);
                done += now;
            }
            position += piece.len;
        }
    }

    /// The first position whose byte isn't what belongs there, and that byte.
    pub(super) fn first_wrong(&self, ram: GuestRam<'_>, byte: impl Fn(u32) -> u8) -> Option<(u32, u8)> {
        let mut position = 0;
        for piece in &self.pieces {
            let mut done = 0;
            while done < piece.len && !piece.bucket {
                let mut bytes = [0; 64];
                let now = (piece.len - done).min(64);
                let part = bytes.get_mut(..now as usize).unwrap_or_default();
                let _ = ram.read(piece.address + u64::from(done), part);
                for (index, found) in (position + done..).zip(part) {
                    if *found != byte(index) {
                        return Some((index, *found));
                    }
                }
                done += now;
            }
            position += piece.len;
        }
        None
    }
}

fn put(ram: GuestRam<'_>, at: u64, low: u64, high: u64) {
    let _ = ram.write(at, &low.to_le_bytes());
    let _ = ram.write(at + 8, &high.to_le_bytes());
}
