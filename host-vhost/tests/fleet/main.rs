//! Processes with several devices, or with the command line of QEMU's conventions: the program itself, driven by our
//! own vfio-user client and vhost-user frontend.
#![expect(unreachable_pub, reason = "test modules share items")]

mod conventions;
mod file;
#[path = "../vhost_user/frontend.rs"]
#[expect(dead_code, reason = "the other tests of the frontend need more of it")]
mod frontend;
#[path = "../vhost_user/memory.rs"]
#[expect(dead_code, reason = "the same")]
mod memory;
mod program;
#[path = "../device/rig.rs"]
#[expect(dead_code, reason = "the same of the driver")]
mod rig;
#[path = "../vhost_user/ring.rs"]
#[expect(dead_code, reason = "the same")]
mod ring;
