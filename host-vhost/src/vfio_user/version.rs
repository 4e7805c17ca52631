//! VERSION's capabilities: a JSON object that some clients leave out.

use rustix::io::Errno;
use serde_json::{Map, Value};

use super::protocol::{MAX_DATA_BYTES, MAX_MESSAGE_FDS, MAX_SOCKET_FDS};
use crate::memory::MAX_REGIONS;

/// What a peer said it can do, with the specification's defaults for what it left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// File descriptors it takes in one message.
    pub max_msg_fds: u32,
    /// Bytes of data it takes in one message.
    pub max_data_xfer_size: u32,
    /// It sends or takes REGION_WRITE_MULTI.
    pub write_multiple: bool,
    /// It named `max_dma_maps`.
    names_max_dma_maps: bool,
    /// It named `pgsizes`.
    names_pgsizes: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: 1024 * 1024,
            write_multiple: false,
            names_max_dma_maps: false,
            names_pgsizes: false,
        }
    }
}

impl Capabilities {
    /// Parses version data; empty data is the defaults.
    ///
    /// # Errors
    /// EINVAL where it isn't a JSON object, or a capability isn't of its kind.
    pub fn parse(json: &[u8]) -> Result<Self, Errno> {
        let mut found = Self::default();
        if json.is_empty() {
            return Ok(found);
        }
        let value: Value = serde_json::from_slice(json).map_err(|_| Errno::INVAL)?;
        let capabilities = match value.as_object().ok_or(Errno::INVAL)?.get("capabilities") {
            None => return Ok(found),
            Some(capabilities) => capabilities.as_object().ok_or(Errno::INVAL)?,
        };
        if let Some(count) = number(capabilities, "max_msg_fds")? {
            found.max_msg_fds = count;
        }
        match number(capabilities, "max_data_xfer_size")? {
            Some(0) => return Err(Errno::INVAL),
            Some(bytes) => found.max_data_xfer_size = bytes,
            None => {}
        }
        match capabilities.get("write_multiple") {
            None => {}
            Some(Value::Bool(able)) => found.write_multiple = *able,
            Some(_) => return Err(Errno::INVAL),
        }
        found.names_max_dma_maps = number(capabilities, "max_dma_maps")?.is_some();
        found.names_pgsizes = number(capabilities, "pgsizes")?.is_some();
        Ok(found)
    }

    /// Bytes of data that one DMA_READ or DMA_WRITE may move.
    #[must_use]
    pub fn dma_bytes(&self) -> u32 {
        self.max_data_xfer_size.min(MAX_DATA_BYTES)
    }

    /// Whether this client is known to answer DMA_READ although nothing forces it to: QEMU, told by what it
    /// names. The `vfio_user` crate's client would take the request for a reply and lose the stream.
    #[must_use]
    pub fn answers_dma_read(&self) -> bool {
        self.write_multiple && self.names_max_dma_maps
    }

    /// The text of the reply: our limits, and of the optional capabilities only those that the client named.
    #[must_use]
    pub fn reply_json(&self) -> String {
        let mut capabilities = Map::new();
        capabilities.insert("max_msg_fds".into(), MAX_MESSAGE_FDS.into());
        capabilities.insert("max_data_xfer_size".into(), MAX_DATA_BYTES.into());
        if self.names_max_dma_maps {
            capabilities.insert("max_dma_maps".into(), MAX_REGIONS.into());
        }
        if self.names_pgsizes {
            capabilities.insert("pgsizes".into(), 4096.into());
        }
        if self.write_multiple {
            capabilities.insert("write_multiple".into(), true.into());
        }
        serde_json::json!({ "capabilities": capabilities }).to_string()
    }

    /// What our own client says.
    #[must_use]
    pub fn client_json() -> String {
        serde_json::json!({ "capabilities": {
            "max_msg_fds": MAX_SOCKET_FDS,
            "max_data_xfer_size": MAX_DATA_BYTES,
            "max_dma_maps": MAX_REGIONS,
            "pgsizes": 4096,
            "write_multiple": true,
        }})
        .to_string()
    }
}

/// A capability that is a number; one too large for us stands for "as many as you like".
fn number(capabilities: &Map<String, Value>, name: &str) -> Result<Option<u32>, Errno> {
    match capabilities.get(name) {
        None => Ok(None),
        Some(value) => {
            let number = value.as_u64().ok_or(Errno::INVAL)?;
            Ok(Some(u32::try_from(number).unwrap_or(u32::MAX)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_json_means_defaults() {
        assert_eq!(Capabilities::parse(b""), Ok(Capabilities::default()));
        assert_eq!(Capabilities::parse(b"{}"), Ok(Capabilities::default()));
    }

    #[test]
    fn malformed_json_is_einval() {
        for json in [
            &b"{"[..],
            b"[]",
            b"7",
            b"{\"capabilities\":[]}",
            b"{\"capabilities\":{\"max_msg_fds\":\"many\"}}",
            b"{\"capabilities\":{\"max_msg_fds\":-1}}",
            b"{\"capabilities\":{\"max_data_xfer_size\":0}}",
            b"{\"capabilities\":{\"write_multiple\":1}}",
            b"\xff\xfe",
        ] {
            assert_eq!(Capabilities::parse(json), Err(Errno::INVAL), "{json:?}");
        }
    }

    #[test]
    fn the_reply_names_only_what_the_client_named() {
        let reply = Capabilities::default().reply_json();
        assert!(!reply.contains("max_dma_maps") && !reply.contains("write_multiple"), "{reply}");
        let client = Capabilities::parse(Capabilities::client_json().as_bytes()).unwrap();
        assert!(client.answers_dma_read());
        assert!(client.reply_json().contains("\"write_multiple\":true"));
    }
}
