//! One instance: its store, its exports, the layout of its memory, and what every call of it goes through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use doorbell_abi::{CHECK_ONLY, Field, LAYOUT_WORDS, MAGIC, SCRATCH_BYTES};
use doorbell_core::doorbell::Registers;
use doorbell_core::memory::{Access, DmaError, DmaMemory};
use rustix::time::{ClockId, clock_gettime};
use wasmtime::{
    Caller, Linker, Memory, Store, StoreContextMut, StoreLimits, StoreLimitsBuilder, Trap, UpdateDeadline,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Fault;
use crate::export::{CALLS, Calls, Export, Functions, Parameters, Results};
use crate::lend::{Borrower, Lent, lend};
use crate::mirror::{Mirror, WriteBack};
use crate::module::Module;

/// What a tenant may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Processor time that one call may take. It is measured from the first millisecond on, and stopping takes up
    /// to one more; so a runaway is stopped within this and 2 ms of its thread's time.
    pub call_time: Duration,
    /// Bytes of guest memory that one call may read and write. User data doesn't count: the module never moves it.
    pub dma_bytes: u64,
}

impl Quotas {
    /// Half a millisecond and 16 MiB a call: a turn of a busy queue takes a few microseconds.
    pub const DEFAULT: Self = Self { call_time: Duration::from_micros(500), dma_bytes: 16 << 20 };
}

impl Default for Quotas {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What belongs to an instance and its imports can see.
pub(crate) struct Data {
    limits: StoreLimits,
    lent: Lent,
    memory: Option<Memory>,
    quotas: Quotas,
    dma_left: u64,
    /// Processor time of the thread when the running call was first found to be long.
    long_since: Option<Duration>,
    stop: Arc<AtomicBool>,
    pub(crate) mirror: Mirror,
    registers: Area,
    /// Bytes of guest memory that calls have moved.
    dma_bytes: u64,
    /// A register was found changed, and copied into the module, in the middle of a call.
    restaged: bool,
}

impl Borrower for Store<Data> {
    fn lent(&mut self) -> &mut Lent {
        &mut self.data_mut().lent
    }
}

/// An error of ours on its way through the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Stop(Fault);

/// A list in linear memory, checked once to lie inside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Area {
    at: usize,
    /// Records.
    pub(crate) count: usize,
    record_bytes: usize,
}

impl Area {
    /// The bytes of the list.
    #[inline]
    pub(crate) fn of(self, memory: &mut [u8]) -> &mut [u8] {
        memory.get_mut(self.at..self.at + self.count * self.record_bytes).unwrap_or_default()
    }

    /// A record of the list.
    #[inline]
    pub(crate) fn get<R: FromBytes>(self, memory: &[u8], index: usize) -> Option<R> {
        let at = self.at + index * self.record_bytes;
        if index >= self.count {
            return None;
        }
        R::read_from_bytes(memory.get(at..at + size_of::<R>())?).ok()
    }

    /// A record of the list, in place.
    #[inline]
    pub(crate) fn at<R: FromBytes + Immutable + KnownLayout + Unaligned>(
        self,
        memory: &[u8],
        index: usize,
    ) -> Option<&R> {
        let at = self.at + index * self.record_bytes;
        if index >= self.count {
            return None;
        }
        R::ref_from_prefix(memory.get(at..)?).ok().map(|(record, _)| record)
    }

    /// The first `count` records of the list.
    #[inline]
    pub(crate) fn list<R: FromBytes + Immutable + KnownLayout + Unaligned>(
        self,
        memory: &[u8],
        count: usize,
    ) -> &[R] {
        let bytes = memory.get(self.at..).unwrap_or_default();
        <[R]>::ref_from_prefix_with_elems(bytes, count.min(self.count)).map_or(&[], |(records, _)| records)
    }

