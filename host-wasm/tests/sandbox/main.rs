//! The sandbox from outside: the project's own module at work, and modules that behave badly.
//!
//! The module is built before: `cargo xtask test sandbox` does that and names it in `DOORBELL_MODULE`.

mod rig;
mod traffic;
mod upgrade;
