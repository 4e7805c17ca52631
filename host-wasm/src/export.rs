//! The exports of a module: looked for, and their types checked, once, when the module is loaded; and calls of them.
//!
//! An instance looks an export up when it is first called, by its index in the module. So an instance costs nothing
//! for the exports that it never calls, and a call nothing for what was known when the module was loaded.
#![expect(unsafe_code, reason = "calls without the check of the type, which loading has made")]

use std::marker::PhantomData;

use wasmtime::{AsContextMut, ExternType, Func, FuncType, ModuleExport, ValRaw, ValType};

use crate::error::LoadError;

/// Most values that an export takes.
const MOST_VALUES: usize = 3;

/// What an export takes.
pub(crate) trait Parameters: 'static {
    /// Their types: `i` for i32, `l` for i64.
    const LETTERS: &'static str;

    /// As the engine passes them. What there is no value for is 0.
    fn store(self) -> [ValRaw; MOST_VALUES];
}

/// What an export returns: a value, or nothing.
pub(crate) trait Results: 'static {
    /// As [`Parameters::LETTERS`].
    const LETTERS: &'static str;

    /// As the engine has left it.
    fn load(value: ValRaw) -> Self;
}

/// One of the exports that a module may have, with parameters `P` and results `R`.
pub(crate) struct Export<P, R> {
    index: usize,
    types: PhantomData<fn(P) -> R>,
}

/// Defines [`Calls`] and [`TABLE`]. A macro, so that an export's name, its types and its index, which calls rely on,
/// come from one line.
macro_rules! exports {
    ($($name:ident: $parameters:ty => $results:ty,)*) => {
        /// The exports that there can be.
        pub(crate) struct Calls {
            $(pub(crate) $name: Export<$parameters, $results>,)*
        }

        #[expect(non_camel_case_types, reason = "the exports' own names")]
        enum Index {
            $($name,)*
        }

        /// Every one of them.
        pub(crate) static CALLS: Calls = Calls {
            $($name: Export { index: Index::$name as usize, types: PhantomData },)*
        };

        /// Names, parameters and results, by index.
        const TABLE: &[(&str, &str, &str)] = &[
            $((stringify!($name), <$parameters as Parameters>::LETTERS, <$results as Results>::LETTERS),)*
        ];
    };
}

exports! {
    abi_version: () => u32,
    layout: () => u32,
    controller_init: () => (),
    controller_read: (u32, u32) => (),
    controller_write: (u32, u32) => (),
    controller_doorbell: (u32, u32) => (),
    controller_poll: u64 => u32,
    controller_message: u32 => u32,
    controller_reset: u32 => (),
    controller_unmap: (u64, u64) => (),
    controller_flushed: u32 => (),
    controller_statistics: u32 => (),
    controller_counters: u32 => (),
    controller_busy: u64 => (),
    controller_temperature: u32 => (),
    namespace_add: u32 => u64,
    namespace_resize: (u32, u64) => u64,
    namespace_remove: u32 => u64,
    group_init: (u32, u32) => (),
    group_request: () => u32,
    group_poll: (u32, u32, u64) => (),
    group_arm: u32 => u32,
    group_level: () => u32,
    group_pause: u32 => (),
    group_abandon: () => (),
    group_statistics: () => (),
    group_queue: u32 => u32,
    state_buffer: () => u64,
    controller_save: () => u32,
    controller_load: u32 => u32,
    group_save: () => u32,
    group_load: u32 => u32,
}

const COUNT: usize = TABLE.len();

/// Those from here on may be missing: statistics, and the exports of a live upgrade.
const FIRST_OPTIONAL: usize = Index::group_statistics as usize;

/// Where a module has its exports.
pub(crate) struct Exports {
    memory: ModuleExport,
    functions: [Option<ModuleExport>; COUNT],
}

impl Exports {
    /// Finds the exports and checks their types.
    ///
    /// # Errors
    /// With the one that is missing or has another type. An optional one of another type counts as missing.
    pub(crate) fn find(module: &wasmtime::Module) -> Result<Self, LoadError> {
        let mut functions = [None; COUNT];
        for (index, (place, &(name, parameters, results))) in functions.iter_mut().zip(TABLE).enumerate() {
            *place = match module.get_export(name) {
                Some(ExternType::Func(function)) if is_signature(&function, parameters, results) => {
                    module.get_export_index(name)
                }
                _ => None,
            };
            if place.is_none() && index < FIRST_OPTIONAL {
                return Err(LoadError::Export(name));
            }
        }
        let memory = match module.get_export("memory") {
            Some(ExternType::Memory(_)) => module.get_export_index("memory"),
            _ => None,
        };
        Ok(Self { memory: memory.ok_or(LoadError::Export("memory"))?, functions })
    }

