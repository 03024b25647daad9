//! From a row of shaped logits to a pick.

use crate::math::exp;

/// The greedy choice of a row and how sure it is, all from the softmax of the shaped row at
/// temperature 1, over the whole vocabulary; a forbidden id has probability 0.
///
/// Everything that rules for fixing rows and for accepting drafts look at. One reduction gives it:
/// with `m` the largest logit and `d = l − m`, `Σ e^d` and `Σ d·e^d` are the normaliser and the
/// entropy. [`from_logits`](Pick::from_logits) is the definition, and executors on the host give its
/// bits; a device may sum in another order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// First id with the largest logit.
    pub token: u32,
    /// Its probability: the row's *confidence*.
    pub probability: f32,
    /// Probability of the second-best id: `probability` on a tie, 0 where there is no second.
    pub runner_up: f32,
    /// Entropy of the row in nats, `ln Σ e^d − Σ d·e^d / Σ e^d`.
    pub entropy: f32,
    /// Probability of the row's probe id; 0 without one.
    pub probe: f32,
}

/// What a [`Pick`] needs to know of a stretch of a row, so that the row need never be whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PickPart {
    token: u32,
    best: f32,
    second: f32,
    /// `Σ e^d` and `Σ d e^d` over `d = logit - best`.
    sum: f32,
    weighted: f32,
    /// Logit of the probe if it is one of these ids.
    probe: Option<f32>,
}

impl Pick {
    /// Reads the pick off a shaped row. A row of nothing but −∞ gives zeros.
    pub fn from_logits(logits: &[f32], probe: Option<u32>) -> Pick {
        let parts = logits.chunks(PickPart::IDS).enumerate();
        let parts: Vec<_> = parts.map(|(i, part)| PickPart::of(i * PickPart::IDS, part, probe)).collect();
        Pick::merge(parts.iter())
    }

    /// The pick over all stretches of a row, which come by ascending id. Stretches are single
    /// precision, and added up in double precision.
    pub fn merge<'a>(parts: impl Iterator<Item = &'a PickPart> + Clone) -> Pick {
        let mut top = PickPart::NONE;
        for part in parts.clone() {
            if part.best > top.best {
                top = PickPart { second: top.best.max(part.second), ..*part };
            } else {
                top.second = top.second.max(part.best);
            }
        }
        if top.best == f32::NEG_INFINITY {
            return Pick { token: 0, probability: 0.0, runner_up: 0.0, entropy: 0.0, probe: 0.0 };
        }
        // With D = best of a part − best of all, its Σ e^d is e^D Σ e^d' and its Σ d e^d is
        // e^D (Σ d' e^d' + D Σ e^d').
        let (mut sum, mut weighted, mut probe) = (0.0f64, 0.0f64, None);
        for part in parts.filter(|part| part.best > f32::NEG_INFINITY) {
            let shift = f64::from(part.best - top.best);
            sum += shift.exp() * f64::from(part.sum);
            weighted += shift.exp() * (f64::from(part.weighted) + shift * f64::from(part.sum));
            probe = probe.or(part.probe);
        }
        let probability_of = |logit: f32| (f64::from(logit - top.best).exp() / sum) as f32;
        Pick {
            token: top.token,
            probability: (1.0 / sum) as f32,
            runner_up: probability_of(top.second),
            entropy: (sum.ln() - weighted / sum) as f32,
            probe: probe.map_or(0.0, probability_of),
        }
    }
}

impl PickPart {
    /// Ids of a stretch; the last one of a row may be shorter.
    pub const IDS: usize = 256;

    /// Nothing that could be picked.
    pub const NONE: PickPart = PickPart {
        token: 0,
        best: f32::NEG_INFINITY,
        second: f32::NEG_INFINITY,
        sum: 0.0,
        weighted: 0.0,
        probe: None,
    };

    /// Of the ids from `first` on. Inlined, so that a caller compiled for wide vectors takes it along; the
    /// bits are the same everywhere.
    #[inline(always)]
    pub fn of(first: usize, logits: &[f32], probe: Option<u32>) -> PickPart {
        const LANES: usize = 16;
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let Some(at) = logits.iter().position(|&l| l == best).filter(|_| best > f32::NEG_INFINITY) else {
            return PickPart::NONE;
        };
        let others = logits[..at].iter().chain(&logits[at + 1..]);
        let second = others.copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut sums, mut weighted) = ([0.0f32; LANES], [0.0f32; LANES]);
        let mut add = |i: usize, logit: f32| {
            // Far below the best nothing counts, and −∞ would become NaN.
            let d = (logit - best).max(-80.0);
            let e = exp(d);
            sums[i] += e;
            weighted[i] += d * e;
        };
        let (whole, rest) = logits.as_chunks::<LANES>();
        for logits in whole {
            for (i, logit) in logits.iter().enumerate() {
                add(i, *logit);
            }
        }
        for (i, logit) in rest.iter().enumerate() {
            add(i, *logit);
        }
        let probe =
            probe.and_then(|id| (id as usize).checked_sub(first)).and_then(|i| logits.get(i)).copied();
        let token = (first + at) as u32;
        PickPart { token, best, second, sum: sums.iter().sum(), weighted: weighted.iter().sum(), probe }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pick_is_the_first_maximum_with_its_softmax_facts() {
        let row = [1.0f32, 2.0, 2.0, f32::NEG_INFINITY];
        let pick = Pick::from_logits(&row, Some(0));
        let z = 1.0 + 1.0 + (-1.0f64).exp();
        let p = [(-1.0f64).exp() / z, 1.0 / z, 1.0 / z];
        let entropy: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
        assert_eq!(pick.token, 1);
        // Numbers below 1 from a handful of single-precision roundings.
        assert!((f64::from(pick.probability) - p[1]).abs() < 3e-7);
        assert!((f64::from(pick.runner_up) - p[2]).abs() < 3e-7);
        assert!((f64::from(pick.probe) - p[0]).abs() < 3e-7);
        assert!((f64::from(pick.entropy) - entropy).abs() < 1e-6);
    }

    #[test]
    fn a_row_with_nothing_left_has_no_confidence() {
        assert_eq!(Pick::from_logits(&[f32::NEG_INFINITY; 3], None).probability, 0.0);
    }

    #[test]
    fn long_rows_sum_to_what_double_precision_gives() {
        let row: Vec<f32> =
            (0..3000u32).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 16) as f32 / 8192.0).collect();
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let terms = || row.iter().map(|l| f64::from(l - best)).map(|d| (d, d.exp()));
        let (sum, weighted) = terms().fold((0.0, 0.0), |(s, w), (d, e)| (s + e, w + d * e));
        let pick = Pick::from_logits(&row, Some(2999));
        // Sums of positive numbers, each within a few units in the last place.
        assert!((f64::from(pick.probability) * sum - 1.0).abs() < 1e-6);
        assert!((f64::from(pick.entropy) / (sum.ln() - weighted / sum) - 1.0).abs() < 1e-6);
        assert!((f64::from(pick.probe) / (f64::from(row[2999] - best).exp() / sum) - 1.0).abs() < 1e-6);
    }
}
