//! Modules: what is demanded of one before it may run, and where compiled ones are kept.

use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};
use wasmtime::{ExternType, InstancePre};

use crate::engine::Engine;
use crate::error::LoadError;
use crate::export::{Exports, is_signature};
use crate::instance::{Data, Layout};

/// Bytes that a module's file may have. The project's own has less than 64 KiB.
pub const MAX_MODULE_BYTES: usize = 1 << 20;

/// What a compiled module's file begins with.
const COMPILED: &[u8; 8] = b"DBELLcw1";

/// A compiled and checked module, ready for instances. Clones are cheap.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    module: wasmtime::Module,
    pre: InstancePre<Data>,
    exports: Exports,
    /// As the first instance said.
    layout: OnceLock<Layout>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("engine", &self.inner.engine).finish_non_exhaustive()
    }
}

/// SHA-256.
pub type ModuleDigest = [u8; 32];

impl Module {
    /// Compiles the module in a file.
    ///
    /// # Errors
    /// Where the file can't be read or isn't a module that may run.
    pub fn from_file(engine: &Engine, path: &Path) -> Result<Self, LoadError> {
        Self::new(engine, &read(path)?)
    }

    /// Compiles a module.
    ///
    /// # Errors
    /// Where it isn't a module that may run.
    pub fn new(engine: &Engine, wasm: &[u8]) -> Result<Self, LoadError> {
        check_size(wasm)?;
        let module = wasmtime::Module::from_binary(engine.wasmtime(), wasm)
            .map_err(|error| LoadError::Invalid(format!("{error:#}")))?;
        Self::checked(engine, module)
    }

    /// As [`Module::new`], with the compiled form kept in `folder` for the next time. The file is named by the
    /// digest of the module and of everything that compiling depends on, and holds the digest of its own contents,
    /// so one that is damaged is compiled again. The folder is made where it doesn't exist, for its owner alone.
    ///
    /// # Errors
    /// As [`Module::new`], and where others can write to the folder.
    pub fn cached(engine: &Engine, wasm: &[u8], folder: &Path) -> Result<Self, LoadError> {
        check_size(wasm)?;
        let failed = |source| LoadError::Cache { path: folder.to_owned(), source };
        private_folder(folder)?;
        let path = folder.join(format!("{}.cwasm", hex(&cache_key(engine, wasm))));
        if let Ok(bytes) = fs::read(&path)
            && let Some((digest, compiled)) = split_compiled(&bytes)
            && Sha256::digest(compiled)[..] == *digest
        {
            return Self::deserialize(engine, compiled);
        }
        let module = Self::new(engine, wasm)?;
        let compiled = module.serialize()?;
        // In one step, so that another process finds all of it or nothing.
        let partial = folder.join(format!(".{}.{}", std::process::id(), hex(&cache_key(engine, wasm))));
        let contents = [&COMPILED[..], &Sha256::digest(&compiled), &compiled].concat();
        fs::write(&partial, contents).map_err(failed)?;
        fs::rename(&partial, &path).map_err(failed)?;
        Ok(module)
    }

    /// The compiled form and its SHA-256, for [`Module::precompiled`].
    ///
    /// # Errors
    /// Where the engine can't serialize it.
    pub fn compile(engine: &Engine, wasm: &[u8]) -> Result<(Vec<u8>, ModuleDigest), LoadError> {
        let compiled = Self::new(engine, wasm)?.serialize()?;
        let digest = Sha256::digest(&compiled).into();
        Ok((compiled, digest))
    }

    /// Loads a compiled module. It is machine code: whoever chooses `digest` is trusted with this process, and
    /// nothing but the bytes of that digest is run.
    ///
    /// # Errors
    /// Where the digest is another one, or the module was compiled by another version or for another machine.
    pub fn precompiled(engine: &Engine, compiled: &[u8], digest: &ModuleDigest) -> Result<Self, LoadError> {
        let found: ModuleDigest = Sha256::digest(compiled).into();
        if found != *digest {
            return Err(LoadError::Digest { expected: hex(digest), found: hex(&found) });
        }
        Self::deserialize(engine, compiled)
    }

