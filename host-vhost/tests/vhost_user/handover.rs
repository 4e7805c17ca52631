//! A disk that changes its owner in a live migration: one server at a time has it.

use super::frontend::{F_LOG_ALL, Frontend, Served, code, pattern, state};

const FLUSH: u32 = 4;

fn image() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    file
}

/// Connected, and all but enabled.
fn set_up(served: &Served, features: u64) -> Frontend {
    let mut frontend = Frontend::connect(&served.socket);
    frontend.negotiate(features);
    frontend.add_ring(64);
    frontend.set_up(0, 0);
    frontend
}

fn enable(frontend: &mut Frontend) -> bool {
    frontend.try_command(code::SET_VRING_ENABLE, &state(0, 1), &[])
}

#[test]
fn the_next_owner_starts_when_the_last_ring_of_the_one_before_has_stopped() {
    for more in ["", ",direct=off"] {
        let image = image();
        let spec = format!("file={}{more}", image.path().display());
        let source = Served::new(&spec, 1, 1);
        let mut before = set_up(&source, 0);
        assert!(enable(&mut before));
        assert_eq!(before.write_blocks(0, &pattern(1, 4096)), (0, 1));

        let target = Served::new(&format!("{spec},incoming"), 1, 1);
        // It answers everything, but starts nothing as long as the source may write.
        let mut early = set_up(&target, 0);
        assert_eq!(early.config(0, 8), 2048_u64.to_le_bytes());
        assert!(!enable(&mut early));
        assert!(early.is_closed());

        // A stop that is no migration's keeps the disk.
        before.stop(0);
        let mut early = set_up(&target, 0);
        assert!(!enable(&mut early));
        before.start(0, 1);
        assert_eq!(before.write_blocks(8, &pattern(2, 4096)), (0, 1));
        let logging = before.features | F_LOG_ALL;
        before.command(code::SET_FEATURES, &logging.to_le_bytes(), &[]);
        assert_eq!(before.write_blocks(16, &pattern(3, 4096)), (0, 1));
        assert_eq!(before.stop(0), 3);

        let mut after = set_up(&target, 0);
        assert!(enable(&mut after));
        for (sector, seed) in [(0, 1), (8, 2), (16, 3)] {
            assert_eq!(after.read_blocks(sector, 4096), pattern(seed, 4096), "{more}");
        }
        assert_eq!(after.write_blocks(24, &pattern(4, 4096)), (0, 1));
        // The source is out, whoever asks it.
        drop(before);
        let mut late = set_up(&source, 0);
        assert!(!enable(&mut late));
        drop(late);
        // And may have it back.
        let logging = after.features | F_LOG_ALL;
        after.command(code::SET_FEATURES, &logging.to_le_bytes(), &[]);
        after.stop(0);
        let mut again = set_up(&source, 0);
        assert!(enable(&mut again));
        assert_eq!(again.read_blocks(24, 4096), pattern(4, 4096), "{more}");
    }
}

#[test]
fn a_migration_that_fails_goes_on_where_it_was() {
    let image = image();
    let spec = format!("file={}", image.path().display());
    let source = Served::new(&spec, 1, 1);
    let target = Served::new(&format!("{spec},incoming"), 1, 1);
    let mut before = set_up(&source, F_LOG_ALL);
    assert!(enable(&mut before));
    assert_eq!(before.request(FLUSH, 0, 0), (0, 1));
    let base = before.stop(0);
    before.start(0, base);
    assert_eq!(before.request(FLUSH, 0, 0), (0, 1));
    let mut early = set_up(&target, 0);
    assert!(!enable(&mut early));
}

#[test]
fn an_owner_that_was_killed_has_let_go() {
    let image = image();
    let spec = format!("file={}", image.path().display());
    let source = Served::new(&spec, 1, 1);
    let target = Served::new(&format!("{spec},incoming"), 1, 1);
    drop(source);
    let mut after = set_up(&target, 0);
    assert!(enable(&mut after));
    assert_eq!(after.request(FLUSH, 0, 0), (0, 1));
}

#[test]
fn what_lives_in_one_process_is_not_incoming() {
    for spec in ["ram=1M,incoming", "qcow2=/nowhere.qcow2,incoming"] {
        let spec: doorbell_vhost::namespace_spec::NamespaceSpec = spec.parse().unwrap();
        let error = spec.open().unwrap_err().to_string();
        assert!(error.contains("raw images"), "{error}");
    }
}
