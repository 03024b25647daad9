//! From a row of logits to a pick: forbidden ids, penalties, ramps, then softmax.
//!
//! All generation modes share these rules. They look at the *response* only, never at the prompt.

use crate::config::Controls;

/// What shapes the logits of one part of a step.
#[derive(Clone, Copy, Debug)]
pub struct Shaping<'a> {
    /// Penalties, ramps and stop ids.
    pub controls: &'a Controls,
    /// Ids that may never be picked (the mask token among them).
    pub forbidden: &'a [u32],
    /// Ids already in the response with their counts; each id once.
    pub counts: &'a [(u32, u32)],
    /// 1-based response position that row 0 of the part would fill; zero or negative when row 0 lies
    /// in the prompt.
    pub first_position: i32,
    /// The think-end ramp applies: its id is neither in the response nor fixed in the block.
    pub think_open: bool,
}

impl Shaping<'_> {
    /// Shapes the logits of `row` in place, in this order: forbid; for each id of the response
    /// subtract frequency and presence penalties, then apply the repetition penalty; add the
    /// length ramp to every stop id; add the think-end ramp.
    pub fn apply(&self, row: usize, logits: &mut [f32]) {
        self.apply_from(row, 0, logits);
    }

    /// [`apply`](Shaping::apply) to a stretch of `row`: the logits of the ids from `first` on.
    pub fn apply_from(&self, row: usize, first: usize, logits: &mut [f32]) {
        let c = self.controls;
        let position = self.first_position.saturating_add(row as i32);
        let mut edit = |id: u32, f: &dyn Fn(f32) -> f32| {
            if let Some(l) = (id as usize).checked_sub(first).and_then(|i| logits.get_mut(i)) {
                *l = f(*l);
            }
        };
        for &id in self.forbidden {
            edit(id, &|_| f32::NEG_INFINITY);
        }
        for &(id, count) in self.counts {
            edit(id, &|l| {
                let l = l - count as f32 * c.frequency_penalty - c.presence_penalty;
                if c.repetition_penalty == 1.0 {
                    l
                } else if l < 0.0 {
                    l * c.repetition_penalty
                } else {
                    l / c.repetition_penalty
                }
            });
        }
        if c.length_ramp.strength != 0.0 {
            let bias = c.length_ramp.at(position);
            for &id in &c.stop_ids {
                edit(id, &|l| l + bias);
            }
        }
        if let Some(id) = c.think_end_id
            && self.think_open
            && c.think_end_ramp.strength != 0.0
        {
            let bias = c.think_end_ramp.at(position);
            edit(id, &|l| l + bias);
        }
    }
}

/// The greedy choice of a row and how sure it is, all from the softmax of the shaped row at
/// temperature 1, over the whole vocabulary; a forbidden id has probability 0.
///
/// Everything that rules for fixing rows and for accepting drafts look at. One reduction gives it:
/// with `m` the largest logit and `d = l − m`, `Σ e^d` and `Σ d·e^d` are the normaliser and the
/// entropy. [`from_logits`](Pick::from_logits) is the definition; a device may sum in f32.
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

impl Pick {
    /// Reads the pick off a shaped row. A row of nothing but −∞ gives zeros.
    pub fn from_logits(logits: &[f32], probe: Option<u32>) -> Pick {
        let (mut token, mut best, mut second) = (0usize, f32::NEG_INFINITY, f32::NEG_INFINITY);
        for (id, &l) in logits.iter().enumerate() {
            if l > best {
                (second, best, token) = (best, l, id);
            } else if l > second {
                second = l;
            }
        }
        if best == f32::NEG_INFINITY {
            // Nothing may be picked: no confidence in anything.
            return Pick { token: 0, probability: 0.0, runner_up: 0.0, entropy: 0.0, probe: 0.0 };
        }
        // Σ e^d and Σ d·e^d over d = l − best give both normaliser and entropy.
        let (mut sum, mut weighted) = (0.0f64, 0.0f64);
        for &l in logits {
            let d = f64::from(l - best);
            if d > -100.0 {
                let e = d.exp();
                sum += e;
                weighted += d * e;
            }
        }
        let probability_of = |l: f32| (f64::from(l - best).exp() / sum) as f32;
        Pick {
            token: token as u32,
            probability: (1.0 / sum) as f32,
            runner_up: probability_of(second),
            entropy: (sum.ln() - weighted / sum) as f32,
            probe: probe.and_then(|id| logits.get(id as usize)).map_or(0.0, |&l| probability_of(l)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Ramp;

    fn shaping<'a>(controls: &'a Controls, counts: &'a [(u32, u32)], forbidden: &'a [u32]) -> Shaping<'a> {
        Shaping { controls, forbidden, counts, first_position: 1, think_open: true }
    }

    #[test]
    fn penalties_apply_in_the_documented_order() {
        let controls = Controls {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repetition_penalty: 2.0,
            ..Controls::default()
        };
        let mut row = [3.0, 0.5, -1.0, 7.0];
        shaping(&controls, &[(0, 2), (1, 2)], &[3]).apply(0, &mut row);
        // 3 − 2·0.25 − 0.5 = 2, halved; 0.5 − 1 = −0.5, doubled; untouched; forbidden.
        assert_eq!(row, [1.0, -1.0, -1.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn ramps_grow_with_the_row_and_close_with_thinking() {
        let controls = Controls {
            length_ramp: Ramp { strength: 8.0, start: 2, window: 4 },
            think_end_ramp: Ramp { strength: 4.0, start: 0, window: 2 },
            think_end_id: Some(1),
            stop_ids: vec![0],
            ..Controls::default()
        };
        let mut open = shaping(&controls, &[], &[]);
        let mut row = [0.0, 0.0];
        open.apply(3, &mut row); // position 4: half of 8, all of 4
        assert_eq!(row, [4.0, 4.0]);
        open.think_open = false;
        open.apply(0, &mut row); // position 1: below the start
        assert_eq!(row, [4.0, 4.0]);
    }

    #[test]
    fn pick_is_the_first_maximum_with_its_softmax_facts() {
        let row = [1.0f32, 2.0, 2.0, f32::NEG_INFINITY];
        let pick = Pick::from_logits(&row, Some(0));
        let z = 1.0 + 1.0 + (-1.0f64).exp();
        let p = [(-1.0f64).exp() / z, 1.0 / z, 1.0 / z];
        let entropy: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
        assert_eq!(pick.token, 1);
        // f32 results of f64 sums: one rounding.
        assert!((f64::from(pick.probability) - p[1]).abs() < 1e-7);
        assert!((f64::from(pick.runner_up) - p[2]).abs() < 1e-7);
        assert!((f64::from(pick.probe) - p[0]).abs() < 1e-7);
        assert!((f64::from(pick.entropy) - entropy).abs() < 1e-6);
    }

    #[test]
    fn a_row_with_nothing_left_has_no_confidence() {
        assert_eq!(Pick::from_logits(&[f32::NEG_INFINITY; 3], None).probability, 0.0);
    }
}
