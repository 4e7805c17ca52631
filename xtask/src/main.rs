//! Jobs.
fn main() {}
