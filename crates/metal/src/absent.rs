//! What the crate is where there is no Metal.

use shamrock_model::{Error, Executor, ModelFile, Result};

use crate::{BACKEND, MetalOptions};

/// Whether there is a device; never here.
///
/// # Errors
/// Always [`Error::Device`].
pub fn available() -> Result<()> {
    Err(absent())
}

/// Opens an executor; never here.
///
/// # Errors
/// Those of [`available`].
pub fn open(_model: ModelFile, _options: &MetalOptions) -> Result<Box<dyn Executor>> {
    Err(absent())
}

fn absent() -> Error {
    Error::Device { backend: BACKEND, problem: "this program was not built for macOS".into() }
}
