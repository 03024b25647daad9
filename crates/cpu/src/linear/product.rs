//! Both sides of a product, and its bands.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use shamrock_model::Result;

use super::operand::{Quantised, RowsOf};
use super::panel::{Panel, Place, Stored};
use crate::kernel::{BAND, Isa};

/// A matrix and the activation rows that it multiplies, in the form it wants.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// Weights decoded to f32, times activations as they are.
    Exact {
        /// The matrix.
        stored: Stored<'a>,
        /// `[n, cols]`.
        x: Cow<'a, [f32]>,
    },
    /// Integers times rounded activations.
    Rounded {
        /// The matrix.
        panel: Panel<'a>,
        /// The activations.
        x: Arc<Quantised>,
        /// Which of them.
        picked: Cow<'a, [u32]>,
    },
}

/// Room that a thread reuses between tasks.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Decoded weights, `[BAND, cols]`.
    weights: Vec<f32>,
    /// Products of decoded weights, `[BAND, n]`.
    products: Vec<f32>,
    /// `[groups]`.
    scales: Vec<[f32; BAND]>,
}

impl<'a> Source<'a> {
    /// A product in f32.
    pub(super) fn exact(stored: Stored<'a>, x: RowsOf<'a>) -> Self {
        let x = match x.picked {
            None => Cow::Borrowed(x.x),
            Some(_) => (0..x.len()).flat_map(|i| x.row(i)).copied().collect(),
        };
        Source::Exact { stored, x }
    }

    /// Number of activation rows.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Source::Exact { stored, x } => x.len() / stored.cols,
            Source::Rounded { picked, .. } => picked.len(),
        }
    }

    /// Bytes of the 16 weight rows from `first` on, if they are read in place; none past the end.
    pub(crate) fn weights(&self, first: usize) -> &[u8] {
        match self {
            Source::Rounded { panel, .. } => panel.weights(first),
            Source::Exact { .. } => &[],
        }
    }

    /// Asks for the 16 weight rows from `first` on, which will be multiplied soon.
    pub(crate) fn prefetch(&self, first: usize) {
        if let Source::Rounded { panel, .. } = self {
            panel.prefetch(first);
        }
    }

    /// Products of the 16 weight rows from `first` on with activation rows `rows`, into `out[i][r]`.
    /// Weight rows past the end repeat the last. `next` is what will be read afterwards: a hint.
    ///
    /// # Errors
    /// If the payload does not have the size of its shape.
    pub(crate) fn band(
        &self,
        isa: Isa,
        first: usize,
        rows: Range<usize>,
        scratch: &mut Scratch,
        next: &[u8],
        out: &mut [[f32; BAND]],
    ) -> Result<()> {
        match self {
            Source::Exact { stored, x } => {
                let (cols, n, count) = (stored.cols, rows.len(), BAND.min(stored.rows - first));
                scratch.weights.resize(BAND * cols, 0.0);
                scratch.products.resize(BAND * n, 0.0);
                let decoded = &mut scratch.weights[..count * cols];
                stored.decode_rows(first..first + count, decoded)?;
                let products = &mut scratch.products[..count * n];
                isa.dots(decoded, &x[rows.start * cols..rows.end * cols], cols, products);
                for (r, products) in products.chunks_exact(n).enumerate() {
                    for (out, product) in out.iter_mut().zip(products) {
                        out[r] = *product;
                    }
                }
            }
            Source::Rounded { panel, x, picked } => {
                let place = Place { first, next };
                panel.multiply(isa, place, &x.rounded(), &picked[rows], &mut scratch.scales, out);
            }
        }
        Ok(())
    }
}
