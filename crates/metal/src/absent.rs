//! What the crate is where there is no Metal.

use shamrock_model::{Error, Executor, ModelFile, Result};

use crate::{BACKEND, MetalOptions};

/// Whether there is a device; never here.
///
/// # Errors
/// Always [`Error::Device`].
pub fn available() -> Result<()> {
    Err(Error::Device { backend: BACKEND, problem: "this program was not built for macOS".into() })
}

/// Opens an executor; never here.
///
/// # Errors
/// Those of [`available`].
pub fn open(_model: ModelFile, _options: &MetalOptions) -> Result<Box<dyn Executor>> {
    available().map(|()| unreachable!("a device without Metal"))
}
