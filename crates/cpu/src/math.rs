//! Small operators over rows.
//!
//! Loops are written so that the compiler vectorises them inside [`Isa::run`](crate::kernel::Isa::run);
//! none depends on the width, so every instruction set gives the same bits.

pub(crate) use shamrock_model::math::{add_scaled, dot, exp, inverse_rms, l2_unit, softplus};

use crate::kernel::{Isa, Loops};
use crate::pool::Pool;

/// 1.5 · 2²³: adding it leaves the integer nearest to a small number in the low bits.
const SHIFT: f32 = 12_582_912.0;
/// Rows that make a task of the elementwise operators.
const ROWS_PER_TASK: usize = 4;

/// `x / rms(x) ⊙ (1 + w)` for every row of `x` `[rows, w.len()]`.
pub(crate) fn norm_1p(isa: Isa, pool: &Pool, x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    pool.for_chunks(&mut out, ROWS_PER_TASK * w.len(), |task, out| {
        let x = x[task * ROWS_PER_TASK * w.len()..].chunks_exact(w.len());
        for (out, x) in out.chunks_exact_mut(w.len()).zip(x) {
            isa.run_long(Norm { x, w, eps, out });
        }
    });
    out
}

/// [`norm_1p`] of one row.
struct Norm<'a> {
    x: &'a [f32],
    w: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Loops for Norm<'_> {
    #[inline(always)]
    fn run(self) {
        let scale = inverse_rms(self.x, self.eps);
        for ((o, v), w) in self.out.iter_mut().zip(self.x).zip(self.w) {
            *o = v * (scale * (1.0 + w));
        }
    }
}

/// The same for one short row in place.
#[inline(always)]
pub(crate) fn norm_1p_in_place(x: &mut [f32], w: &[f32], eps: f32) {
    let scale = inverse_rms(x, eps);
    for (v, w) in x.iter_mut().zip(w) {
        *v *= scale * (1.0 + w);
    }
}

/// Largest of `x`; −∞ of nothing. NaN is passed over.
#[inline(always)]
pub(crate) fn peak(x: &[f32]) -> f32 {
    in_lanes(x, f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Sum of `x` in a fixed order.
#[inline(always)]
pub(crate) fn total(x: &[f32]) -> f32 {
    in_lanes(x, 0.0, |a, b| a + b)
}

/// Folds sixteen lanes side by side, then the lanes.
#[inline(always)]
fn in_lanes(x: &[f32], start: f32, fold: impl Fn(f32, f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [start; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for x in body {
        for i in 0..LANES {
            lanes[i] = fold(lanes[i], x[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane = fold(*lane, *x);
    }
    lanes.into_iter().fold(start, fold)
}

/// Logistic function.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x σ(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Softmax in place, shifted by the maximum; the sum runs in element order.
#[inline(always)]
pub(crate) fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in row.iter_mut() {
        *x = exp(*x - max);
    }
    let inverse = 1.0 / row.iter().sum::<f32>();
    for x in row.iter_mut() {
        *x *= inverse;
    }
}

/// `2ˣ` within 3 units in the last place for |x| ≤ 126, beyond which it stays there.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = if x < -126.0 { -126.0 } else { x };
    let x = if x > 126.0 { 126.0 } else { x };
    let shifted = x + SHIFT;
    let r = x - (shifted - SHIFT);
    // The minimax polynomial of degree 5 over |r| ≤ ½: below 8e-8 relative.
    let series = 0.001_327_647_2f32;
    let series = series.mul_add(r, 0.009_675_541);
    let series = series.mul_add(r, 0.055_507_134);
    let series = series.mul_add(r, 0.240_221_2);
    let series = series.mul_add(r, 0.693_146_94);
    let series = series.mul_add(r, 1.0);
    let exponent = shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23;
    series * f32::from_bits(exponent)
}

/// Cosines and sines of a pass's positions, `[rows, rotary_dim / 2]` each.
pub(crate) struct Rotations {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotations {
    /// For rows at `positions`: angle `position · θ^(−2i/rotary_dim)` of pair `i`.
    pub(crate) fn new(positions: &[usize], rotary_dim: usize, theta: f64) -> Self {
        let half = rotary_dim / 2;
        let frequencies: Vec<f64> =
            (0..half).map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
        let angles = || positions.iter().flat_map(|&p| frequencies.iter().map(move |f| p as f64 * f));
        Rotations {
            half,
            cos: angles().map(|a| a.cos() as f32).collect(),
            sin: angles().map(|a| a.sin() as f32).collect(),
        }
    }

    /// Rotates the pairs `(i, i + rotary_dim/2)` of one head of row `row` in place.
    #[inline(always)]
    pub(crate) fn apply(&self, row: usize, head: &mut [f32]) {
        let at = row * self.half..(row + 1) * self.half;
        let (low, high) = head.split_at_mut(self.half);
        for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(&self.cos[at.clone()]).zip(&self.sin[at]) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_is_within_three_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -126_000..126_000 {
            let x = i as f32 / 1000.0 + 0.000_37;
            let exact = f64::from(x).exp2();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp2(x)) - exact).abs() / ulp);
        }
        assert!(worst <= 3.0, "{worst} ulp");
    }

    #[test]
    fn rotations_turn_pairs_by_the_position() {
        let mut head = [1.0, 0.0, 0.0, 1.0, 9.0];
        Rotations::new(&[0, 1], 4, 10000.0).apply(1, &mut head);
        let (s, c) = 0.01f64.sin_cos();
        let expected = [1f64.cos() as f32, -s as f32, 1f64.sin() as f32, c as f32, 9.0];
        for (got, want) in head.iter().zip(expected) {
            assert!((got - want).abs() < 1e-7); // one rounding
        }
    }
}
