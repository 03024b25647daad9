//! The CUDA executor.
//!
//! Weights are uploaded once and repacked on the way for tensor cores (`upload`), experts for which
//! there is no room when they are needed (`cache`); a pass is a fixed sequence of kernels (`pass`)
//! that reads what differs from pass to pass from one small table, so that it can be captured as a graph and replayed without the host in between: routing,
//! coresets, grouping by expert, penalties and picks all happen on the device.
//!
//! Kernels lie in `kernels/*.cu` and are compiled by NVRTC for the model's geometry and the device's
//! architecture (`compile`). The driver and NVRTC are loaded at run time: this crate builds, and
//! its host tests run, where there is no CUDA.
//!
//! Products are computed by `mma` on weights that are exact in half precision and activations
//! rounded to half ([`Precision::Half`]) or kept as a sum of two halves ([`Precision::Split`], as
//! good as f32). Attention rounds to half as well if activations, keys and values all are halves.
//! Everything else is f32.

mod abi;
mod cache;
pub mod compile;
mod device;
mod executor;
mod geometry;
mod inputs;
mod pass;
mod sequence;
mod upload;
mod workspace;

use std::path::PathBuf;

pub use device::available;
pub use executor::{CudaExecutor, Placement};

/// Name of this backend in messages.
const BACKEND: &str = "cuda";

/// How the inputs of products are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// To half precision (11 bits).
    #[default]
    Half,
    /// To a sum of two halves (22 bits): as good as f32, at twice the tensor-core work.
    Split,
}

/// Storage of attention keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPrecision {
    /// Half precision.
    #[default]
    Half,
    /// Single precision.
    Full,
}

/// Options of [`CudaExecutor`].
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which device, in the driver's order.
    pub device: usize,
    /// Inputs of products.
    pub precision: Precision,
    /// Attention keys and values.
    pub kv: KvPrecision,
    /// Positions a sequence may reach; the model's own limit when `None`.
    pub max_context: Option<usize>,
    /// Device memory for routed experts in bytes: where they take more, those that were not used for
    /// longest make way for others, which come from the model file. `None`: all there is.
    pub expert_memory: Option<u64>,
    /// Where compiled kernels are kept; not kept when `None`.
    pub kernel_cache: Option<PathBuf>,
    /// Measure stages ([`PassStats::stages`](shamrock_model::PassStats)). Passes are then not
    /// captured as graphs, and cost their launches.
    pub profile: bool,
}
