//! `q8_row`: 8-bit integers with one scale per row.
//!
//! ```text
//! i8 q[rows * cols] | f16 scale[rows]              w[r, c] = q[r, c] * scale[r]   (f32)
//! ```
//!
//! The encoder takes `scale = f16(max |w[r]| / 127)`, at least 2⁻¹⁴, and rounds half to even.

use std::ops::Range;

use rayon::prelude::*;

use super::rounding::{peak, round_to_int, scale};
use super::wide::{self, Kernel};
use super::{Encoding, half_bytes, rows_per_task};
use crate::error::EncodingError;

pub(super) const MAX: f32 = 127.0;

pub(super) fn byte_len(rows: u64, cols: u64) -> Option<u64> {
    rows.checked_mul(cols)?.checked_add(rows.checked_mul(2)?)
}

/// A payload's fields.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    rows: usize,
    cols: usize,
    /// `rows * cols` two's-complement bytes, row-major.
    pub quants: &'a [u8],
    /// `rows` little-endian half-precision numbers.
    pub scales: &'a [u8],
}

impl<'a> View<'a> {
    /// The fields of a payload.
    ///
    /// # Errors
    /// If `bytes` does not have the size of the shape.
    pub fn new(bytes: &'a [u8], rows: usize, cols: usize) -> Result<Self, EncodingError> {
        Encoding::Q8Row.check_payload(bytes, rows, cols)?;
        let (quants, scales) = bytes.split_at(rows * cols);
        Ok(View { rows, cols, quants, scales })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The `cols` integers of a row, as two's-complement bytes.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.quants[row * self.cols..][..self.cols]
    }

    /// The scale of a row.
    pub fn scale(&self, row: usize) -> f32 {
        half_bytes::get(self.scales, row)
    }

    pub(super) fn decode_rows(&self, range: Range<usize>, out: &mut [f32]) {
        for (row, out) in range.zip(out.chunks_exact_mut(self.cols.max(1))) {
            wide::run(DecodeRow { quants: self.row(row), scale: self.scale(row), out });
        }
    }
}

struct DecodeRow<'a> {
    quants: &'a [u8],
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for DecodeRow<'_> {
    #[inline(always)]
    fn run(self) {
        for (value, &q) in self.out.iter_mut().zip(self.quants) {
            *value = f32::from(q.cast_signed()) * self.scale;
        }
    }
}

pub(super) fn encode(rows: usize, cols: usize, values: &[f32], payload: &mut [u8]) {
    let (quants, scales) = payload.split_at_mut(rows * cols);
    if cols == 0 {
        scales.as_chunks_mut::<2>().0.iter_mut().for_each(|bytes| half_bytes::put(bytes, scale(0.0)));
        return;
    }
    values
        .par_chunks(cols)
        .zip(quants.par_chunks_mut(cols))
        .zip(scales.par_chunks_mut(half_bytes::BYTES))
        .with_min_len(rows_per_task(cols))
        .for_each(|((values, quants), bytes)| wide::run(EncodeRow { values, quants, bytes }));
}

struct EncodeRow<'a> {
    values: &'a [f32],
    quants: &'a mut [u8],
    bytes: &'a mut [u8],
}

impl Kernel for EncodeRow<'_> {
    #[inline(always)]
    fn run(self) {
        let scale = scale(peak(self.values) / MAX);
        half_bytes::put(self.bytes, scale);
        for (q, &value) in self.quants.iter_mut().zip(self.values) {
            *q = quantise(value, scale);
        }
    }
}

/// `value / scale` as a byte, rounded half to even and clamped to ±127.
#[inline(always)]
pub(super) fn quantise(value: f32, scale: f32) -> u8 {
    round_to_int(value / scale, -MAX, MAX) as u8
}
