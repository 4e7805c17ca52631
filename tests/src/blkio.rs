//! A client of a virtio disk without a VM: the driver of the crate `blkio`, which is libblkio's.
#![expect(unsafe_code, reason = "the crate fills completions and data through raw pointers")]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ::blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use anyhow::{Context, Result, bail, ensure};

/// The most requests in flight.
pub const MAX_DEPTH: usize = 128;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads into the buffer.
    Read,
    /// Writes from the buffer.
    Write,
    /// Makes the range read zero.
    WriteZeroes,
    /// Forgets the range.
    Discard,
    /// Makes durable what was written.
    Flush,
}

/// A disk with one queue that the client polls.
pub struct Client {
    queue: Blkioq,
    disk: Blkio,
    region: MemoryRegion,
    /// The buffers, for those who look into them.
    memory: File,
    slot_bytes: usize,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("slot_bytes", &self.slot_bytes).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects, with `slots` buffers of `slot_bytes`.
    pub fn connect(socket: &Path, slots: usize, slot_bytes: usize) -> Result<Self> {
        ensure!((1..=MAX_DEPTH).contains(&slots), "{slots} is not between 1 and {MAX_DEPTH}");
        let mut disk = Blkio::new("virtio-blk-vhost-user")?;
        disk.set_str("path", socket.to_str().context("the socket's path is no UTF-8")?)?;
        disk.connect()?;
        disk.set_i32("num-queues", 0)?;
        disk.set_i32("num-poll-queues", 1)?;
        let mut started = disk.start()?;
        let queue = started.poll_queues.pop().context("a queue")?;
        let region = disk.alloc_mem_region((slots * slot_bytes).next_multiple_of(4096))?;
        disk.map_mem_region(&region)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", region.fd))?;
        Ok(Self { queue, disk, region, memory, slot_bytes })
    }

    /// Bytes of the disk.
    pub fn capacity(&self) -> Result<u64> {
        Ok(self.disk.get_u64("capacity")?)
    }

    /// Writes a buffer's bytes.
    pub fn fill(&self, slot: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write_all_at(bytes, (slot * self.slot_bytes) as u64)?)
    }

    /// A buffer's bytes.
    pub fn bytes(&self, slot: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, (slot * self.slot_bytes) as u64)?;
        Ok(bytes)
    }

    /// Starts a request with the buffer of `slot`, which comes back with its end.
    pub fn submit(&mut self, operation: Operation, slot: usize, offset: u64, len: usize) {
        let moves_data = matches!(operation, Operation::Read | Operation::Write);
        let fits = !moves_data || len <= self.slot_bytes;
        assert!(fits && (slot + 1) * self.slot_bytes <= self.region.len, "{len} bytes in buffer {slot}");
        let buffer = std::ptr::with_exposed_provenance_mut::<u8>(self.region.addr + slot * self.slot_bytes);
        let (queue, none) = (&mut self.queue, ReqFlags::empty());
        match operation {
            Operation::Read => queue.read(offset, buffer, len, slot, none),
            Operation::Write => queue.write(offset, buffer, len, slot, none),
            Operation::WriteZeroes => queue.write_zeroes(offset, len as u64, slot, none),
            Operation::Discard => queue.discard(offset, len as u64, slot, none),
            Operation::Flush => queue.flush(slot, none),
        }
    }

    /// Waits until at least `count` requests have ended; `ended` gets the slot of each. A failure is an error.
    pub fn wait(&mut self, count: usize, mut ended: impl FnMut(usize)) -> Result<()> {
        let mut completions = [const { MaybeUninit::<Completion>::uninit() }; MAX_DEPTH];
        let mut patience = Duration::from_secs(30);
        let done = self.queue.do_io(&mut completions, count, Some(&mut patience), None)?;
        for completion in &completions[..done] {
            // SAFETY: the queue has filled as many as it says.
            let completion = unsafe { completion.assume_init_ref() };
            if completion.ret != 0 {
                bail!("request of buffer {} ended with {}", completion.user_data, completion.ret);
            }
            ended(completion.user_data);
        }
        Ok(())
    }

    /// One request from start to end.
    pub fn run(&mut self, operation: Operation, offset: u64, len: usize) -> Result<()> {
        self.submit(operation, 0, offset, len);
        self.wait(1, |_| ())
    }

    /// Random requests with `depth` of them in flight, over the whole disk; requests a second.
    pub fn measure(
        &mut self,
        operation: Operation,
        depth: usize,
        len: usize,
        duration: Duration,
    ) -> Result<f64> {
        let places = self.capacity()? / len as u64;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut place = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % places * len as u64
        };
        for slot in 0..depth {
            self.submit(operation, slot, place(), len);
        }
        let mut idle = Vec::with_capacity(depth);
        let (start, mut count) = (Instant::now(), 0_u64);
        loop {
            self.wait(1, |slot| idle.push(slot))?;
            count += idle.len() as u64;
            let elapsed = start.elapsed();
            if elapsed >= duration {
                let left = depth - idle.len();
                let mut ended = 0;
                while ended < left {
                    self.wait(1, |_| ended += 1)?;
                }
                return Ok(count as f64 / elapsed.as_secs_f64());
            }
            for slot in idle.drain(..) {
                self.submit(operation, slot, place(), len);
            }
        }
    }
}
