//! Columns of a matrix, so that tasks can own some each.

use std::marker::PhantomData;

/// Some columns of a row-major matrix.
pub(crate) struct Stripe<'a> {
    /// First of the columns in row 0.
    start: *mut f32,
    /// Numbers from a row to the next.
    width: usize,
    /// First column.
    first: usize,
    columns: usize,
    rows: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: like the `&mut [f32]` it stands for; no two stripes share a number.
unsafe impl Send for Stripe<'_> {}

impl<'a> Stripe<'a> {
    /// Cuts `matrix` `[_, width]` into stripes of `step` columns; the last may be narrower.
    pub(crate) fn split(matrix: &'a mut [f32], width: usize, step: usize) -> Vec<Stripe<'a>> {
        assert!(width > 0 && step > 0 && matrix.len().is_multiple_of(width));
        let (rows, start) = (matrix.len() / width, matrix.as_mut_ptr());
        let stripe = |first: usize| Stripe {
            start: start.wrapping_add(first),
            width,
            first,
            columns: step.min(width - first),
            rows,
            matrix: PhantomData,
        };
        (0..width).step_by(step).map(stripe).collect()
    }

    /// First column.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// These columns of a row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: `row` and the columns lie inside the matrix, which is borrowed for `'a`; stripes of
        // one split are disjoint, and `&mut self` keeps rows of this one apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.width), self.columns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_a_matrix_once() {
        let mut matrix = vec![0.0; 3 * 7];
        for mut stripe in Stripe::split(&mut matrix, 7, 3) {
            for row in 0..3 {
                let first = stripe.first();
                for (column, value) in stripe.row(row).iter_mut().enumerate() {
                    *value += (row * 7 + first + column) as f32;
                }
            }
        }
        assert!(matrix.iter().enumerate().all(|(i, &v)| v == i as f32));
    }
}
