//! The native host of the Doorbell NVMe controller.

pub mod memory;
pub mod storage;
pub mod vfio_user;
