//! Forbidden ids, penalties and ramps: what happens to a row of logits before a [pick](crate::Pick).
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
}
