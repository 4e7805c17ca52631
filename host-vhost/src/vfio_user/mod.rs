//! vfio-user: the protocol by which a VMM uses a PCI device of another process.
//!
//! * [`protocol`], [`request`], [`reply`], [`version`]: the codec, without I/O.
//! * [`connection`]: a UNIX stream that carries messages and file descriptors, both ways; [`dma`] on top of it
//!   reaches guest memory by messages.
//! * [`listener`]: where connections come from.
//! * [`server`]: a [`server::Session`] serves one client with one [`device::Device`].
//!
//! Not here: what the device is, and the client side, which is [`crate::client`].

pub mod connection;
pub mod device;
pub mod dma;
pub mod listener;
pub mod protocol;
pub mod reply;
pub mod request;
pub mod server;
pub mod version;
