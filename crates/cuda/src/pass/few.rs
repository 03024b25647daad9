//! Passes of few rows, which are as long as their chain of launches: kernels that do the work of several.
//! Each has plainer twins in `pass.rs`, for more rows and for shapes beyond it.

use shamrock_model::Result;

use super::dense::{Product, handed_over, segments};
use super::{Added, Launcher, TENSOR_QUERIES, THREADS};
use crate::abi;
use crate::device::Grid;
use crate::geometry::padded;
use crate::upload::Layer;

/// Rows of a commit that `gdn_step` takes.
const STEP_ROWS: usize = 8;
/// Value dim that it takes: four threads a column, with a quarter of a column in the registers of each.
const STEP_COLUMNS: usize = 128;

/// Rows for which every block of a product norms them for itself: what it reads for that, ten rows of the hidden
/// width each, has to cost less than a launch. For four rows it was measured to cost more.
const NORMED_ROWS: usize = 1;
/// Rows for which the router's blocks do.
const ROUTE_ROWS: usize = 2;
/// Bytes of shared memory for normed rows, which every device has.
const STAGED_BYTES: usize = 72 << 10;
/// Threads of `route_few`.
const ROUTE_THREADS: u32 = 512;
/// Steps of the router's weights that its warps have in shared memory.
const ROUTE_SLOTS: usize = 4;

impl Launcher<'_> {
    /// Bytes of normed rows in shared memory, of one or two halves.
    fn staged(&self, halves: usize) -> usize {
        // Rows are set apart by half a turn of the banks.
        self.shape.rows * (padded(self.geometry.config.hidden_size) + 32) * 2 * halves
    }

    /// Whether a mixer's first products norm their input themselves.
    pub(super) fn norms_in_products(&self) -> bool {
        self.shape.rows <= NORMED_ROWS && self.staged(self.geometry.halves()) <= STAGED_BYTES
    }

    /// The norm of the residual stream and products of it.
    pub(super) fn normed_dense(&self, residual: abi::Residual, products: &[Product]) -> Result<()> {
        let staged = self.staged(self.geometry.halves());
        let band = self.band_of_few(products, staged);
        let kernel = match band {
            16 => "normed_16",
            32 => "normed_32",
            64 => "normed_64",
            _ => "normed_96",
        };
        let mut cols = [0; abi::MAX_SEGMENTS];
        for (cols, product) in cols.iter_mut().zip(products) {
            *cols = product.weight.cols;
        }
        let (dense, bands) = segments(self.shape.rows, products, band);
        let args = abi::NormedDense { dense, residual, cols };
        let shared = staged + handed_over(band, 8).max(self.slot_bytes(band));
        let grid = Grid::new((bands, 1, 1), THREADS).shared(shared);
        self.device.launch(kernel, grid, &args)
    }

    /// Whether one launch norms, routes and chooses. The router always has the remainders of its input.
    pub(super) fn routes_at_once(&self) -> bool {
        self.shape.rows <= ROUTE_ROWS && self.staged(2) <= STAGED_BYTES
    }

    /// The norm in front of the experts, the router's product and every row's choice.
    pub(super) fn route_few(
        &self,
        residual: abi::Residual,
        router: &Product,
        routing: abi::Routing,
        chooses: bool,
    ) -> Result<()> {
        let (dense, tiles) = segments(self.shape.rows, std::slice::from_ref(router), 16);
        let args = abi::RouteFew {
            dense,
            residual,
            ffn: abi::Copy { hi: router.input.hi, lo: router.input.lo, cols: 0 },
            routing,
            arrived: if chooses { self.space.arrived } else { 0 },
        };
        // All but one warp hand over the sums of a tile of 16 by 8, where weights were.
        let warps = ROUTE_THREADS as usize / 32;
        let slots = if self.device.slots > 0 { warps * ROUTE_SLOTS * 1024 } else { 0 };
        let shared = slots.max((warps - 1) * 4 * 32 * 4) + self.staged(2);
        let grid = Grid::new((tiles, 1, 1), ROUTE_THREADS).shared(shared);
        self.device.launch("route_few", grid, &args)
    }

    /// Whether this pass is a causal token whose experts are all on the device, and integers.
    pub(super) fn is_one_row(&self, cached: bool) -> bool {
        let integers = self.geometry.experts != abi::F16;
        self.shape.rows == 1 && self.shape.previews == 0 && self.routes_at_once() && !cached && integers
    }

    /// What is to be added to the residual stream behind a layer's experts.
    pub(super) fn added_by_experts(&self, cached: bool) -> Added {
        if self.is_one_row(cached) { Added::Done } else { Added::Experts }
    }

    /// Norm, router and experts of a causal token, see one.cu.
    pub(super) fn experts_of_one(
        &self,
        layer: &Layer,
        residual: abi::Residual,
        mark: &mut dyn FnMut(&'static str) -> Result<()>,
    ) -> Result<()> {
        let s = self.space;
        let routing = self.routing();
        self.route_few(residual, &self.router(layer), routing, false)?;
        mark("router")?;
        let experts = self.expert_args(layer, self.all_experts(layer));
        let [hidden, sum] = s.hidden;
        let args = abi::One { experts, routing, picked: s.picked, low: s.ffn.lo, hidden, sum };
        let items =
            layer.expert_tiles.1 as usize + self.geometry.config.moe.top_k * layer.expert_tiles.0 as usize;
        self.device.launch("gate_up_one", Grid::new((items, 1, 1), THREADS), &args)?;
        mark("gate and up")?;
        let bands = self.geometry.config.hidden_size.div_ceil(16);
        self.device.launch("down_one", Grid::new((bands, 1, 1), THREADS), &args)?;
        mark("down")
    }

    /// Whether the commits of this pass are few rows each.
    pub(super) fn commits_in_steps(&self) -> bool {
        self.shape.longest_commit <= STEP_ROWS && self.geometry.config.gdn.value_dim <= STEP_COLUMNS
    }

    /// The recurrence of commits of few rows with all that is around it.
    pub(super) fn gdn_step(&self, mixer: &abi::Mixer) -> Result<()> {
        let g = &self.geometry.config.gdn;
        let args = abi::Step { mixer: *mixer, arrived: self.space.arrived };
        let grid = Grid::new((g.value_heads, self.shape.commits, 1), 4 * g.value_dim as u32);
        self.device.launch("gdn_step", grid, &args)
    }

    /// Whether attention norms and rotates queries and keys itself, and gates what it returns where one split
    /// has all keys. Its blocks are not to need keys that others of them make, so there must be no previews,
    /// which see the rows that their step commits.
    pub(super) fn prepares_in_attention(&self) -> bool {
        let a = &self.geometry.config.attention;
        let queries = self.shape.longest_commit * (a.heads / a.kv_heads);
        self.geometry.tensor_attention() && self.shape.previews == 0 && queries <= TENSOR_QUERIES
    }
}
