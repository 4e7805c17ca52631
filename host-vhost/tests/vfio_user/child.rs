//! Tests that want a process for themselves.

use std::process::Command;

const CHILD: &str = "DOORBELL_TEST_CHILD";

/// Runs the test of that name again in a process of its own and returns whether that lived and passed; `None`
/// in that process. Other tests of this one have descriptors, mappings and signals too.
pub fn in_child(name: &str) -> Option<bool> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .status()
        .unwrap();
    Some(status.success())
}
