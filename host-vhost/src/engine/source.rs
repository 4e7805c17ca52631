//! Where engines come from.

use std::path::PathBuf;

use doorbell_core::controller::ControllerConfig;
use doorbell_core::group::GroupConfig;
use thiserror::Error;

use super::{HostedController, HostedGroup};

/// Where a device's controller and queue groups are to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosting {
    /// In this process.
    #[default]
    Native,
    /// In a sandbox of its own, which runs the module in this file.
    Sandbox(PathBuf),
}

impl Hosting {
    /// In a sandbox that runs the module in this file.
    ///
    /// # Errors
    /// [`HostingError::NotBuilt`].
    pub fn sandbox(path: PathBuf) -> Result<Self, HostingError> {
        if cfg!(feature = "sandbox") { Ok(Self::Sandbox(path)) } else { Err(HostingError::NotBuilt(path)) }
    }
}

/// Why a device's engines can't be made.
#[derive(Debug, Error)]
pub enum HostingError {
    /// This program was built without sandboxes.
    #[error(
        "the sandbox {0} can't be used: this program was built without sandboxes; build it with `--features sandbox`"
    )]
    NotBuilt(PathBuf),
    /// The module can't be loaded.
    #[cfg(feature = "sandbox")]
    #[error("the sandbox {path} can't be used: {source}")]
    Load {
        /// The module's file.
        path: PathBuf,
        /// Why.
        source: doorbell_wasm::LoadError,
    },
    /// The module failed at once.
    #[cfg(feature = "sandbox")]
    #[error("the sandbox {path} failed before it began: {source}")]
    Fault {
        /// The module's file.
        path: PathBuf,
        /// Why.
        source: doorbell_wasm::Fault,
    },
}

/// Makes the engines of one device.
#[derive(Clone, Debug)]
pub struct EngineSource {
    kind: Kind,
    controller: ControllerConfig,
    group: GroupConfig,
}

#[derive(Clone, Debug)]
enum Kind {
    Native,
    #[cfg(feature = "sandbox")]
    Sandbox {
        path: PathBuf,
        sandbox: doorbell_wasm::Sandbox,
    },
}

impl EngineSource {
    /// A source of engines that run where `hosting` says. A sandbox's module is read and compiled here.
    ///
    /// # Errors
    /// See [`HostingError`].
    pub fn new(
        hosting: &Hosting,
        controller: ControllerConfig,
        posted_registers: bool,
    ) -> Result<Self, HostingError> {
        let kind = match hosting {
            Hosting::Native => Kind::Native,
            #[cfg(not(feature = "sandbox"))]
            Hosting::Sandbox(path) => return Err(HostingError::NotBuilt(path.clone())),
            #[cfg(feature = "sandbox")]
            Hosting::Sandbox(path) => {
                let load = |source| HostingError::Load { path: path.clone(), source };
                let module = sandbox::module(path).map_err(load)?;
                let config = doorbell_wasm::SandboxConfig {
                    controller,
                    posted_registers,
                    command_slots: crate::device::MAX_COMMANDS as u16,
                    ..Default::default()
                };
                Kind::Sandbox { path: path.clone(), sandbox: doorbell_wasm::Sandbox::new(&module, config) }
            }
        };
        Ok(Self {
            kind,
            controller,
            group: GroupConfig { mdts_bytes: controller.mdts_bytes, posted_registers },
        })
    }

    /// The device's controller.
    ///
    /// # Errors
    /// Where a sandbox's module fails at once.
    pub fn controller(&self) -> Result<HostedController, HostingError> {
        match &self.kind {
            Kind::Native => Ok(HostedController::native(self.controller)),
            #[cfg(feature = "sandbox")]
            Kind::Sandbox { path, sandbox } => match sandbox.controller() {
                Ok(controller) => Ok(HostedController::Sandboxed(Box::new(controller))),
                Err(source) => Err(HostingError::Fault { path: path.clone(), source }),
            },
        }
    }

    /// Where its engines run, for `doorbell stat`.
    #[must_use]
    pub fn description(&self) -> String {
        match &self.kind {
            Kind::Native => "native".into(),
            #[cfg(feature = "sandbox")]
            Kind::Sandbox { path, .. } => format!("sandbox {}", path.display()),
        }
    }

    /// One of the device's queue groups.
    ///
    /// # Errors
    /// Where a sandbox's module fails at once.
    pub fn group(&self) -> Result<HostedGroup, HostingError> {
        match &self.kind {
            Kind::Native => Ok(HostedGroup::native(self.group)),
            #[cfg(feature = "sandbox")]
            Kind::Sandbox { path, sandbox } => match sandbox.group() {
                Ok(group) => Ok(HostedGroup::Sandboxed(Box::new(group))),
                Err(source) => Err(HostingError::Fault { path: path.clone(), source }),
            },
        }
    }
}

#[cfg(feature = "sandbox")]
mod sandbox {
    //! The one sandbox engine of the process, and the modules that it has compiled.

    use std::collections::HashMap;
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use doorbell_wasm::{Engine, EngineConfig, LoadError, MAX_MODULE_BYTES, Module};

    static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

    struct Loaded {
        engine: Engine,
        /// By their bytes, so that a file that has changed is another module.
        modules: HashMap<Vec<u8>, Module>,
    }

    /// The module in a file, compiled once however many tenants run it.
    pub(super) fn module(path: &Path) -> Result<Module, LoadError> {
        let failed = |source| LoadError::Read { path: path.to_owned(), source };
        let bytes = match std::fs::metadata(path).map_err(failed)?.len() {
            len if len > MAX_MODULE_BYTES as u64 => {
                return Err(LoadError::TooLarge(usize::try_from(len).unwrap_or(usize::MAX)));
            }
            _ => std::fs::read(path).map_err(failed)?,
        };
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = match &mut *loaded {
            Some(loaded) => loaded,
            none => {
                none.insert(Loaded { engine: Engine::new(EngineConfig::DEFAULT)?, modules: HashMap::new() })
            }
        };
        if let Some(module) = loaded.modules.get(&bytes) {
            return Ok(module.clone());
        }
        let module = Module::new(&loaded.engine, &bytes)?;
        loaded.modules.insert(bytes, module.clone());
        Ok(module)
    }
}
