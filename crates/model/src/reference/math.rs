//! Operators over rows as the reference computes them, with the exponential of the standard library.

pub(super) use crate::math::{add_scaled, dot, inverse_rms, l2_unit, softplus};

/// `x / rms(x) ⊙ (1 + w)` for every row of `x` `[rows, w.len()]`.
pub(super) fn norm_1p(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let mut out = x.to_vec();
    for row in out.chunks_exact_mut(w.len()) {
        let scale = inverse_rms(row, eps);
        for (v, w) in row.iter_mut().zip(w) {
            *v *= scale * (1.0 + w);
        }
    }
    out
}

/// Logistic function.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x σ(x)`.
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Rotates the leading `rotary_dim` dims of one head in place: pairs `(i, i + rotary_dim/2)`, angle
/// `position · θ^(−2i/rotary_dim)`.
pub(super) fn rope(head: &mut [f32], position: usize, rotary_dim: usize, theta: f64) {
    let half = rotary_dim / 2;
    for i in 0..half {
        let frequency = theta.powf(-2.0 * i as f64 / rotary_dim as f64);
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (sin, cos) = (sin as f32, cos as f32);
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_turns_pairs_by_the_position() {
        let mut head = [1.0, 0.0, 0.0, 1.0, 9.0];
        rope(&mut head, 1, 4, 10000.0);
        let (s, c) = 0.01f64.sin_cos();
        let expected = [1f64.cos() as f32, -s as f32, 1f64.sin() as f32, c as f32, 9.0];
        for (got, want) in head.iter().zip(expected) {
            assert!((got - want).abs() < 1e-7); // one rounding
        }
    }
}
