//! Whole-system tests: a stock QEMU, firmware and guests on one side, `doorbell serve` on the other.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`doorbell`] | starts our server and talks to it as an operator does |
//! | [`qemu`] | starts QEMU with our device, or with QEMU's own for comparison |
//! | [`qtest`] | QEMU without a guest: memory and port accesses, made by the test |
//! | [`pci`] | configuration space, BARs, capabilities, MSI-X |
//! | [`nvme`] | a small NVMe driver on top of these, with every step under the test's control |
//! | [`guest`] | a Linux guest that runs scripts of `tests/guest/` and reports on its console |
//! | [`machine`], [`qmp`] | the machine of a guest, to be migrated or to get a disk while it runs |
//! | [`firmware`] | SeaBIOS and OVMF, and disks for them |
//! | [`virtio`] | our server of a virtio disk, to be killed under a guest |
//! | [`backend`], [`blkio`] | servers of virtio disks, ours and QEMU's, and a client of them without a VM |
//! | [`subject`] | the device under test, and how to swap it |
//! | [`layout`], [`process`] | where the set-up put things; children that are always ended |
//!
//! The judges are independent: QEMU's own NVMe device is run through the same driver and the same guest
//! scripts (`tests/harness.rs`), so that a test that fails says something about our device.
//!
//! Everything here needs `cargo xtask setup` first and says so when it is missing.

pub mod backend;
pub mod blkio;
pub mod doorbell;
pub mod firmware;
pub mod guest;
pub mod layout;
pub mod machine;
pub mod nvme;
pub mod pci;
pub mod process;
pub mod qemu;
pub mod qmp;
pub mod qtest;
pub mod subject;
pub mod virtio;
