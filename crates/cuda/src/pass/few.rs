//! Passes of few rows, which are as long as their chain of launches: kernels that do the work of several.
//! Each has plainer twins in `pass.rs`, for more rows and for shapes beyond it.

use shamrock_model::Result;

use super::Launcher;
use crate::abi;
use crate::device::Grid;

/// Rows of a commit that `gdn_step` takes.
const STEP_ROWS: usize = 8;
/// Value dim that it takes: four threads a column, with a quarter of a column in the registers of each.
const STEP_COLUMNS: usize = 128;

impl Launcher<'_> {
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
}
