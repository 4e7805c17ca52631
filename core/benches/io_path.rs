//! The core alone: fetch, parse and complete a command, without data.
//!
//! Time is per command, driver included: it writes 64 bytes, and reads 16 of the completion. Guest memory is
//! plain memory behind one bounds check, which is what a host's fast path is.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]
#![expect(unsafe_code, reason = "guest memory as hosts have it: raw memory, no references into it")]

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_core::doorbell::{head_index, tail_index};
use doorbell_core::group::{GroupConfig, QueueGroup};
use doorbell_core::memory::{Access, DmaError, DmaMemory};
use doorbell_core::message::{DoorbellBuffer, GroupRequest};
use doorbell_core::namespace::Namespace;
use doorbell_core::spec::nvm::NvmOpcode;
use doorbell_core::spec::status::Status;
use doorbell_core::tag::Tag;
use doorbell_core::testing::ShadowRule;
use doorbell_core::testing::entry::{DataPointer, on_blocks, with_cid};
use zerocopy::IntoBytes;

const BYTES: usize = 1 << 20;
const SQ: u64 = 0x1_0000;
const CQ: u64 = 0x2_0000;
const SIZE: u32 = 256;
const BUFFER: DoorbellBuffer = DoorbellBuffer { shadow: 0x3_0000, event_idx: 0x3_1000 };

/// Raw memory at guest address 0.
struct RawMemory(Box<UnsafeCell<[u64; BYTES / 8]>>);

impl RawMemory {
    fn pointer(&self, address: u64, len: usize) -> Result<*mut u8, DmaError> {
        match usize::try_from(address) {
            Ok(start) if start < BYTES && len <= BYTES - start => {
                // SAFETY: the range lies inside the one allocation.
                Ok(unsafe { self.0.get().cast::<u8>().add(start) })
            }
            _ => Err(DmaError),
        }
    }

    fn dword(&self, address: u64) -> Result<&AtomicU32, DmaError> {
        // SAFETY: four aligned bytes of the allocation, which lives as long as `self`; the bench has one thread
        // and holds no other reference into it.
        Ok(unsafe { AtomicU32::from_ptr(self.pointer(address & !3, 4)?.cast()) })
    }
}

impl DmaMemory for RawMemory {
    #[inline]
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let from = self.pointer(address, buffer.len())?;
        // SAFETY: both are valid for this length and don't overlap: no reference into the memory exists.
        unsafe { from.copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
        Ok(())
    }
    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let to = self.pointer(address, bytes.len())?;
        // SAFETY: as in `read`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
    #[inline]
    fn load_u32(&self, address: u64) -> Result<u32, DmaError> {
        Ok(self.dword(address)?.load(Ordering::Relaxed))
    }
    #[inline]
    fn store_u32(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.dword(address)?.store(value, Ordering::Relaxed);
        Ok(())
    }
    #[inline]
    fn compare_exchange_u32(&self, address: u64, current: u32, new: u32) -> Result<u32, DmaError> {
        let dword = self.dword(address)?;
        let (Ok(found) | Err(found)) =
            dword.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
        Ok(found)
    }
    #[inline]
    fn publish(&self, address: u64, entry: [u32; 4]) -> Result<(), DmaError> {
        let to = self.pointer(address & !15, 16)?.cast::<u32>();
        for (index, dword) in entry.into_iter().enumerate() {
            if index == 3 {
                fence(Ordering::Release);
            }
            // SAFETY: the pointer stays inside the 16 bytes.
            let place = unsafe { to.add(index) };
            // SAFETY: as in `dword`.
            unsafe { AtomicU32::from_ptr(place) }.store(dword, Ordering::Relaxed);
        }
        Ok(())
    }
    #[inline]
    fn check(&self, address: u64, len_bytes: u64, _: Access) -> Result<(), DmaError> {
        self.pointer(address, usize::try_from(len_bytes).unwrap_or(BYTES)).map(|_| ())
    }
}

