//! Matrix products straight over the file's encoding.

mod operand;
mod panel;
mod product;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use shamrock_cmf::Encoding;
use shamrock_model::Result;
use shamrock_model::weights::{Matrix, Weights};

use crate::Precision;
use crate::kernel::Isa;
use operand::Quantised;
use panel::{Panel, Stored};
use product::{Scratch, Source, TASK_ROWS};

/// Side of the squares in which a result is transposed: a cache line of numbers.
const SIDE: usize = 16;

/// A model's weights, with a count of the bytes read from them.
pub struct Linear<'a> {
    weights: &'a Weights,
    precision: Precision,
    isa: Isa,
    bytes: AtomicU64,
}

impl<'a> Linear<'a> {
    /// Products over `weights`.
    pub fn new(weights: &'a Weights, precision: Precision, isa: Isa) -> Self {
        Linear { weights, precision, isa, bytes: AtomicU64::new(0) }
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes of weights read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// `x Wᵀ`: `x` is `[n, cols]`, the result `[n, rows]`.
    ///
    /// # Errors
    /// If a payload does not have the size of its shape.
    pub fn project(&self, matrix: Matrix, x: &[f32]) -> Result<Vec<f32>> {
        let [out] = self.project_all([(matrix, x)])?;
        Ok(out)
    }

    /// Several products at once.
    ///
    /// # Errors
    /// If a payload does not have the size of its shape.
    pub fn project_all<const N: usize>(&self, products: [(Matrix, &[f32]); N]) -> Result<[Vec<f32>; N]> {
        let mut out = self.project_list(&products)?.into_iter();
        Ok(std::array::from_fn(|_| out.next().unwrap_or_default()))
    }

    /// Any number of products at once, their tasks spread over the threads together.
    ///
    /// # Errors
    /// If a payload does not have the size of its shape.
    pub fn project_list(&self, products: &[(Matrix, &[f32])]) -> Result<Vec<Vec<f32>>> {
        let sources = self.sources(products)?;
        let mut transposed: Vec<Vec<f32>> = // [rows, n]: a task owns whole weight rows
            products.iter().map(|(m, x)| vec![0.0; m.rows * (x.len() / m.cols)]).collect();
        let mut tasks = Vec::new();
        for (((matrix, x), source), out) in products.iter().zip(&sources).zip(&mut transposed) {
            let n = x.len() / matrix.cols;
            if n > 0 {
                let chunks = out.chunks_mut(TASK_ROWS * n).enumerate();
                tasks.extend(chunks.map(|(i, out)| (source, i * TASK_ROWS, out)));
            }
        }
        tasks.into_par_iter().try_for_each_init(Scratch::default, |scratch, (source, first, out)| {
            source.multiply(self.isa, first, scratch, out)
        })?;
        let shapes = products.iter().map(|(m, x)| (m.rows, x.len() / m.cols));
        Ok(transposed.into_iter().zip(shapes).map(|(out, (rows, n))| transpose(out, rows, n)).collect())
    }

    /// Pairs each matrix with its activations in the form it wants. Neighbours over the same rows
    /// share a form where they can.
    fn sources<'s>(&'s self, products: &[(Matrix, &'s [f32])]) -> Result<Vec<Source<'s>>> {
        let mut panels = Vec::with_capacity(products.len());
        for (matrix, x) in products {
            let tensor = self.weights.tensor(*matrix);
            if !x.is_empty() {
                self.bytes.fetch_add(tensor.bytes.len() as u64, Ordering::Relaxed);
            }
            let Matrix { rows, cols, .. } = *matrix;
            let stored = Stored { encoding: tensor.encoding, rows, cols, bytes: tensor.bytes };
            let panel = match self.precision {
                Precision::F32 => None,
                Precision::Int8 => Panel::new(&stored)?,
            };
            panels.push((stored, panel));
        }
        let shares = |i: usize| match (i.checked_sub(1).map(|before| &panels[before].1), &panels[i].1) {
            (Some(Some(before)), Some(panel)) => {
                std::ptr::eq(products[i - 1].1, products[i].1) && panel.same_form(before)
            }
            _ => false,
        };
        let own: Vec<Option<Arc<Quantised>>> = (0..products.len())
            .into_par_iter()
            .map(|i| match &panels[i] {
                (stored, Some(panel)) if !shares(i) => {
                    Some(Arc::new(panel.quantise(self.isa, products[i].1, stored.cols)))
                }
                _ => None,
            })
            .collect();
        let mut last = None;
        let pairs = panels.into_iter().zip(own).zip(products);
        Ok(pairs
            .map(|(((stored, panel), own), (_, x))| {
                last = own.or(last.take());
                match (panel, &last) {
                    (Some(panel), Some(x)) => Source::rounded(panel, stored.cols, x.clone()),
                    _ => Source::exact(stored, x),
                }
            })
            .collect())
    }

    /// Rows `ids` of a matrix: `[ids.len(), cols]`.
    ///
    /// # Errors
    /// If the payload does not have the size of its shape.
    pub fn gather(&self, matrix: Matrix, ids: &[u32]) -> Result<Vec<f32>> {
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

/// Both sides of a product outside a model, for tests and benches.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// How the matrix is stored.
    pub encoding: Encoding,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// The matrix.
    pub payload: &'a [u8],
    /// `[n, cols]`.
    pub x: &'a [f32],
}

/// `x Wᵀ` with rounded activations on this thread: `[n, rows]`.
///
/// # Errors
/// If the payload does not have the size of its shape.
pub fn product(isa: Isa, operands: Operands<'_>) -> Result<Vec<f32>> {
    let Operands { encoding, rows, cols, payload, x } = operands;
    let stored = Stored { encoding, rows, cols, bytes: payload };
    let n = x.len() / cols;
    let source = match Panel::new(&stored)? {
        Some(panel) => {
            let x = Arc::new(panel.quantise(isa, x, cols));
            Source::rounded(panel, cols, x)
        }
        None => Source::exact(stored, x),
    };
    let mut out = vec![0.0; rows * n];
    let mut scratch = Scratch::default();
    for (task, out) in out.chunks_mut(TASK_ROWS * n).enumerate() {
        source.multiply(isa, task * TASK_ROWS, &mut scratch, out)?;
    }
    Ok(transpose(out, rows, n))
}

/// `[rows, n]` to `[n, rows]`.
fn transpose(from: Vec<f32>, rows: usize, n: usize) -> Vec<f32> {
    if n <= 1 {
        return from;
    }
    let mut out = vec![0.0; from.len()];
    out.par_chunks_mut(SIDE * rows).enumerate().for_each(|(task, out)| {
        let at = task * SIDE;
        for first in (0..rows).step_by(SIDE) {
            let from = &from[first * n..rows.min(first + SIDE) * n];
            for (r, row) in out.chunks_exact_mut(rows).enumerate() {
                for (to, from) in row[first..].iter_mut().zip(from.chunks_exact(n)) {
                    *to = from[at + r];
                }
            }
        }
    });
    out
}
