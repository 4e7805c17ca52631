//! Logs: defmt's frames, turned into lines with the strings of the image that sent them.

use anyhow::{Context, Result, bail};
use defmt_decoder::{DecodeError, Table};

/// Decodes the log of one image.
pub(super) struct Decoder {
    table: Table,
    /// Bytes since the last whole frame.
    pending: Vec<u8>,
}

impl Decoder {
    /// For the log of this ELF file.
    pub(super) fn new(elf: &[u8]) -> Result<Self> {
        let table = Table::parse(elf)?.context("the image has no defmt strings")?;
        Ok(Self { table, pending: Vec::new() })
    }

    /// The lines that `bytes` completes.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<Vec<String>> {
        self.pending.extend_from_slice(bytes);
        let mut lines = Vec::new();
        // A frame ends with a zero byte (defmt's rzCOBS framing).
        while let Some(end) = self.pending.iter().position(|byte| *byte == 0) {
            let frame: Vec<u8> = self.pending.drain(..=end).collect();
            if frame.len() > 1 {
                lines.push(self.line(&frame)?);
            }
        }
        Ok(lines)
    }

    fn line(&self, frame: &[u8]) -> Result<String> {
        let mut stream = self.table.new_stream_decoder();
        stream.received(frame);
        match stream.decode() {
            Ok(frame) => Ok(frame.display(false).to_string()),
            Err(DecodeError::UnexpectedEof) => bail!("a log frame is cut off"),
            Err(DecodeError::Malformed) => bail!("a log frame isn't this image's"),
        }
    }
}
