//! One task of a product: some weight rows times all activation rows.

use std::sync::Arc;

use shamrock_model::Result;

use super::operand::{FEW_ROWS, Quantised};
use super::panel::{Panel, Stored};
use crate::kernel::{BAND, GROUP, Isa, LANES, PLANES, Tall};

/// Weight rows of a task: enough work to be worth handing out, few enough to balance.
pub(super) const TASK_ROWS: usize = 64;
/// Octets of activation rows that stay in second-level cache while a task's weights go by.
const BLOCK_OCTETS: usize = 8;
/// Groups whose activations stay in first-level cache while a task's weights go by.
const TILE_GROUPS: usize = 16;

/// Both sides of a product.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// Weights decoded to f32, times activations as they are.
    Exact {
        /// The matrix.
        stored: Stored<'a>,
        /// `[n, cols]`.
        x: &'a [f32],
    },
    /// Integers times rounded activations.
    Rounded {
        /// The matrix.
        panel: Panel<'a>,
        /// Groups in a row.
        groups: usize,
        /// The activations.
        x: Arc<Quantised>,
    },
}

/// Room that a thread reuses between tasks.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    floats: Vec<f32>,
    /// `[bands, groups]`.
    scales: Vec<[f32; BAND]>,
    /// `[4 planes, tile]`.
    planes: Vec<[u8; GROUP]>,
    /// `[octet pairs, weight rows, octet of the pair]`.
    sums: Vec<[f32; LANES]>,
}

impl<'a> Source<'a> {
    /// A product in f32.
    pub(super) fn exact(stored: Stored<'a>, x: &'a [f32]) -> Self {
        Source::Exact { stored, x }
    }

    /// A product in integers over rows in the form that the panel wants.
    pub(super) fn rounded(panel: Panel<'a>, cols: usize, x: Arc<Quantised>) -> Self {
        Source::Rounded { panel, groups: cols.div_ceil(GROUP), x }
    }

    /// Products of the weight rows from `first` on with all activation rows, `out` `[rows, n]`.
    ///
    /// # Errors
    /// If the payload does not have the size of its shape.
    pub(super) fn multiply(
        &self,
        isa: Isa,
        first: usize,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<()> {
        match self {
            Source::Exact { stored, x } => {
                let cols = stored.cols;
                let n = x.len() / cols;
                scratch.floats.resize(BAND * cols, 0.0);
                for (band, out) in out.chunks_mut(BAND * n).enumerate() {
                    let (first, count) = (first + band * BAND, out.len() / n);
                    let decoded = &mut scratch.floats[..count * cols];
                    stored.decode_rows(first..first + count, decoded)?;
                    isa.dots(decoded, x, cols, out);
                }
            }
            Source::Rounded { panel, groups, x } if x.is_tall() => {
                tall(isa, panel, *groups, x, first, scratch, out);
            }
            Source::Rounded { panel, groups, x } => few(isa, panel, *groups, x, first, scratch, out),
        }
        Ok(())
    }
}

/// Weights stream from memory once and meet the few rows on the way.
fn few(
    isa: Isa,
    panel: &Panel<'_>,
    groups: usize,
    x: &Quantised,
    first: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let n = x.rows();
    scratch.scales.resize(groups, [0.0; BAND]);
    let scales = &mut scratch.scales[..groups];
    let mut products = [[0.0; BAND]; FEW_ROWS];
    for (band, out) in out.chunks_mut(BAND * n).enumerate() {
        let first = first + band * BAND;
        match panel {
            Panel::Nibbles(nibbles) => {
                isa.run(|| panel.band_scales(first, scales));
                isa.few_nibbles(&nibbles.band(first), scales, &x.few(), &mut products[..n]);
            }
            Panel::Bytes(bytes) => {
                isa.few_bytes(&bytes.band(first), &bytes.row_scales(first), &x.few(), &mut products[..n]);
            }
        }
        for (r, out) in out.chunks_exact_mut(n).enumerate() {
            for (out, products) in out.iter_mut().zip(&products) {
                *out = products[r];
            }
        }
    }
}

/// Tiles: a block of activation rows by some groups stays in cache, the task's weight rows are
/// unpacked against it four planes at a time.
fn tall(
    isa: Isa,
    panel: &Panel<'_>,
    groups: usize,
    x: &Quantised,
    first: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let n = x.rows();
    let rows = out.len() / n;
    let bands = rows.div_ceil(BAND);
    let meaning = panel.planes();
    let (octets, step) = (n.div_ceil(LANES), meaning.rows());
    let Scratch { scales, planes, sums, .. } = scratch;
    scales.resize(bands * groups, [0.0; BAND]);
    for (band, scales) in scales.chunks_mut(groups).take(bands).enumerate() {
        isa.run(|| panel.band_scales(first + band * BAND, scales));
    }
    planes.resize(PLANES * TILE_GROUPS, [0; GROUP]);
    for block in (0..octets).step_by(BLOCK_OCTETS) {
        let block = block..octets.min(block + BLOCK_OCTETS);
        sums.clear();
        sums.resize(block.len() * bands * BAND, [0.0; LANES]);
        for tile in (0..groups).step_by(TILE_GROUPS) {
            let tile = tile..groups.min(tile + TILE_GROUPS);
            for at in (0..rows).step_by(step) {
                let mut parts = planes.chunks_exact_mut(TILE_GROUPS);
                let mut parts: [&mut [[u8; GROUP]]; PLANES] =
                    std::array::from_fn(|_| parts.next().map_or(&mut [][..], |p| &mut p[..tile.len()]));
                panel.unpack(isa, first + at, tile.clone(), &mut parts);
                let parts = parts.map(|part| &*part);
                let scales = &scales[at / BAND * groups..][tile.clone()];
                let octet = |o: usize| -> Tall<'_> { x.octet(o, tile.clone()) };
                for (pair, sums) in sums.chunks_mut(2 * bands * BAND).enumerate() {
                    let o = block.start + 2 * pair;
                    if o + 1 < block.end {
                        let sums = &mut sums.as_chunks_mut::<2>().0[at..at + step];
                        isa.tall(parts, meaning, scales, at % BAND, &[octet(o), octet(o + 1)], sums);
                    } else {
                        let sums = &mut sums.as_chunks_mut::<1>().0[at..at + step];
                        isa.tall(parts, meaning, scales, at % BAND, &[octet(o)], sums);
                    }
                }
            }
        }
        for (pair, sums) in sums.chunks(2 * bands * BAND).enumerate() {
            let together = sums.len() / (bands * BAND);
            for (out, sums) in out.chunks_exact_mut(n).zip(sums.chunks_exact(together)) {
                let at = (block.start + 2 * pair) * LANES;
                for (out, sum) in out[at..].iter_mut().zip(sums.as_flattened()) {
                    *out = *sum;
                }
            }
        }
    }
}