    fn serialize(&self) -> Result<Vec<u8>, LoadError> {
        self.inner.module.serialize().map_err(|error| LoadError::Engine(format!("{error:#}")))
    }

    #[expect(unsafe_code, reason = "compiled modules are machine code")]
    fn deserialize(engine: &Engine, compiled: &[u8]) -> Result<Self, LoadError> {
        // SAFETY: the bytes are what a compatible engine wrote: callers have compared their SHA-256 with one that
        // the user gave, or that lies in a folder which only this user can write to. The engine itself refuses
        // other versions and targets.
        let module = unsafe { wasmtime::Module::deserialize(engine.wasmtime(), compiled) };
        let module = module.map_err(|error| LoadError::Invalid(format!("{error:#}")))?;
        Self::checked(engine, module)
    }

    fn checked(engine: &Engine, module: wasmtime::Module) -> Result<Self, LoadError> {
        check_imports(&module)?;
        let exports = Exports::find(&module)?;
        check_memory(&module, engine.config().memory_bytes)?;
        let pre = engine
            .linker()
            .instantiate_pre(&module)
            .map_err(|error| LoadError::Invalid(format!("{error:#}")))?;
        Ok(Self {
            inner: Arc::new(Inner { engine: engine.clone(), module, pre, exports, layout: OnceLock::new() }),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub(crate) fn pre(&self) -> &InstancePre<Data> {
        &self.inner.pre
    }

    #[inline]
    pub(crate) fn exports(&self) -> &Exports {
        &self.inner.exports
    }

    /// Where things are in an instance's memory, once an instance has said.
    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.inner.layout.get()
    }

    /// Keeps what an instance has said, unless another was first; what is kept.
    pub(crate) fn set_layout(&self, layout: Layout) -> Layout {
        *self.inner.layout.get_or_init(|| layout)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

fn check_size(wasm: &[u8]) -> Result<(), LoadError> {
    if wasm.len() > MAX_MODULE_BYTES { Err(LoadError::TooLarge(wasm.len())) } else { Ok(()) }
}

/// The two imports and no other; which of them a module uses is its own affair.
fn check_imports(module: &wasmtime::Module) -> Result<(), LoadError> {
    for import in module.imports() {
        let name = format!("{}.{}", import.module(), import.name());
        let known = import.module() == doorbell_abi::IMPORTS
            && matches!(import.name(), doorbell_abi::DMA_READ | doorbell_abi::DMA_WRITE);
        let ExternType::Func(function) = import.ty() else { return Err(LoadError::Import(name)) };
        let fits = is_signature(&function, "lii", "i");
        if !known || !fits {
            return Err(LoadError::Import(name));
        }
    }
    Ok(())
}

fn check_memory(module: &wasmtime::Module, limit: u64) -> Result<(), LoadError> {
    let Some(ExternType::Memory(memory)) = module.get_export("memory") else {
        return Err(LoadError::Export("memory"));
    };
    let bytes = memory.minimum().saturating_mul(memory.page_size());
    let fixed = memory.maximum() == Some(memory.minimum());
    if fixed && !memory.is_64() && !memory.is_shared() && bytes <= limit {
        return Ok(());
    }
    let maximum = memory.maximum().map_or("none".into(), |pages| (pages * memory.page_size()).to_string());
    Err(LoadError::Memory { limit, found: format!("{bytes} bytes, maximum {maximum}") })
}

fn cache_key(engine: &Engine, wasm: &[u8]) -> ModuleDigest {
    /// Feeds what wasmtime hashes into SHA-256.
    struct Feed(Sha256);
    impl Hasher for Feed {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut feed = Feed(Sha256::new());
    engine.wasmtime().precompile_compatibility_hash().hash(&mut feed);
    feed.0.update(wasm);
    feed.0.finalize().into()
}

fn split_compiled(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes.strip_prefix(COMPILED)?.split_at_checked(32)
}

/// A folder that only its owner, who is us, can write to.
fn private_folder(folder: &Path) -> Result<(), LoadError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let failed = |source| LoadError::Cache { path: folder.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let metadata = fs::metadata(folder).map_err(failed)?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.mode() & 0o022 != 0 || !ours {
        return Err(LoadError::CacheNotPrivate(folder.to_owned()));
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