    /// The memory of an instance.
    pub(crate) fn memory(
        &self,
        instance: &wasmtime::Instance,
        store: impl AsContextMut,
    ) -> Option<wasmtime::Memory> {
        instance.get_module_export(store, &self.memory)?.into_memory()
    }

    /// Whether the module has an export.
    pub(crate) fn has<P: Parameters, R: Results>(&self, export: &Export<P, R>) -> bool {
        matches!(self.functions.get(export.index), Some(Some(_)))
    }
}

/// `i` for i32, `l` for i64.
pub(crate) fn is_signature(function: &FuncType, parameters: &str, results: &str) -> bool {
    let letter = |value: ValType| match value {
        ValType::I32 => 'i',
        ValType::I64 => 'l',
        _ => '?',
    };
    function.params().map(letter).eq(parameters.chars()) && function.results().map(letter).eq(results.chars())
}

/// The functions of an instance, as far as they have been called.
pub(crate) struct Functions {
    instance: wasmtime::Instance,
    found: [Option<Func>; COUNT],
}

impl Functions {
    pub(crate) fn new(instance: wasmtime::Instance) -> Self {
        Self { instance, found: [None; COUNT] }
    }

    /// Calls an export. `exports` are those of the instance's module.
    #[inline]
    pub(crate) fn call<P: Parameters, R: Results>(
        &mut self,
        exports: &Exports,
        mut store: impl AsContextMut,
        export: &Export<P, R>,
        parameters: P,
    ) -> wasmtime::Result<R> {
        let function = match self.found.get(export.index) {
            Some(Some(function)) => *function,
            _ => self.find(exports, &mut store, export.index)?,
        };
        let mut values = parameters.store();
        // SAFETY: the function's type is that of `TABLE` at this index: `Exports::find` has compared them before it
        // named the function in a module, and `find` takes it from there, whatever module that is. In `TABLE`, `P`
        // and `R` are on the same line as the index. The values are as many as the longer of them, and no references.
        unsafe { function.call_unchecked(store, &raw mut values) }?;
        let [value, ..] = values;
        Ok(R::load(value))
    }

    #[cold]
    fn find(&mut self, exports: &Exports, store: impl AsContextMut, index: usize) -> wasmtime::Result<Func> {
        let export = exports.functions.get(index).copied().flatten();
        let function = export.and_then(|export| self.instance.get_module_export(store, &export)?.into_func());
        if let Some(place) = self.found.get_mut(index) {
            *place = function;
        }
        function.ok_or_else(|| wasmtime::Error::msg("the module has no such export"))
    }
}

/// Implements [`Parameters`] for types whose values are named.
macro_rules! parameters {
    ($($types:ty, $letters:literal: $pattern:pat => $values:expr;)*) => {
        $(impl Parameters for $types {
            const LETTERS: &'static str = $letters;

            #[inline]
            fn store(self) -> [ValRaw; MOST_VALUES] {
                let $pattern = self;
                $values
            }
        })*
    };
}

#[inline]
fn none() -> ValRaw {
    ValRaw::u64(0)
}

parameters! {
    (), "": () => [none(), none(), none()];
    u32, "i": a => [ValRaw::u32(a), none(), none()];
    u64, "l": a => [ValRaw::u64(a), none(), none()];
    (u32, u32), "ii": (a, b) => [ValRaw::u32(a), ValRaw::u32(b), none()];
    (u32, u64), "il": (a, b) => [ValRaw::u32(a), ValRaw::u64(b), none()];
    (u64, u64), "ll": (a, b) => [ValRaw::u64(a), ValRaw::u64(b), none()];
    (u32, u32, u64), "iil": (a, b, c) => [ValRaw::u32(a), ValRaw::u32(b), ValRaw::u64(c)];
}

impl Results for () {
    const LETTERS: &'static str = "";

    #[inline]
    fn load(_: ValRaw) {}
}

impl Results for u32 {
    const LETTERS: &'static str = "i";

    #[inline]
    fn load(value: ValRaw) -> Self {
        value.get_u32()
    }
}

impl Results for u64 {
    const LETTERS: &'static str = "l";

    #[inline]
    fn load(value: ValRaw) -> Self {
        value.get_u64()
    }
}
