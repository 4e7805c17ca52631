//! Guest memory and doorbell registers, lent to an instance for the length of one call.
//!
//! The imports of a running module need what the host's caller has only borrowed, and a store's data outlives
//! every borrow. So the borrows are kept there without their lifetimes, and taken back before the function that
//! lent them returns, however it returns.
#![expect(unsafe_code, reason = "lifetimes are taken off and put on again here and nowhere else")]

use std::ptr::NonNull;

use doorbell_core::doorbell::Registers;
use doorbell_core::memory::DmaMemory;

/// What is lent at present.
#[derive(Default)]
pub(crate) struct Lent {
    memory: Option<NonNull<dyn DmaMemory>>,
    registers: Option<NonNull<Registers>>,
}

// SAFETY: the pointers are there only while `lend` runs, on the thread that called it with borrows of its own. A
// store that moves to another thread isn't borrowed by `lend`, so it holds none.
unsafe impl Send for Lent {}

impl Lent {
    /// The guest memory of the call that is running.
    pub(crate) fn memory(&self) -> Option<&dyn DmaMemory> {
        // SAFETY: while the pointer is there, `lend` runs and holds the borrow that it was made of; the reference
        // lives no longer than this borrow of the store's data, which `lend` outlives.
        self.memory.map(|memory| unsafe { memory.as_ref() })
    }

    /// The doorbell registers of the call that is running.
    pub(crate) fn registers(&self) -> Option<&Registers> {
        // SAFETY: as for the memory.
        self.registers.map(|registers| unsafe { registers.as_ref() })
    }
}

/// Something whose data holds a [`Lent`].
pub(crate) trait Borrower {
    /// It.
    fn lent(&mut self) -> &mut Lent;
}

/// Runs `call` while `borrower` has `memory` and `registers`.
#[inline]
pub(crate) fn lend<B: Borrower, R>(
    borrower: &mut B,
    memory: Option<&dyn DmaMemory>,
    registers: Option<&Registers>,
    call: impl FnOnce(&mut B) -> R,
) -> R {
    /// Takes back what was lent, also when `call` unwinds.
    struct TakeBack<'a, B: Borrower>(&'a mut B);
    impl<B: Borrower> Drop for TakeBack<'_, B> {
        fn drop(&mut self) {
            *self.0.lent() = Lent::default();
        }
    }
    let lent = Lent {
        memory: memory.map(|memory| {
            let pointer = NonNull::from(memory);
            // SAFETY: only the lifetime of the trait object changes; `TakeBack` ends its use within the real one.
            unsafe { std::mem::transmute::<NonNull<dyn DmaMemory + '_>, NonNull<dyn DmaMemory>>(pointer) }
        }),
        registers: registers.map(NonNull::from),
    };
    *borrower.lent() = lent;
    let guard = TakeBack(borrower);
    call(&mut *guard.0)
}