struct Bench {
    memory: RawMemory,
    registers: Vec<AtomicU32>,
    group: QueueGroup,
    shadow: bool,
    tail: u32,
    head: u32,
    tags: Vec<Tag>,
}

impl Bench {
    fn new(shadow: bool) -> Self {
        let memory = RawMemory(Box::new(UnsafeCell::new([0; BYTES / 8])));
        let registers: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();
        let mut group = QueueGroup::new(GroupConfig::DEFAULT);
        let namespace = Namespace { size_blocks: 1 << 30, block_shift: 9, read_only: false };
        for request in [
            GroupRequest::SetNamespace { nsid: 1, namespace },
            GroupRequest::CreateCompletionQueue {
                qid: 1,
                base: CQ,
                size: SIZE,
                vector: Some(1),
                coalesce: false,
            },
            GroupRequest::CreateSubmissionQueue { qid: 1, cqid: 1, base: SQ, size: SIZE, page_shift: 12 },
        ] {
            group.handle_request(&memory, &registers, request);
            while group.poll_message().is_some() {}
        }
        if shadow {
            group.handle_request(&memory, &registers, GroupRequest::SetDoorbellBuffer(BUFFER));
            while group.poll_message().is_some() {}
        }
        Self { memory, registers, group, shadow, tail: 0, head: 0, tags: Vec::with_capacity(256) }
    }

    fn ring(&self, index: u32, value: u32) {
        fence(Ordering::Release);
        if self.shadow {
            let offset = u64::from(index) * 4;
            let old = self.memory.load_u32(BUFFER.shadow + offset).unwrap();
            self.memory.store_u32(BUFFER.shadow + offset, value).unwrap();
            fence(Ordering::SeqCst);
            let event_idx = self.memory.load_u32(BUFFER.event_idx + offset).unwrap();
            if !ShadowRule::Linux.needs_register(event_idx, old, value) {
                return;
            }
        }
        self.registers[index as usize].store(value, Ordering::Relaxed);
    }

    /// The driver submits `count` reads, the device completes them, the driver takes them.
    fn turn(&mut self, count: u32) {
        let read = on_blocks(NvmOpcode::READ, 1, 8, 8, DataPointer { low: 0x4_0000, ..Default::default() });
        for index in 0..count {
            let entry = with_cid(read, index as u16);
            self.memory.write(SQ + u64::from(self.tail) * 64, entry.as_bytes()).unwrap();
            self.tail = (self.tail + 1) % SIZE;
        }
        self.ring(tail_index(1), self.tail);
        self.device(count);
        for _ in 0..count {
            let dword3 = self.memory.load_u32(CQ + u64::from(self.head) * 16 + 12).unwrap();
            black_box(dword3);
            self.head = (self.head + 1) % SIZE;
        }
        self.ring(head_index(1), self.head);
    }

    #[inline(never)]
    fn device(&mut self, count: u32) {
        while let Some(command) = self.group.poll_command(&self.memory, &self.registers) {
            self.tags.push(black_box(command).tag);
        }
        assert_eq!(self.tags.len(), count as usize);
        for tag in self.tags.drain(..) {
            let _ = black_box(self.group.complete(&self.memory, tag, Status::SUCCESS));
        }
        while self.group.poll_interrupt(0).is_some() {}
    }
}

fn io_path(criterion: &mut Criterion) {
    for (name, shadow) in [("registers", false), ("shadow", true)] {
        let mut group = criterion.benchmark_group(name);
        for count in [1_u32, 8, 32, 128] {
            group.throughput(Throughput::Elements(u64::from(count)));
            let mut bench = Bench::new(shadow);
            group.bench_function(format!("batch {count}"), |bencher| bencher.iter(|| bench.turn(count)));
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1))
        .sample_size(30);
    targets = io_path
}
criterion_main!(benches);
