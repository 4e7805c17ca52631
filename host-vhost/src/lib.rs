//! The native host of the Doorbell NVMe controller.

pub mod memory;
pub mod vfio_user;
