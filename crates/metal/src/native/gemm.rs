//! Products with the file's matrices.

use shamrock_model::Result;

use super::abi;
use super::device::{At, Grid, Work};
use super::kernel::{Kernel, Product, Rows};
use super::views::View;

impl Work<'_> {
    /// `y[r] = x[index[r]] wᵀ` for `rows` rows; `x` is `[…][w.cols]`, `y` is `[rows][w.rows]`.
    ///
    /// # Errors
    /// Those of [`dispatch`](Work::dispatch).
    pub(crate) fn gemm<'a>(
        &mut self,
        w: &View,
        x: impl Into<At<'a>>,
        index: impl Into<At<'a>>,
        y: impl Into<At<'a>>,
        rows: usize,
    ) -> Result<()> {
        let product = Product::new(Rows::of(rows), w.encoding, self.precision());
        let shape = product.rows;
        let grid =
            Grid::new((w.rows.div_ceil(shape.outs()), rows.div_ceil(shape.rows()), 1), shape.threads());
        let parameters = abi::Gemm { rows: rows as u32, outs: w.rows as u32, cols: w.cols as u32 };
        let exp2 = self.exp2();
        let buffers = [w.at(), x.into(), index.into(), y.into(), exp2];
        self.dispatch(Kernel::Gemm(product), grid, &parameters, &buffers)
    }
}
