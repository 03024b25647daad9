//! Small operators over rows that the executors on the host share.
//!
//! Always inlined, so that a caller compiled for wide vectors takes them along. The order of every
//! sum is fixed and no loop depends on the width, so the bits are the same everywhere.

/// 1.5 · 2²³: adding it leaves the integer nearest to a small number in the low bits.
const SHIFT: f32 = 12_582_912.0;

/// `1 / sqrt(mean(x²) + ε)`.
#[inline(always)]
pub fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Scales `x` to unit length: `x / sqrt(Σx² + 1e-6)`. The 1e-6 is part of the model.
#[inline(always)]
pub fn l2_unit(x: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter_mut().for_each(|v| *v *= scale);
}

/// `ln(1 + eˣ)` without overflow.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Inner product in a fixed order (sixteen running sums), so that a row's result depends neither on
/// the rows beside it nor on the number of threads.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (a_body, a_tail) = a.as_chunks::<LANES>();
    let (b_body, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a_body.iter().zip(b_body) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0] + tail
}

/// `out += scale · x`.
#[inline(always)]
pub fn add_scaled(out: &mut [f32], x: &[f32], scale: f32) {
    for (o, x) in out.iter_mut().zip(x) {
        *o += scale * x;
    }
}

/// `eˣ` within 2 units in the last place, in operations that vectorise. Below −87 it stays at the
/// smallest normal numbers, above 88 at the largest; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// ln 2 in two parts, the first short enough that its products with whole numbers are exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let whole = shifted - SHIFT;
    let r = (x - whole * LN2[0]) - whole * LN2[1];
    // Taylor to the seventh power: below 1e-8 relative over |r| ≤ ln 2 / 2.
    let series = 1.0 / 5040.0;
    let series = series * r + 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = (series * r) * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23;
    series * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0 + 0.000_37;
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / ulp);
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::INFINITY) > 1e38);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn softplus_matches_its_definition_and_survives_the_ends() {
        for x in [-3.0f32, -0.1, 0.0, 0.5, 4.0] {
            // Two roundings apart at most.
            assert!((softplus(x) - (1.0 + f64::from(x).exp()).ln() as f32).abs() < 1e-6);
        }
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(softplus(-200.0), 0.0);
    }

    #[test]
    fn dot_agrees_with_f64_at_awkward_lengths() {
        for n in [0, 1, 15, 16, 17, 100] {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos()).collect();
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            // n products of size ≤ 1, each rounded to 2⁻²⁴.
            assert!((f64::from(dot(&a, &b)) - exact).abs() <= 1e-7 * n as f64);
        }
    }
}
