//! Doorbell's controller as a WASM sandbox for VMMs.
