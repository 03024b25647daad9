//! `q8_2f`: 8-bit integers with two fields of scales, one per row and one per column.
//!
//! ```text
//! i8 q[rows * cols] | f16 row[rows] | f16 col[cols]
//! w[r, c] = (q[r, c] * row[r]) * col[c]                          (f32, in this order)
//! ```
//!
//! That is a [`q8_row`] payload and the column field behind it.
//!
//! The column field takes out the columns' different sizes, so that one scale per row fits:
//! `col = f16(rms of the column)` and `row = f16(max |w / col| / 127)`, each at least 2⁻¹⁴;
//! integers are `(w / col) / row` rounded half to even. Sums of squares are double-precision
//! over blocks of 256 rows, then over blocks, which makes them the same on any number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::q8_row::{self, MAX, quantise};
use super::rounding::{peak, scale};
use super::wide::{self, Kernel};
use super::{Encoding, half_bytes, rows_per_task};
use crate::error::EncodingError;

/// Rows in a partial sum of squares.
const SUM_ROWS: usize = 256;
/// Smallest rms and row peak, so that zero rows and columns divide well.
const TINY: f32 = 1e-12;

pub(super) fn byte_len(rows: u64, cols: u64) -> Option<u64> {
    q8_row::byte_len(rows, cols)?.checked_add(cols.checked_mul(half_bytes::BYTES as u64)?)
}

/// A payload's fields.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The integers and their rows' scales.
    pub by_row: q8_row::View<'a>,
    /// `cols` little-endian half-precision numbers.
    pub col_scales: &'a [u8],
}

impl<'a> View<'a> {
    /// The fields of a payload.
    ///
    /// # Errors
    /// If `bytes` does not have the size of the shape.
    pub fn new(bytes: &'a [u8], rows: usize, cols: usize) -> Result<Self, EncodingError> {
        Encoding::Q8TwoField.check_payload(bytes, rows, cols)?;
        let (by_row, col_scales) = bytes.split_at(bytes.len() - half_bytes::BYTES * cols);
        Ok(View { by_row: q8_row::View::new(by_row, rows, cols)?, col_scales })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.by_row.rows()
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.by_row.cols()
    }

    /// The `cols` integers of a row, as two's-complement bytes.
    pub fn row(&self, row: usize) -> &'a [u8] {
        self.by_row.row(row)
    }

    /// The scale of a row.
    pub fn row_scale(&self, row: usize) -> f32 {
        self.by_row.scale(row)
    }

    /// The scales of all columns.
    pub fn col_scales(&self) -> Vec<f32> {
        half_bytes::to_vec(self.col_scales)
    }

    pub(super) fn decode_rows(&self, range: Range<usize>, out: &mut [f32]) {
        let cols = self.col_scales();
        for (row, out) in range.zip(out.chunks_exact_mut(self.cols().max(1))) {
            let (quants, row) = (self.row(row), self.row_scale(row));
            wide::run(DecodeRow { quants, row, cols: &cols, out });
        }
    }
}

struct DecodeRow<'a> {
    quants: &'a [u8],
    row: f32,
    cols: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for DecodeRow<'_> {
    #[inline(always)]
    fn run(self) {
        for ((value, &q), col) in self.out.iter_mut().zip(self.quants).zip(self.cols) {
            *value = f32::from(q.cast_signed()) * self.row * col;
        }
    }
}

pub(super) fn encode(rows: usize, cols: usize, values: &[f32], payload: &mut [u8]) {
    let (quants, fields) = payload.split_at_mut(rows * cols);
    let (row_scales, col_scales) = fields.split_at_mut(half_bytes::BYTES * rows);
    let col_field = column_field(rows, cols, values);
    half_bytes::encode(&col_field, col_scales);
    if cols == 0 {
        row_scales.as_chunks_mut::<2>().0.iter_mut().for_each(|b| half_bytes::put(b, scale(0.0)));
        return;
    }
    values
        .par_chunks(cols)
        .zip(quants.par_chunks_mut(cols))
        .zip(row_scales.par_chunks_mut(half_bytes::BYTES))
        .with_min_len(rows_per_task(cols))
        .for_each_init(
            || vec![0.0; cols],
            |ratios, ((values, quants), bytes)| {
                wide::run(EncodeRow { values, cols: &col_field, ratios, quants, bytes });
            },
        );
}

/// The scale of each column: its root mean square as it will be read back.
fn column_field(rows: usize, cols: usize, values: &[f32]) -> Vec<f32> {
    let mut total = vec![0.0f64; cols];
    if values.is_empty() {
        return vec![scale(TINY); cols];
    }
    // In bounded batches of blocks: a tall matrix would have many partial sums at once.
    for batch in values.chunks(64 * SUM_ROWS * cols) {
        let partials: Vec<Vec<f64>> =
            batch.par_chunks(SUM_ROWS * cols).map(|block| sum_of_squares(block, cols)).collect();
        for partial in partials {
            for (total, part) in total.iter_mut().zip(partial) {
                *total += part;
            }
        }
    }
    let rms = |sum: f64| (sum / rows as f64).sqrt().max(f64::from(TINY)) as f32;
    total.into_iter().map(|sum| scale(rms(sum))).collect()
}

fn sum_of_squares(block: &[f32], cols: usize) -> Vec<f64> {
    let mut sums = vec![0.0; cols];
    wide::run(SumOfSquares { block, sums: &mut sums });
    sums
}

struct SumOfSquares<'a> {
    block: &'a [f32],
    sums: &'a mut [f64],
}

impl Kernel for SumOfSquares<'_> {
    #[inline(always)]
    fn run(self) {
        for row in self.block.chunks_exact(self.sums.len()) {
            for (sum, &value) in self.sums.iter_mut().zip(row) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
    }
}

struct EncodeRow<'a> {
    values: &'a [f32],
    cols: &'a [f32],
    /// Scratch of the row's length.
    ratios: &'a mut [f32],
    quants: &'a mut [u8],
    bytes: &'a mut [u8],
}

impl Kernel for EncodeRow<'_> {
    #[inline(always)]
    fn run(self) {
        for ((ratio, &value), col) in self.ratios.iter_mut().zip(self.values).zip(self.cols) {
            *ratio = value / col;
        }
        let row = scale(peak(self.ratios).max(TINY) / MAX);
        half_bytes::put(self.bytes, row);
        for (q, &ratio) in self.quants.iter_mut().zip(self.ratios.iter()) {
            *q = quantise(ratio, row);
        }
    }
}