    /// Stores a record of the list.
    #[inline]
    pub(crate) fn set<R: IntoBytes + Immutable>(self, memory: &mut [u8], index: usize, record: &R) {
        let at = self.at + index * self.record_bytes;
        if index < self.count
            && let Some(place) = memory.get_mut(at..at + size_of::<R>())
        {
            place.copy_from_slice(record.as_bytes());
        }
    }
}

/// Where things are in linear memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) registers: Area,
    pub(crate) shadows: Area,
    pub(crate) completions: Area,
    pub(crate) commands: Area,
    pub(crate) writes: Area,
    pub(crate) messages: Area,
    pub(crate) interrupts: Area,
    pub(crate) cancels: Area,
    pub(crate) outputs: Area,
    pub(crate) turn: Area,
    pub(crate) input: Area,
    pub(crate) state: Area,
    pub(crate) scratch: Area,
    pub(crate) groups: u32,
    pub(crate) queues: u32,
    pub(crate) command_slots: u32,
    pub(crate) namespaces: u32,
}

/// See the module.
pub(crate) struct Instance {
    store: Store<Data>,
    memory: Memory,
    pub(crate) layout: Layout,
    module: Module,
    functions: Functions,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Instance {
    /// A fresh instance. Its start function runs under the quotas like every call.
    ///
    /// # Errors
    /// Where the pool is empty, the module breaks a rule, or it speaks another version of the interface.
    pub(crate) fn new(module: &Module, quotas: Quotas, stop: Arc<AtomicBool>) -> Result<Self, Fault> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(module.engine().config().memory_bytes).unwrap_or(usize::MAX))
            .table_elements(64)
            .instances(1)
            .tables(1)
            .memories(1)
            .build();
        let data = Data {
            limits,
            lent: Lent::default(),
            memory: None,
            quotas,
            dma_left: quotas.dma_bytes,
            long_since: None,
            stop,
            mirror: Mirror::default(),
            registers: Area::default(),
            dma_bytes: 0,
            restaged: false,
        };
        let mut store = Store::new(module.engine().wasmtime(), data);
        store.limiter(|data| &mut data.limits);
        store.epoch_deadline_callback(deadline);
        store.set_epoch_deadline(1);
        let instance = module.pre().instantiate(&mut store).map_err(|error| match fault_of(&error) {
            Fault::Trap(text) if !error.is::<Trap>() => Fault::Instance(text),
            fault => fault,
        })?;
        let memory = module.exports().memory(&instance, &mut store).ok_or(Fault::Interface("no memory"))?;
        store.data_mut().memory = Some(memory);
        let mut made = Self {
            store,
            memory,
            layout: Layout::default(),
            module: module.clone(),
            functions: Functions::new(instance),
        };
        made.layout = match module.layout() {
            Some(layout) => *layout,
            None => module.set_layout(made.ask_layout()?),
        };
        let data = made.store.data_mut();
        data.mirror = Mirror::new(made.layout.registers.count);
        data.registers = made.layout.registers;
        Ok(made)
    }

    /// Asks a fresh instance for its layout. An instance knows nothing by then that another doesn't, so they all
    /// answer the same, and what the first has said is true of every one.
    fn ask_layout(&mut self) -> Result<Layout, Fault> {
        if self.call(|calls| &calls.abi_version, ())? != doorbell_abi::ABI_VERSION {
            return Err(Fault::Interface("another version of the interface"));
        }
        let at = self.call(|calls| &calls.layout, ())?;
        Layout::read(self.memory(), at).ok_or(Fault::Interface("layout"))
    }

    /// Whether the module has an export that it may leave out.
    pub(crate) fn has<P: Parameters, R: Results>(
        &self,
        export: impl FnOnce(&'static Calls) -> &'static Export<P, R>,
    ) -> bool {
        self.module.exports().has(export(&CALLS))
    }

    /// Calls an export that touches no guest memory.
    #[inline]
    pub(crate) fn call<P: Parameters, R: Results>(
        &mut self,
        export: impl FnOnce(&'static Calls) -> &'static Export<P, R>,
        parameters: P,
    ) -> Result<R, Fault> {
        let Self { store, module, functions, .. } = self;
        prepare(store);
        functions.call(module.exports(), store, export(&CALLS), parameters).map_err(|error| fault_of(&error))
    }

    /// Calls an export with guest memory and doorbells.
    #[inline]
    pub(crate) fn call_with<P: Parameters, R: Results>(
        &mut self,
        memory: &dyn DmaMemory,
        registers: &Registers,
        export: impl FnOnce(&'static Calls) -> &'static Export<P, R>,
        parameters: P,
    ) -> Result<R, Fault> {
        let Self { store, module, functions, .. } = self;
        prepare(store);
        let result = lend(store, Some(memory), Some(registers), |store| {
            functions.call(module.exports(), store, export(&CALLS), parameters)
        });
        result.map_err(|error| fault_of(&error))
    }

    /// Looks at the watched registers and copies what has moved into the module, shadow doorbells that were seen before
    /// too; whether a register has.
    pub(crate) fn stage_registers(&mut self, registers: &Registers) -> bool {
        let (memory, layout, data) = self.parts();
        let moved = data.mirror.see_registers(registers);
        data.mirror.store_registers(layout.registers.of(memory));
        data.mirror.store_shadows(layout.shadows.of(memory));
        moved.any()
    }

    /// Takes what the module has written to registers back.
    pub(crate) fn write_back(&mut self, registers: &Registers, how: WriteBack) {
        let (memory, layout, data) = self.parts();
        data.mirror.write_back(registers, layout.registers.of(memory), how);
    }

    /// The doorbells' bookkeeping.
    pub(crate) fn mirror(&mut self) -> &mut Mirror {
        &mut self.store.data_mut().mirror
    }

    /// Linear memory.
    #[inline]
    pub(crate) fn memory(&self) -> &[u8] {
        self.memory.data(&self.store)
    }

    /// Linear memory.
    #[inline]
    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        self.memory.data_mut(&mut self.store)
    }

    /// Linear memory, where things are in it, and what belongs to the instance. Finding the memory takes a few
    /// nanoseconds, so a turn does it once before the call and once after.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut [u8], &Layout, &mut Data) {
        let (memory, data) = self.memory.data_and_store_mut(&mut self.store);
        (memory, &self.layout, data)
    }

    /// Puts bytes at the start of the scratch area, as many as fit.
    pub(crate) fn set_scratch(&mut self, bytes: &[u8]) {
        let area = self.layout.scratch;
        for (place, byte) in area.of(self.memory_mut()).iter_mut().zip(bytes) {
            *place = *byte;
        }
    }

    /// The record at the start of the scratch area.
    pub(crate) fn scratch<R: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<R> {
        let area = self.layout.scratch;
        R::read_from_prefix(area.of(self.memory_mut())).ok().map(|(record, _)| record)
    }

    /// Bytes at the start of the scratch area.
    pub(crate) fn scratch_bytes(&mut self, len: usize) -> &[u8] {
        let area = self.layout.scratch;
        area.of(self.memory_mut()).get(..len).unwrap_or_default()
    }
}

