//! Rounding shared by the quantised encoders.

use half::f16;

/// The smallest normal half: scales are never smaller.
const MIN_SCALE: f32 = 1.0 / 16384.0;
const MAX_SCALE: f32 = 65504.0;

/// A scale as it will be read back: rounded to half precision, raised to the smallest normal
/// half, and lowered to the largest finite one so that no finite weight decodes to infinity.
pub(super) fn scale(x: f32) -> f32 {
    f16::from_f32(x).to_f32().clamp(MIN_SCALE, MAX_SCALE)
}

/// 1.5 · 2²³: adding it to a number of magnitude below 2²² leaves no fraction bits, rounding half
/// to even. Unlike `round_ties_even` that needs no library call on processors without a rounding
/// instruction, and the integer can be read off the sum's bits.
const SHIFT: f32 = 12_582_912.0;

/// `x`, not NaN, rounded half to even and clamped to `min..=max`, whole numbers of magnitude below 2²².
#[inline(always)]
pub(super) fn round_clamped(x: f32, min: f32, max: f32) -> f32 {
    (clamp(x, min, max) + SHIFT) - SHIFT
}

/// [`round_clamped`] as an integer.
#[inline(always)]
pub(super) fn round_to_int(x: f32, min: f32, max: f32) -> i32 {
    (clamp(x, min, max) + SHIFT).to_bits().cast_signed() - SHIFT.to_bits().cast_signed()
}

/// `f32::clamp` without its care for NaN: two instructions.
#[inline(always)]
fn clamp(x: f32, min: f32, max: f32) -> f32 {
    let x = if x < min { min } else { x };
    if x > max { max } else { x }
}

/// Largest magnitude of `values`, none of them NaN.
#[inline(always)]
pub(super) fn peak(values: &[f32]) -> f32 {
    // Magnitudes are ordered like their bit patterns, and unlike floats the compiler may take
    // the maximum of integers in any order.
    let bits = values.iter().fold(0, |peak, value| value.abs().to_bits().max(peak));
    f32::from_bits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_clamped_is_ties_even(x in prop_oneof![-200f32..200.0, any::<f32>(), (-300i32..300).prop_map(|i| i as f32 / 2.0)]) {
            prop_assume!(!x.is_nan());
            let want = x.round_ties_even().clamp(-127.0, 127.0);
            prop_assert_eq!(round_clamped(x, -127.0, 127.0), want);
            prop_assert_eq!(round_to_int(x, -127.0, 127.0) as f32, want);
        }

        #[test]
        fn peak_is_the_largest_magnitude(values in proptest::collection::vec(-10f32..10.0, 0..40)) {
            prop_assert_eq!(peak(&values), values.iter().fold(0.0, |a, b| b.abs().max(a)));
        }
    }

    #[test]
    fn scales_stay_normal_and_finite() {
        assert_eq!(scale(0.0), MIN_SCALE);
        assert_eq!(scale(1e30), MAX_SCALE);
        assert_eq!(scale(0.1), f16::from_f32(0.1).to_f32());
    }
}
