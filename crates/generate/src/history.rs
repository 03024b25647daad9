//! What the response holds so far, as the penalties see it.

use std::collections::HashMap;

/// Ids of the response with their counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Each id once, in order of first appearance.
    counts: Vec<(u32, u32)>,
    /// Where an id stands in `counts`.
    slots: HashMap<u32, usize>,
}

impl History {
    pub(crate) fn add(&mut self, id: u32) {
        let slot = *self.slots.entry(id).or_insert_with(|| {
            self.counts.push((id, 0));
            self.counts.len() - 1
        });
        self.counts[slot].1 += 1;
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.slots.contains_key(&id)
    }

    pub(crate) fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_id_once() {
        let mut history = History::default();
        [7, 3, 7, 7].into_iter().for_each(|id| history.add(id));
        assert_eq!(history.counts(), [(7, 3), (3, 1)]);
        assert!(history.contains(3) && !history.contains(4));
    }
}
