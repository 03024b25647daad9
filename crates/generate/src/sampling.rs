//! Choosing a token at random, reproducibly.

use serde::{Deserialize, Serialize};
use shamrock_model::Pick;

/// How a token is chosen from a shaped row.
///
/// The filters apply in the order temperature, `top_k`, `top_p`, `min_p`, each to what the one
/// before left. A token's confidence is its probability in the shaped row at temperature 1, before
/// any filter, so that a threshold means the same at every temperature.
///
/// A draw depends on the seed, the response position and, while denoising, the number of the pass
/// over the block; not on the order or the batch in which rows are scored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy: the first largest logit.
    pub temperature: f32,
    /// Most candidates; 0 sets no limit.
    pub top_k: usize,
    /// Keep the likeliest candidates up to this mass; 1 keeps all.
    pub top_p: f32,
    /// Drop candidates less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Start of the random draws.
    pub seed: u64,
}

/// Candidates this many nats below the best are never drawn: 64 of them weigh 1e-26.
const NEGLIGIBLE: f64 = 64.0;

impl Sampling {
    /// The first largest logit, always.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// Whether nothing is left to chance.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Draws from a shaped row; `pick` is the row's greedy pick. Returns `(id, confidence)`.
    pub(crate) fn draw(&self, logits: &[f32], pick: &Pick, position: u32, pass: u32) -> (u32, f32) {
        let best = logits[pick.token as usize];
        let candidates = self.candidates(logits, best);
        let total: f64 = candidates.iter().map(|c| c.weight).sum();
        let mut left = uniform(self.seed, position, pass) * total;
        let chosen = candidates.iter().find(|c| {
            left -= c.weight;
            left < 0.0
        });
        // Rounding can leave a last crumb of mass that belongs to the last candidate.
        let id = chosen.or(candidates.last()).map_or(pick.token, |c| c.id);
        let relative = f64::from(logits[id as usize] - best).exp();
        (id, (relative * f64::from(pick.probability)) as f32)
    }

    /// What the filters leave. In order of likelihood if there are filters, else in order of ids.
    fn candidates(&self, logits: &[f32], best: f32) -> Vec<Candidate> {
        let temperature = f64::from(self.temperature);
        let mut candidates: Vec<Candidate> = (0u32..)
            .zip(logits)
            .map(|(id, &logit)| (id, logit, f64::from(logit - best) / temperature))
            .filter(|&(_, _, nats)| nats >= -NEGLIGIBLE)
            .map(|(id, logit, nats)| Candidate { id, logit, weight: nats.exp() })
            .collect();
        let likelier = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
        if (1..candidates.len()).contains(&self.top_k) {
            candidates.select_nth_unstable_by(self.top_k - 1, likelier);
            candidates.truncate(self.top_k);
        }
        if self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0 {
            candidates.sort_unstable_by(likelier);
        }
        if self.top_p < 1.0 {
            let wanted = f64::from(self.top_p) * candidates.iter().map(|c| c.weight).sum::<f64>();
            let mut mass = 0.0;
            let keep = candidates.iter().take_while(|c| {
                let short = mass < wanted;
                mass += c.weight;
                short
            });
            let keep = keep.count().max(1);
            candidates.truncate(keep);
        }
        if self.min_p > 0.0 {
            // The best weighs 1.
            let keep = candidates.iter().take_while(|c| c.weight >= f64::from(self.min_p)).count();
            candidates.truncate(keep.max(1));
        }
        candidates
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

struct Candidate {
    id: u32,
    logit: f32,
    /// Probability relative to the best candidate's.
    weight: f64,
}

/// A number in `[0, 1)` from a seed and a place: a counter-based generator, so that a draw needs no
/// state and no order.
fn uniform(seed: u64, position: u32, pass: u32) -> f64 {
    let place = u64::from(position) << 32 | u64::from(pass);
    let bits = scramble(scramble(seed).wrapping_add(place));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// One output of SplitMix64 (Steele, Lea and Flood, 2014) from the state `x`.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 0.5, 0.25, 0.15, 0.1 and one forbidden id.
    fn row() -> Vec<f32> {
        let mut row: Vec<f32> = [0.15f32, 0.5, 0.1, 0.25].iter().map(|p| p.ln() + 3.0).collect();
        row.push(f32::NEG_INFINITY);
        row
    }

    fn shares(sampling: Sampling) -> Vec<f64> {
        let (row, draws) = (row(), 20_000);
        let pick = Pick::from_logits(&row, None);
        let mut hits = vec![0u32; row.len()];
        for position in 0..draws {
            let (id, confidence) = sampling.draw(&row, &pick, position, 0);
            let p = (row[id as usize] - 3.0).exp();
            assert!((confidence - p).abs() < 1e-6, "confidence is the unfiltered probability");
            hits[id as usize] += 1;
        }
        hits.into_iter().map(|n| f64::from(n) / f64::from(draws)).collect()
    }

    fn assert_shares(sampling: Sampling, want: [f64; 5]) {
        // Standard error is at most sqrt(1/4/20000) = 0.0035: four of them.
        for (got, want) in shares(sampling).into_iter().zip(want) {
            assert!((got - want).abs() < 0.015, "{got} should be {want} with {sampling:?}");
            assert!(want > 0.0 || got == 0.0);
        }
    }

    #[test]
    fn draws_follow_the_filtered_distribution() {
        let base = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        assert_shares(base, [0.15, 0.5, 0.1, 0.25, 0.0]);
        assert_shares(Sampling { top_k: 2, ..base }, [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0, 0.0]);
        // 0.5 + 0.25 reaches 0.7; the third is dropped.
        assert_shares(Sampling { top_p: 0.7, ..base }, [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0, 0.0]);
        assert_shares(Sampling { min_p: 0.25, ..base }, [1.0 / 6.0, 5.0 / 9.0, 0.0, 5.0 / 18.0, 0.0]);
        assert_shares(Sampling { top_p: 0.0, ..base }, [0.0, 1.0, 0.0, 0.0, 0.0]);
        // Temperature 1/2 squares the probabilities.
        let z = 0.0225 + 0.25 + 0.01 + 0.0625;
        assert_shares(
            Sampling { temperature: 0.5, ..base },
            [0.0225 / z, 0.25 / z, 0.01 / z, 0.0625 / z, 0.0],
        );
        assert_shares(Sampling { temperature: f32::MIN_POSITIVE, ..base }, [0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn filters_see_what_the_one_before_left() {
        let base = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        // Of the two that top_k leaves the first holds 2/3, which already reaches top_p.
        assert_shares(Sampling { top_k: 2, top_p: 0.6, ..base }, [0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn uniform_numbers_fill_the_interval() {
        let draws: Vec<f64> = (0..10_000).map(|i| uniform(1, i / 8, i % 8)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        // Standard error 0.0029.
        assert!((mean - 0.5).abs() < 0.012, "mean {mean}");
        assert_ne!(uniform(1, 2, 3), uniform(2, 2, 3));
    }
}