/// Before every call: what it may use begins anew.
#[inline]
fn prepare(store: &mut Store<Data>) {
    store.set_epoch_deadline(1);
    let data = store.data_mut();
    data.dma_left = data.quotas.dma_bytes;
    data.long_since = None;
}

#[cold]
fn fault_of(error: &wasmtime::Error) -> Fault {
    if let Some(Stop(fault)) = error.downcast_ref() {
        return fault.clone();
    }
    match error.downcast_ref::<Trap>() {
        Some(trap) => Fault::Trap(trap.to_string()),
        None => Fault::Trap(format!("{error:#}")),
    }
}

/// An epoch has passed while the module runs: has it used its time up? Processor time counts, so that a thread
/// which others kept from running isn't blamed for it.
fn deadline(mut store: StoreContextMut<'_, Data>) -> wasmtime::Result<UpdateDeadline> {
    let data = store.data_mut();
    if data.stop.load(Ordering::Relaxed) {
        return Err(wasmtime::Error::new(Stop(Fault::Killed)));
    }
    let now = processor_time();
    let since = *data.long_since.get_or_insert(now);
    if now.saturating_sub(since) >= data.quotas.call_time {
        return Err(wasmtime::Error::new(Stop(Fault::Overrun)));
    }
    Ok(UpdateDeadline::Continue(1))
}

