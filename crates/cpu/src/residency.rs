//! Which experts' weights are in memory, where not all of them can be.
//!
//! Weights are pages of the file that the system fetches when they are read and drops when memory is
//! short. It does not know what the router knows: which experts a layer is about to read. With a budget,
//! those are asked for before the products begin, and the experts that were not used for longest are let
//! go of, so that the process stays within the budget and other pages are not pushed out.

use std::collections::{BTreeMap, BTreeSet};

use shamrock_cmf::Hint;
use shamrock_model::weights::{Ffn, Weights};

/// An expert: layer and number.
type Expert = (usize, u32);

/// Experts held within a budget, the least recently used first to go.
#[derive(Debug)]
pub(crate) struct Residency {
    /// In bytes of expert weights.
    budget: u64,
    bytes: u64,
    /// Counts uses of layers.
    now: u64,
    last_use: BTreeMap<Expert, u64>,
    by_use: BTreeSet<(u64, Expert)>,
}

/// What a use of experts found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Experts that were held.
    pub(crate) hits: u64,
    /// Experts that had to be asked for.
    pub(crate) misses: u64,
}

impl Residency {
    /// Nothing held yet.
    pub(crate) fn new(budget: u64) -> Self {
        Residency { budget, bytes: 0, now: 0, last_use: BTreeMap::new(), by_use: BTreeSet::new() }
    }

    /// A layer is about to read `experts`. They stay, even beyond the budget, until the next use.
    pub(crate) fn touch(
        &mut self,
        weights: &Weights,
        layer: usize,
        experts: impl Iterator<Item = u32>,
    ) -> Found {
        self.now += 1;
        let mut found = Found::default();
        for number in experts {
            let expert = (layer, number);
            match self.last_use.insert(expert, self.now) {
                Some(before) => {
                    found.hits += 1;
                    self.by_use.remove(&(before, expert));
                }
                None => {
                    found.misses += 1;
                    self.bytes += hint(weights, expert, Hint::Soon);
                }
            }
            self.by_use.insert((self.now, expert));
        }
        while self.bytes > self.budget
            && let Some(&(used, expert)) = self.by_use.first()
            && used < self.now
        {
            self.by_use.pop_first();
            self.last_use.remove(&expert);
            self.bytes -= hint(weights, expert, Hint::Later);
        }
        found
    }
}

/// Passes a hint on and returns the expert's bytes.
fn hint(weights: &Weights, (layer, number): Expert, hint: Hint) -> u64 {
    let ffn: &Ffn = &weights.layers[layer].moe.experts[number as usize];
    let each = ffn.matrices().map(|matrix| {
        weights.container().hint(matrix.id, hint);
        weights.tensor(matrix).bytes.len() as u64
    });
    each.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use shamrock_model::ModelFile;

    use super::*;

    #[test]
    fn the_least_recently_used_go_and_the_layer_in_hand_stays() {
        let model = ModelFile::open(shamrock_testkit::fixture("small/model.q4tp.cmf")).unwrap();
        let weights = &model.weights;
        let size: u64 = weights.layers[0].moe.experts[0]
            .matrices()
            .iter()
            .map(|matrix| weights.tensor(*matrix).bytes.len() as u64)
            .sum();
        let mut held = Residency::new(3 * size);
        let mut touch = |layer, experts: &[u32]| {
            let found = held.touch(weights, layer, experts.iter().copied());
            (found.hits, found.misses, held.bytes / size)
        };
        assert_eq!(touch(0, &[0, 1]), (0, 2, 2));
        assert_eq!(touch(1, &[0, 1]), (0, 2, 3), "one of layer 0 went");
        assert_eq!(touch(0, &[1]), (1, 0, 3), "it was expert 0, the earlier of two equally old ones");
        assert_eq!(touch(0, &[0]), (0, 1, 3));
        assert_eq!(touch(1, &[0, 1, 2, 3]), (1, 3, 4), "all that a layer needs stay, beyond the budget");
        assert_eq!(touch(0, &[]), (0, 0, 3));
    }
}
