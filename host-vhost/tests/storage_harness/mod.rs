//! A poller in miniature for the storage tests: one context, one queue, commands run to their end.

#![expect(unsafe_code, reason = "stands in for guest memory")]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use doorbell_vhost::storage::{
    IoContext, IoContextConfig, Operation, Storage, StorageCommand, StorageError, StorageQueue, Submission,
};

/// A poller.
#[derive(Debug)]
pub struct Poller {
    /// Dropped first: it waits for commands in flight.
    pub context: IoContext,
    pub queue: StorageQueue,
}

/// What a command is allowed to take.
const PATIENCE: Duration = Duration::from_secs(60);

impl Poller {
    pub fn new(storage: &dyn Storage) -> Self {
        Self::with(storage, IoContextConfig::default())
    }

    pub fn with(storage: &dyn Storage, config: IoContextConfig) -> Self {
        let mut context = IoContext::new(config).expect("context");
        let queue = storage.open_queue(&mut context).expect("queue");
        Self { context, queue }
    }

    /// Submits without waiting.
    ///
    /// The memory behind `segments` must live until the command is reaped.
    pub fn submit(
        &mut self,
        token: u64,
        operation: Operation,
        offset: u64,
        len: u64,
        segments: &[libc::iovec],
    ) -> Submission {
        // SAFETY: tests keep their buffers until the command is reaped or the context is dropped.
        let command = unsafe { StorageCommand::new(token, operation, offset, len, segments) };
        self.queue.submit(&mut self.context, &command)
    }

    /// Runs one command to its end.
    pub fn run(
        &mut self,
        operation: Operation,
        offset: u64,
        len: u64,
        segments: &[libc::iovec],
    ) -> Result<(), StorageError> {
        match self.submit(u64::MAX, operation, offset, len, segments) {
            Submission::Complete(result) => return result,
            Submission::Busy => panic!("busy with nothing in flight"),
            Submission::Queued => {}
        }
        let done = self.finish(1);
        assert_eq!(done[0].0, u64::MAX);
        done[0].1
    }

    /// Reaps that many commands.
    pub fn finish(&mut self, count: usize) -> Vec<(u64, Result<(), StorageError>)> {
        let mut done = Vec::new();
        let start = Instant::now();
        while done.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} commands after a minute", done.len());
            self.context.submit_batch();
            if self.context.reap(&mut |token, result| done.push((token, result))) == 0 {
                std::thread::yield_now();
            }
        }
        done
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.write_fua(offset, data, false)
    }

    pub fn write_fua(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<(), StorageError> {
        let mut copy = data.to_vec();
        self.run(Operation::Write { fua }, offset, data.len() as u64, &[segment(&mut copy)])
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, StorageError> {
        let mut data = vec![0xEE; len];
        let segments = [segment(&mut data)];
        self.run(Operation::Read, offset, len as u64, &segments)?;
        Ok(data)
    }

    pub fn flush(&mut self) -> Result<(), StorageError> {
        self.run(Operation::Flush, 0, 0, &[])
    }
}

pub fn segment(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Memory that starts `skew` bytes after a page.
#[derive(Debug)]
pub struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    pub fn new(len: usize, skew: usize) -> Self {
        let bytes = vec![0xEE; len + skew + 4096];
        let start = bytes.as_ptr().addr().next_multiple_of(4096) - bytes.as_ptr().addr() + skew;
        Self { bytes, start, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Cut into segments of these lengths, in turn, until all is covered.
    pub fn segments(&mut self, lens: &[usize]) -> Vec<libc::iovec> {
        let mut rest = self.bytes();
        let mut segments = Vec::new();
        for len in lens.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (first, left) = rest.split_at_mut((*len).min(rest.len()));
            segments.push(segment(first));
            rest = left;
        }
        segments
    }
}

/// A directory on a real file system, which does direct I/O.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory")
}

/// A sparse file.
pub fn file(directory: &Path, name: &str, len: u64) -> PathBuf {
    let path = directory.join(name);
    std::fs::File::create(&path).and_then(|file| file.set_len(len)).expect("image");
    path
}

/// An image made by QEMU's own tool.
pub fn qcow2(directory: &Path, name: &str, size: &str) -> PathBuf {
    let path = directory.join(name);
    qemu_img(&["create", "-q", "-f", "qcow2", path.to_str().expect("path"), size]);
    path
}

pub fn qemu_img(arguments: &[&str]) {
    let output = Command::new("qemu-img").args(arguments).output().expect("qemu-img (package qemu-utils)");
    assert!(
        output.status.success(),
        "qemu-img {arguments:?}: {} {}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