/// What this thread has used of its processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

impl Data {
    #[inline]
    pub(crate) fn spend(&mut self, bytes: u64) -> Result<(), Fault> {
        self.dma_left = self.dma_left.checked_sub(bytes).ok_or(Fault::DmaQuota)?;
        self.dma_bytes = self.dma_bytes.wrapping_add(bytes);
        Ok(())
    }

    /// What happened since this was asked last: bytes of guest memory that calls have moved, and whether a register
    /// was copied into the module in the middle of a call, which may have looked at it before.
    #[inline]
    pub(crate) fn take_moved(&mut self) -> (u64, bool) {
        (std::mem::take(&mut self.dma_bytes), std::mem::take(&mut self.restaged))
    }
}

/// Defines the two imports.
pub(crate) fn define_imports(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    linker.func_wrap(doorbell_abi::IMPORTS, doorbell_abi::DMA_READ, dma_read)?;
    linker.func_wrap(doorbell_abi::IMPORTS, doorbell_abi::DMA_WRITE, dma_write)?;
    Ok(())
}

/// An import's answer: 0, or 1 where the range isn't guest memory that can be accessed that way.
fn answer(result: Result<(), DmaError>) -> u32 {
    u32::from(result.is_err())
}

fn dma_read(mut caller: Caller<'_, Data>, address: u64, ptr: u32, len: u32) -> wasmtime::Result<u32> {
    let Some(memory) = caller.data().memory else { return Ok(1) };
    let (linear, data) = memory.data_and_store_mut(&mut caller);
    if ptr == CHECK_ONLY {
        return Ok(answer(check(data, address, len, Access::Read)));
    }
    data.spend(u64::from(len)).map_err(|fault| wasmtime::Error::new(Stop(fault)))?;
    let place = slice(linear, ptr, len)?;
    let Some(guest) = data.lent.memory() else { return Ok(1) };
    let result = match <&mut [u8; 4]>::try_from(&mut *place) {
        Ok(dword) if address & 3 == 0 => guest.load_u32(address).map(|value| *dword = value.to_le_bytes()),
        _ => guest.read(address, place),
    };
    let Data { lent, mirror, registers: area, restaged, .. } = data;
    if len == 4
        && let Some(registers) = lent.registers()
    {
        // It may be a shadow doorbell; registers must not be seen older than it.
        fence(Ordering::SeqCst);
        *restaged |= mirror.see_registers(registers).any();
        mirror.store_registers(area.of(linear));
    }
    Ok(answer(result))
}

fn dma_write(mut caller: Caller<'_, Data>, address: u64, ptr: u32, len: u32) -> wasmtime::Result<u32> {
    let Some(memory) = caller.data().memory else { return Ok(1) };
    let (linear, data) = memory.data_and_store_mut(&mut caller);
    if ptr == CHECK_ONLY {
        return Ok(answer(check(data, address, len, Access::Write)));
    }
    data.spend(u64::from(len)).map_err(|fault| wasmtime::Error::new(Stop(fault)))?;
    let bytes = slice(linear, ptr, len)?;
    let Some(guest) = data.lent.memory() else { return Ok(1) };
    // A dword becomes visible after everything that was written before it: it may be a Phase Tag. Pairs with the
    // read barrier that a driver has between the Phase Tag and the rest of the entry.
    fence(Ordering::Release);
    let result = match <[u8; 4]>::try_from(&*bytes) {
        Ok(dword) if address & 3 == 0 => guest.store_u32(address, u32::from_le_bytes(dword)),
        _ => guest.write(address, bytes),
    };
    if len == 4 {
        // It may be EventIdx, and a load of the shadow comes next. Pairs with the driver's full barrier between
        // its store to the shadow and its load of EventIdx.
        fence(Ordering::SeqCst);
    }
    Ok(answer(result))
}

