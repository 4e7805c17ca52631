//! Records into and out of a slice, and the header around them.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::crc32;
use super::{Kind, MAGIC, StateError, VERSION};

/// What every state begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// Version of the layout.
    pub version: U16,
    /// A [`Kind`].
    pub kind: U16,
    /// Bytes of the whole state.
    pub len_bytes: U32,
    /// CRC-32 (ISO-HDLC) of the whole state without this field.
    pub crc32: U32,
    /// Entries that the tables of an instance need for this state. Controller: groups, queues, namespaces,
    /// errors. Queue group: queues, commands, namespaces, 0. Configuration space: 0.
    pub tables: [U16; 4],
}

/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = 24;

/// Bytes of it before its checksum, and up to behind that.
const BEFORE_CRC: usize = 12;
const BEHIND_CRC: usize = 16;

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(core::mem::offset_of!(Header, crc32) == BEFORE_CRC);

fn checksum(state: &[u8]) -> u32 {
    let (first, second) = (state.get(..BEFORE_CRC), state.get(BEHIND_CRC..));
    crc32(first.unwrap_or_default(), second.unwrap_or_default())
}

/// Makes the header of a state that a test has changed right again: length and checksum.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn seal(state: &mut [u8]) {
    let len_bytes = u32::try_from(state.len()).unwrap_or(u32::MAX);
    if let Some(place) = state.get_mut(8..BEFORE_CRC) {
        place.copy_from_slice(&len_bytes.to_le_bytes());
    }
    let crc32 = checksum(state);
    if let Some(place) = state.get_mut(BEFORE_CRC..BEHIND_CRC) {
        place.copy_from_slice(&crc32.to_le_bytes());
    }
}

/// Writes records behind the place of a header.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: HEADER_BYTES }
    }

    pub(crate) fn record(&mut self, record: &(impl IntoBytes + Immutable)) -> Result<(), StateError> {
        self.bytes(record.as_bytes())
    }

    // Once for all records: copied where it is known what is in a record, each would be taken apart.
    #[inline(never)]
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let rest = self.buffer.get_mut(self.len..).ok_or(StateError::BufferTooSmall)?;
        bytes.write_to_prefix(rest).map_err(|_| StateError::BufferTooSmall)?;
        self.len = self.len.saturating_add(bytes.len());
        Ok(())
    }

    /// Writes the header; the bytes of the state.
    pub(crate) fn finish(self, kind: Kind, tables: [u16; 4]) -> Result<usize, StateError> {
        let state = self.buffer.get_mut(..self.len).ok_or(StateError::BufferTooSmall)?;
        let mut header = Header {
            magic: MAGIC,
            version: U16::new(VERSION),
            kind: U16::new(kind as u16),
            len_bytes: U32::new(u32::try_from(self.len).map_err(|_| StateError::BufferTooSmall)?),
            crc32: U32::ZERO,
            tables: tables.map(U16::new),
        };
        header.write_to_prefix(state).map_err(|_| StateError::BufferTooSmall)?;
        header.crc32 = U32::new(checksum(state));
        header.write_to_prefix(state).map_err(|_| StateError::BufferTooSmall)?;
        Ok(self.len)
    }
}

/// Reads the records behind a header.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of the records of a state whose header and checksum are right, and the table entries that it
    /// needs.
    pub(crate) fn open(state: &'a [u8], kind: Kind) -> Result<(Self, [u16; 4]), StateError> {
        let (header, rest) = Header::ref_from_prefix(state).map_err(|_| StateError::WrongLength)?;
        if header.magic != MAGIC || header.kind.get() != kind as u16 {
            return Err(StateError::NotThatState);
        }
        if header.version.get() != VERSION {
            return Err(StateError::UnknownVersion(header.version.get()));
        }
        if usize::try_from(header.len_bytes.get()) != Ok(state.len()) {
            return Err(StateError::WrongLength);
        }
        if header.crc32.get() != checksum(state) {
            return Err(StateError::WrongChecksum);
        }
        Ok((Self { rest }, header.tables.map(U16::get)))
    }

    pub(crate) fn record<T>(&mut self) -> Result<&'a T, StateError>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        self.take(1, size_of::<T>())
            .and_then(|bytes| T::ref_from_bytes(bytes).ok())
            .ok_or(StateError::WrongLength)
    }

    pub(crate) fn records<T>(&mut self, count: usize) -> Result<&'a [T], StateError>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        self.take(count, size_of::<T>())
            .and_then(|bytes| <[T]>::ref_from_bytes(bytes).ok())
            .ok_or(StateError::WrongLength)
    }

    // Once for all records.
    #[inline(never)]
    fn take(&mut self, count: usize, size: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count.saturating_mul(size))?;
        self.rest = rest;
        Some(bytes)
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), StateError> {
        if self.rest.is_empty() { Ok(()) } else { Err(StateError::WrongLength) }
    }
}

/// Refuses a state in which an invariant doesn't hold.
pub(crate) fn ensure(holds: bool, what: &'static str) -> Result<(), StateError> {
    if holds { Ok(()) } else { Err(StateError::Inconsistent(what)) }
}

/// A flag.
pub(crate) fn flag(byte: u8) -> Result<bool, StateError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(StateError::Inconsistent("a flag that is neither 0 nor 1")),
    }
}
