//! The sandbox from outside: the project's own module at work, and modules that behave badly.
//!
//! The module is built before: `cargo xtask test sandbox` does that and names it in `DOORBELL_MODULE`.

mod churn;
mod init;
mod lies;
mod load;
mod malice;
mod rig;
mod sabotage;
mod traffic;
mod upgrade;
