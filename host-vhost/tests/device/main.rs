//! The whole device without a VM: a real server on a real socket, driven by our own client.
#![expect(unreachable_pub, reason = "test modules share items")]

mod burst;
#[path = "../vfio_user/child.rs"]
mod child;
mod control;
mod data;
mod ioeventfd;
mod life;
mod lost;
mod pause;
mod rig;
mod serve;
mod sleep;
mod smart;
mod stuck;
#[cfg(feature = "sandbox")]
mod upgrade;
