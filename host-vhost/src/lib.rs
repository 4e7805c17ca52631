//! The native host of the Doorbell NVMe controller.

pub mod storage;
