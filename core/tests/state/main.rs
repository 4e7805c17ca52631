//! Live upgrade of queue groups: a group that was saved and loaded anywhere in its life does byte for byte what
//! the first would have done, and whatever else can be loaded breaks nothing.
#![cfg(not(loom))]

mod golden;
mod hostile;
mod life;
mod twin;
