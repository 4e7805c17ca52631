//! A medium without room: no space on a file system, no larger file allowed.
//!
//! Both need a process of their own, so the test runs itself again with [`CHILD`] set.

mod storage_harness;

use std::path::Path;
use std::process::{Command, Stdio};

use doorbell_vhost::storage::{
    Direct, FileEngine, FileStorage, Operation, Qcow2Storage, Storage, StorageError,
};
use storage_harness::{Poller, directory, file, qcow2};

const CHILD: &str = "DOORBELL_STORAGE_FULL_CHILD";

#[test]
fn no_space_is_no_space() {
    let directory = directory();
    let mount = directory.path().join("tiny");
    std::fs::create_dir(&mount).expect("directory");
    let program = std::env::current_exe().expect("this test");
    let script = r#"mount -t tmpfs -o size=1M none "$1" && exec "$2" --exact child_without_space --ignored --nocapture"#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh"])
        .arg(&mount)
        .arg(program)
        .env(CHILD, &mount)
        .stdin(Stdio::null())
        .output()
        .expect("unshare (package util-linux)");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("child done"), "{output:?}");
}

#[test]
#[ignore = "runs in a process that the other test starts"]
fn child_without_space() {
    let Some(mount) = std::env::var_os(CHILD) else { panic!("{CHILD} names no file system") };
    let mount = Path::new(&mount);
    for engine in [FileEngine::Auto, FileEngine::Threads] {
        let path = file(mount, "disk.img", 8 << 20);
        let storage = FileStorage::open(&path, false, Direct::Auto, engine).expect("open");
        fill_up(&storage);
        drop(storage);
        std::fs::remove_file(path).expect("remove");
    }
    let path = qcow2(mount, "disk.qcow2", "8M");
    fill_up(&Qcow2Storage::open(&path, false).expect("qcow2"));
    storage_harness::qemu_img(&["check", "-q", path.to_str().expect("path")]);
    println!("child done");
}

fn fill_up(storage: &dyn Storage) {
    let mut poller = Poller::new(storage);
    let mut written = 0;
    let refused = loop {
        match poller.write(written, &[0x77; 65536]) {
            Ok(()) => written += 65536,
            Err(error) => break error,
        }
        assert!(written < 2 << 20, "a full file system took everything");
    };
    assert_eq!(refused, StorageError::NoSpace, "{}", storage.kind());
    assert!(written > 256 << 10);
    // What was acknowledged is there, and the storage still works.
    let all = poller.read(0, written as usize).expect("read");
    assert!(all.iter().all(|&byte| byte == 0x77));
    poller.write(0, &[0x78; 512]).expect("overwrite");
    poller.flush().expect("flush");
    let zeroes = Operation::WriteZeroes { deallocate: true, fua: false };
    poller.run(zeroes, 0, written, &[]).expect("make room");
    poller.write(written, &[0x79; 4096]).expect("room again");
}
