//! Activation rows rounded for the integer kernels.

use crate::kernel::{Columns, GROUP, Group, Isa, Loops, Rounded};
use crate::pool::Pool;

/// Activations of a group below this magnitude count as zero: their scale could not be inverted.
const TINY: f32 = 1e-30;
/// 1.5 · 2²³: adding it to a number of magnitude below 2²² leaves no fraction bits.
const SHIFT: f32 = 12_582_912.0;
/// Values that make a task of rounding.
const TASK: usize = 1 << 14;

/// Rows rounded to 8 bits: `x ≈ scale · quant` with one scale per row and group,
/// `scale = max |x| / 127`, so that each value is off by at most half a scale.
#[derive(Debug)]
pub(crate) struct Quantised {
    rows: usize,
    width: usize,
    groups: Vec<Group>,
}

/// Rows of a matrix `[_, cols]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsOf<'a> {
    /// The matrix.
    pub(crate) x: &'a [f32],
    /// Its width.
    pub(crate) cols: usize,
    /// Which rows, or all of them.
    pub(crate) picked: Option<&'a [u32]>,
}

impl<'a> RowsOf<'a> {
    /// All rows.
    pub(crate) fn all(x: &'a [f32], cols: usize) -> Self {
        RowsOf { x, cols, picked: None }
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.picked.map_or(self.x.len() / self.cols, <[u32]>::len)
    }

    /// The `i`-th of them.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [f32] {
        let row = self.picked.map_or(i, |picked| picked[i] as usize);
        &self.x[row * self.cols..][..self.cols]
    }
}

impl Quantised {
    /// Rounds rows, each column multiplied with its `factor` first if there are any.
    pub(crate) fn new(
        isa: Isa,
        pool: &Pool,
        x: RowsOf<'_>,
        columns: Columns,
        factors: Option<&[f32]>,
    ) -> Self {
        let (rows, width) = (x.len(), x.cols.div_ceil(GROUP));
        let mut new = Quantised { rows, width, groups: vec![Group::default(); rows * width] };
        pool.for_chunks(&mut new.groups, TASK / GROUP, |task, groups| {
            isa.run_long(Rounding { x, width, columns, factors, first: task * (TASK / GROUP), groups });
        });
        new
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// As a kernel takes them.
    pub(crate) fn rounded(&self) -> Rounded<'_> {
        Rounded { width: self.width, groups: &self.groups }
    }
}

/// Rounds some groups of `[rows, width]`, from the `first` on.
struct Rounding<'a> {
    x: RowsOf<'a>,
    width: usize,
    columns: Columns,
    factors: Option<&'a [f32]>,
    first: usize,
    groups: &'a mut [Group],
}

impl Loops for Rounding<'_> {
    #[inline(always)]
    fn run(self) {
        let (mut row, mut g) = (self.first / self.width, self.first % self.width);
        for group in self.groups {
            *group = round(self.x.row(row), g, self.factors, self.columns);
            g += 1;
            if g == self.width {
                (row, g) = (row + 1, 0);
            }
        }
    }
}

/// Rounds group `g` of a row; columns past its end are zero.
#[inline(always)]
fn round(row: &[f32], g: usize, factors: Option<&[f32]>, order: Columns) -> Group {
    let columns = g * GROUP..row.len().min((g + 1) * GROUP);
    let mut values = [0.0; GROUP];
    match row[columns.clone()].first_chunk() {
        Some(whole) => values = *whole,
        None => values[..columns.len()].copy_from_slice(&row[columns.clone()]),
    }
    if let Some(factors) = factors {
        for (value, factor) in values.iter_mut().zip(&factors[columns]) {
            *value *= factor;
        }
    }
    // Magnitudes are ordered like their bit patterns, NaN above all: a group with one gets a NaN
    // scale and spoils its products, as it would in floats.
    let peak = values.iter().fold(0, |peak, value| value.abs().to_bits().max(peak));
    let peak = f32::from_bits(peak);
    let (scale, inverse) = if peak < TINY { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) };
    // The low bits are the integer; where there is none (NaN), any byte.
    let quants: [i8; GROUP] =
        std::array::from_fn(|i| (values[i] * inverse + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i8);
    let sum: i32 = quants.iter().map(|q| i32::from(*q)).sum();
    Group { quants: ordered(order, &quants), scale, bias: order.bias() * sum }
}

#[inline(always)]
fn ordered(columns: Columns, natural: &[i8; GROUP]) -> [i8; GROUP] {
    match columns {
        Columns::Natural => *natural,
        Columns::Paired => std::array::from_fn(|i| natural[i / 8 * 8 + 2 * (i % 4) + i % 8 / 4]),
    }
}
