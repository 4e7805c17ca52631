//! Tests that want a process for themselves.

use std::process::{Command, Stdio};

const CHILD: &str = "DOORBELL_TEST_CHILD";

/// Runs the test of that name again in a process of its own and returns whether that lived and passed; `None`
/// in that process. Other tests of this one have descriptors, mappings and signals too.
pub fn in_child(name: &str) -> Option<bool> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    // With a name that no test has, nothing would run, and that well.
    assert!(said.contains("running 1 test\n"), "no test is called {name}");
    Some(output.status.success())
}
