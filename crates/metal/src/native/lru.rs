//! A set of least recently used things, bounded in bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Values by key, of which the least recently used make room for new ones.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    budget: usize,
    held: usize,
    clock: u64,
    entries: HashMap<K, Entry<V>>,
    /// Keys by last use.
    order: BTreeMap<u64, K>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

/// Which of the wanted were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Of the misses.
    pub(crate) bytes: u64,
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    pub(crate) fn new(budget: usize) -> Self {
        Lru { budget, held: 0, clock: 0, entries: HashMap::new(), order: BTreeMap::new() }
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// All that are held.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|entry| &entry.value)
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.entries.get(&key).map(|entry| &entry.value)
    }

    /// Has all of `wanted` at hand, making those that are not. Others make room for them first, the least
    /// recently used ones; none of `wanted` do, so the budget is exceeded if they alone need more.
    ///
    /// # Errors
    /// What `make` returns; what was made before stays.
    pub(crate) fn acquire<E>(
        &mut self,
        wanted: &[K],
        bytes: impl Fn(K) -> usize,
        mut make: impl FnMut(K) -> Result<V, E>,
    ) -> Result<Found, E> {
        let start = self.clock;
        let (mut missing, mut made) = (Vec::new(), 0);
        for &key in wanted {
            match self.entries.get_mut(&key) {
                None => missing.push(key),
                Some(entry) => {
                    self.order.remove(&entry.used);
                    self.clock += 1;
                    entry.used = self.clock;
                    self.order.insert(self.clock, key);
                }
            }
        }
        self.make_room(0, start); // what a larger set left over the budget
        for &key in &missing {
            let needed = bytes(key);
            self.make_room(needed, start);
            let value = make(key)?;
            self.clock += 1;
            self.order.insert(self.clock, key);
            self.entries.insert(key, Entry { value, bytes: needed, used: self.clock });
            self.held += needed;
            made += needed as u64;
        }
        Ok(Found { hits: (wanted.len() - missing.len()) as u64, misses: missing.len() as u64, bytes: made })
    }

    /// Lets go of what was last used up to `before` until `bytes` more fit.
    fn make_room(&mut self, bytes: usize, before: u64) {
        while self.held + bytes > self.budget {
            let Some(oldest) = self.order.first_entry().filter(|oldest| *oldest.key() <= before) else {
                return;
            };
            if let Some(entry) = self.entries.remove(&oldest.remove()) {
                self.held -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn size(key: u8) -> usize {
        usize::from(key % 5) + 1
    }

    proptest! {
        /// Against a list in order of use.
        #[test]
        fn keeps_what_a_list_would_keep(budget in 0..40usize, rounds in prop::collection::vec(prop::collection::btree_set(0..12u8, 0..6), 1..30)) {
            let mut lru = Lru::new(budget);
            let mut list: Vec<u8> = Vec::new();
            for wanted in rounds {
                let wanted: Vec<u8> = wanted.into_iter().collect();
                let hits = wanted.iter().filter(|key| list.contains(key)).count();
                let Ok(found) = lru.acquire(&wanted, size, Ok::<_, Infallible>);
                let missing: Vec<u8> = wanted.iter().copied().filter(|key| !list.contains(key)).collect();
                let bytes = missing.iter().map(|&key| size(key) as u64).sum();
                prop_assert_eq!(found, Found { hits: hits as u64, misses: missing.len() as u64, bytes });
                list.retain(|key| !wanted.contains(key));
                let over = |list: &[u8], new: &[u8], more: usize| {
                    list.iter().chain(new).map(|&k| size(k)).sum::<usize>() + more > budget
                };
                let mut new: Vec<u8> = wanted.iter().copied().filter(|key| !missing.contains(key)).collect();
                for key in [None].into_iter().chain(missing.into_iter().map(Some)) {
                    while over(&list, &new, key.map_or(0, size)) && !list.is_empty() {
                        list.remove(0);
                    }
                    new.extend(key);
                }
                list.extend(new);
                prop_assert_eq!(lru.held(), list.iter().map(|&k| size(k)).sum::<usize>());
                prop_assert!((0..12).all(|key| lru.get(key).is_some() == list.contains(&key)));
                let needed: usize = wanted.iter().map(|&k| size(k)).sum();
                prop_assert!(lru.held() <= budget.max(needed), "over the bound for nothing");
            }
        }
    }
}
