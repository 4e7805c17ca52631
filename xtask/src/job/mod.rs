//! The jobs, one a file.

pub(crate) mod bench;
pub(crate) mod concurrency;
pub(crate) mod demo;
pub(crate) mod install;
pub(crate) mod lint;
pub(crate) mod panic_proof;
pub(crate) mod protocol;
pub(crate) mod system;
pub(crate) mod test;
pub(crate) mod unit;
