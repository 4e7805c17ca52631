//! The native host of the Doorbell NVMe controller.

pub mod client;
pub mod doorbell_page;
pub mod interrupt;
pub mod memory;
pub mod storage;
pub mod vfio_user;
