//! Formatting, clippy and rustdoc. A warning is an error.

use crate::command;
use crate::report::Report;

/// Runs the three checks as jobs of their own.
pub(crate) fn run(report: &mut Report) {
    report.run("fmt", || {
        command::run(&mut command::cargo(["fmt", "--all", "--check"]))?;
        // Packages with a workspace of their own.
        for folder in ["core/panic-proof", "host-mcu/image", "host-wasm/module"] {
            let manifest = format!("{folder}/Cargo.toml");
            command::run(&mut command::cargo(["fmt", "--all", "--check", "--manifest-path", &manifest]))?;
        }
        Ok(())
    });
    report.run("clippy", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
        command::run(&mut command::cargo(clippy))
    });
    report.run("rustdoc", || {
        let mut doc = command::cargo(["doc", "--workspace", "--no-deps", "--document-private-items"]);
        command::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
}