fn check(data: &Data, address: u64, len: u32, access: Access) -> Result<(), DmaError> {
    data.lent.memory().ok_or(DmaError)?.check(address, u64::from(len), access)
}

/// Part of linear memory; a range outside of it is a trap, as it is for the module's own accesses.
fn slice(linear: &mut [u8], ptr: u32, len: u32) -> wasmtime::Result<&mut [u8]> {
    let start = ptr as usize;
    let place = start.checked_add(len as usize).and_then(|end| linear.get_mut(start..end));
    place.ok_or_else(|| {
        wasmtime::Error::new(Stop(Fault::Interface("an import names memory that isn't there")))
    })
}

impl Layout {
    /// Reads the table at `at` and checks that everything in it lies inside the memory.
    fn read(memory: &[u8], at: u32) -> Option<Self> {
        let at = at as usize;
        let bytes = memory.get(at..at.checked_add(LAYOUT_WORDS * 4)?)?;
        let word = |field: Field| {
            let bytes = bytes.get(field as usize * 4..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        let area = |at: Field, count: Option<usize>, record_bytes: usize, most: usize| {
            let area = Area { at: word(at)?, count: count?, record_bytes };
            let end = area.count.checked_mul(record_bytes)?.checked_add(area.at)?;
            (end <= memory.len() && (1..=most).contains(&area.count)).then_some(area)
        };
        if word(Field::Magic)? != MAGIC as usize
            || word(Field::Version)? != doorbell_abi::ABI_VERSION as usize
        {
            return None;
        }
        let number = |field, most: usize| {
            word(field).filter(|found| (1..=most).contains(found)).and_then(|found| u32::try_from(found).ok())
        };
        use doorbell_abi::{
            CommandRecord, CompletionRecord, MessageRecord, StateRecord, TurnInput, TurnRecord, WriteRecord,
        };
        let layout = Self {
            registers: area(Field::Registers, word(Field::RegisterCount), 4, 1024)?,
            shadows: area(Field::Shadows, word(Field::ShadowCount), 4, 1024)?,
            completions: area(
                Field::Completions,
                word(Field::CompletionCount),
                size_of::<CompletionRecord>(),
                65_535,
            )?,
            commands: area(Field::Commands, word(Field::CommandCount), size_of::<CommandRecord>(), 4096)?,
            writes: area(Field::Writes, word(Field::WriteCount), size_of::<WriteRecord>(), 65_536)?,
            messages: area(Field::Messages, word(Field::MessageCount), size_of::<MessageRecord>(), 1024)?,
            interrupts: area(Field::Interrupts, word(Field::InterruptCount), 4, 1024)?,
            cancels: area(Field::Cancels, word(Field::CancelCount), 8, 1024)?,
            outputs: area(Field::Outputs, word(Field::OutputCount), size_of::<MessageRecord>(), 1024)?,
            turn: area(Field::Turn, Some(1), size_of::<TurnRecord>(), 1)?,
            input: area(Field::Input, Some(1), size_of::<TurnInput>(), 1)?,
            state: area(Field::State, Some(1), size_of::<StateRecord>(), 1)?,
            scratch: area(Field::Scratch, Some(SCRATCH_BYTES), 1, SCRATCH_BYTES)?,
            groups: number(Field::Groups, 64)?,
            queues: number(Field::Queues, 511)?,
            command_slots: number(Field::CommandSlots, 65_534)?,
            namespaces: number(Field::Namespaces, 1024)?,
        };
        (layout.shadows.count >= layout.registers.count).then_some(layout)
    }
}
