//! The native host of the Doorbell NVMe controller: a vfio-user server, a vhost-user-blk backend, poller threads,
//! storages.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`vfio_user`] | the protocol: codec, connection, session, and [`vfio_user::device::Device`], what a session serves |
//! | [`vhost_user_blk`] | the other front end: a virtio disk over vhost-user |
//! | [`memory`], [`doorbell_page`], [`interrupt`] | what a client shares with the device |
//! | [`device`] | one device: its control thread with the core's controller, and what its threads share |
//! | [`poller`] | the threads that own queue groups and do the I/O |
//! | [`storage`] | media behind namespaces |
//! | [`fleet`] | the devices of one process |
//! | [`devices_file`] | a file that describes them, and what can be wrong with it |
//! | [`client`] | the other side: a vfio-user client and an NVMe driver, for the demo and for tests |
//! | [`ctl`] | the control socket: counters, namespaces at run time |
//!
//! A command's way: the guest rings a doorbell (a store into a mapped page, a shadow, or a message), a poller
//! fetches it through the core's queue group, a storage carries it out straight in guest memory, the group
//! posts the completion, the poller writes one eventfd for the whole batch. No lock, no allocation and no system
//! call belong to a single command.

pub mod client;
pub mod cpus;
pub mod ctl;
pub mod demo;
pub mod device;
mod device_thread;
pub mod devices_file;
pub mod doorbell_page;
pub mod endpoint;
pub mod engine;
pub mod fleet;
pub mod interrupt;
pub mod mailbox;
pub mod memory;
pub mod namespace_spec;
pub mod poller;
mod rate_limit;
pub mod storage;
pub mod vfio_user;
pub mod vhost_user_blk;
