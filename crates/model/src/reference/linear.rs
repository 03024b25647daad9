//! Matrix products straight over the file's encoding: a few weight rows at a time are decoded to
//! f32 and multiplied with every input row.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::math::dot;
use crate::config::Config;
use crate::error::Result;
use crate::weights::{Matrix, Weights};

/// Weight rows decoded at a time by one thread.
const ROWS_AT_A_TIME: usize = 16;

/// A model's weights, with a count of the bytes read from them.
pub(super) struct Projector<'a> {
    pub(super) config: &'a Config,
    weights: &'a Weights,
    bytes: AtomicU64,
}

impl<'a> Projector<'a> {
    pub(super) fn new(config: &'a Config, weights: &'a Weights) -> Self {
        Projector { config, weights, bytes: AtomicU64::new(0) }
    }

    /// Bytes of weights read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// `x Wᵀ`: `x` is `[n, cols]`, the result `[n, rows]`.
    pub(super) fn project(&self, matrix: Matrix, x: &[f32]) -> Result<Vec<f32>> {
        let Matrix { rows, cols, .. } = matrix;
        let n = x.len() / cols;
        if n == 0 {
            return Ok(Vec::new());
        }
        let tensor = self.weights.tensor(matrix);
        self.bytes.fetch_add(tensor.bytes.len() as u64, Ordering::Relaxed);
        let mut transposed = vec![0.0; rows * n]; // [rows, n]: each thread owns whole weight rows
        transposed.par_chunks_mut(ROWS_AT_A_TIME * n).enumerate().try_for_each_init(
            || vec![0.0; ROWS_AT_A_TIME * cols],
            |scratch, (chunk, out)| -> Result<()> {
                let count = out.len() / n;
                let first = chunk * ROWS_AT_A_TIME;
                let decoded = &mut scratch[..count * cols];
                tensor.decode_rows(first..first + count, decoded)?;
                for (w, out) in decoded.chunks_exact(cols).zip(out.chunks_exact_mut(n)) {
                    for (x, out) in x.chunks_exact(cols).zip(out) {
                        *out = dot(w, x);
                    }
                }
                Ok(())
            },
        )?;
        let mut out = vec![0.0; n * rows];
        for (r, row) in out.chunks_exact_mut(rows).enumerate() {
            for (o, v) in row.iter_mut().enumerate() {
                *v = transposed[o * n + r];
            }
        }
        Ok(out)
    }

    /// Rows `ids` of a matrix: `[ids.len(), cols]`.
    pub(super) fn gather(&self, matrix: Matrix, ids: &[u32]) -> Result<Vec<f32>> {
        let tensor = self.weights.tensor(matrix);
        let row_bytes = tensor.bytes.len() / matrix.rows;
        self.bytes.fetch_add((row_bytes * ids.len()) as u64, Ordering::Relaxed);
        let mut out = vec![0.0; ids.len() * matrix.cols];
        for (&id, row) in ids.iter().zip(out.chunks_exact_mut(matrix.cols)) {
            tensor.decode_rows(id as usize..id as usize + 1, row)?;
        }
        Ok(out)
    }
}
