//! The native Metal executor, for Macs with Apple silicon.
//!
//! Weights are used where they lie: every matrix is a no-copy buffer over its own page-rounded span of
//! the model file's mapping, so that a model larger than the GPU's working set runs. Dense matrices
//! are viewed when the executor opens, a routed expert when routing first asks for it, in a
//! least-recently-used set bounded in bytes ([`MetalOptions::expert_views`]). A pass is one command
//! buffer per layer: the experts of the layer before, the mixer, and the router; then the host chooses
//! experts with the very functions of [`shamrock_model::routing`] and goes on. Where all experts fit, the
//! device can choose them itself ([`Routing::Device`]). See `docs/metal.md`.
//!
//! Elsewhere than on a Mac the crate is only its options, and [`open`] says why it cannot.

#[cfg(any(target_os = "macos", metal_host))]
mod native;
#[cfg(any(target_os = "macos", metal_host))]
pub use native::{MetalExecutor, available, measure, open};

#[cfg(not(any(target_os = "macos", metal_host)))]
mod absent;
#[cfg(not(any(target_os = "macos", metal_host)))]
pub use absent::{available, open};

/// Name of this backend in messages.
const BACKEND: &str = "metal";

/// Storage of attention keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvPrecision {
    /// Half precision.
    #[default]
    Half,
    /// Single precision.
    Full,
}

/// What products with the file's matrices are computed in. Sums are in single precision either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The inputs of quantised matrices are rounded to half precision.
    #[default]
    Half,
    /// Single precision.
    Full,
}

/// Where experts are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Routing {
    /// On the host, which waits for every layer's router and then views the experts that are missing.
    #[default]
    Host,
    /// On the device, so that a pass is one command buffer with one wait. All experts are viewed when the
    /// executor opens.
    Device,
}

/// Options of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetalOptions {
    /// Positions a sequence may reach; the model's own limit when `None`.
    pub max_context: Option<usize>,
    /// Inputs of products.
    pub precision: Precision,
    /// Attention keys and values.
    pub kv: KvPrecision,
    /// Where experts are chosen; on the device only if all of them fit [`expert_views`](Self::expert_views)
    /// and everything fits the device's working set.
    pub routing: Routing,
    /// Ask the system ahead of time for the pages of experts that were just chosen, or are likely to be in
    /// the next layer, where the host routes.
    pub prefetch: bool,
    /// Bytes of the routed experts that stay viewed; exceeded only if one layer of a pass needs more.
    pub expert_views: u64,
    /// Measure stages ([`PassStats::stages`](shamrock_model::PassStats)). Each is then a command buffer
    /// of its own, which slows passes down.
    pub profile: bool,
}

impl MetalOptions {
    /// Half precision, experts chosen on the host, 6 GiB of them viewed.
    pub const DEFAULT: MetalOptions = MetalOptions {
        max_context: None,
        precision: Precision::Half,
        kv: KvPrecision::Half,
        routing: Routing::Host,
        prefetch: true,
        expert_views: 6 << 30,
        profile: false,
    };
}

impl Default for MetalOptions {
    fn default() -> Self {
        MetalOptions::DEFAULT
    }
}
