//! The executor itself.

mod abi;
mod attention;
mod device;
mod device_routing;
mod executor;
mod experts;
mod gdn;
mod gemm;
mod geometry;
mod head;
mod kernel;
mod lru;
pub mod measure;
mod parameters;
mod pass;
mod plan;
mod prefetch;
mod state;
mod views;
mod workspace;

#[cfg(test)]
mod tests;

pub use device::available;
pub use executor::MetalExecutor;

use shamrock_model::{Executor, ModelFile, Result};

use crate::MetalOptions;

/// Opens an executor on the system's device.
///
/// # Errors
/// Those of [`MetalExecutor::new`].
pub fn open(model: ModelFile, options: &MetalOptions) -> Result<Box<dyn Executor>> {
    Ok(Box::new(MetalExecutor::new(model, options)?))
}
