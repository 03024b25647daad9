//! States kept for prompts that begin like an earlier one.
//!
//! A prompt goes on from the longest kept state that it continues. Where it leaves the path of an
//! earlier prompt (a shared system message, say) the scheduler keeps a state too, so that the third
//! prompt of a kind finds the whole shared part; and every few hundred tokens on a prompt's way. A full
//! state is kept at each of these places: a Gated DeltaNet memory cannot be cut back to an earlier row.

use std::ops::Range;

use shamrock_generate::{Mode, reusable};
use shamrock_model::{Config, Executor, SnapshotId};

/// Shared tokens for which a state of their own is worth its memory.
const WORTHWHILE: usize = 16;

/// Snapshots by the ids they hold; the least recently used goes when there are too many bytes.
pub(super) struct PrefixCache {
    /// Least recently used first.
    entries: Vec<Entry>,
    bytes: u64,
    budget: u64,
    /// Bytes of a state: fixed, and per position.
    state_bytes: (u64, u64),
}

struct Entry {
    ids: Vec<u32>,
    snapshot: SnapshotId,
    bytes: u64,
}

impl PrefixCache {
    pub(super) fn new(config: &Config, budget: u64) -> PrefixCache {
        PrefixCache { entries: Vec::new(), bytes: 0, budget, state_bytes: config.state_bytes() }
    }

    /// Whether it keeps anything at all.
    pub(super) fn is_on(&self) -> bool {
        self.budget > 0
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What it holds, least recently used first.
    pub(super) fn states(&self) -> impl Iterator<Item = (&[u32], SnapshotId)> {
        self.entries.iter().map(|entry| (entry.ids.as_slice(), entry.snapshot))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The longest state that a prompt continues: its snapshot and how many tokens it holds.
    pub(super) fn find(&mut self, prompt: &[u32], mode: Mode) -> Option<(SnapshotId, usize)> {
        let limit = reusable(prompt, mode);
        let fitting = self.entries.iter().enumerate().filter(|(_, entry)| limit.starts_with(&entry.ids));
        let (at, _) = fitting.max_by_key(|(_, entry)| entry.ids.len())?;
        let entry = self.entries.remove(at);
        let found = (entry.snapshot, entry.ids.len());
        self.entries.push(entry);
        Some(found)
    }

    /// Whether committing these ids would give no state worth keeping: nearly all of them are in one
    /// already, or a prompt has gone past them.
    pub(super) fn has(&self, ids: &[u32]) -> bool {
        let near = |entry: &Entry| ids.starts_with(&entry.ids) && ids.len() < entry.ids.len() + WORTHWHILE;
        self.entries.iter().any(|entry| near(entry) || entry.ids.starts_with(ids))
    }

    /// Where a prompt leaves the path of an earlier one, if that is far enough behind `cached`.
    pub(super) fn branch(&self, prompt: &[u32], cached: usize) -> Option<usize> {
        let shared = |entry: &Entry| entry.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.entries.iter().map(shared).max().filter(|&at| at >= cached + WORTHWHILE)
    }

    /// Keeps a state, or frees it when that is no gain.
    pub(super) fn insert(&mut self, executor: &mut dyn Executor, ids: Vec<u32>, snapshot: SnapshotId) {
        let bytes = self.state_bytes.0.saturating_add(self.state_bytes.1.saturating_mul(ids.len() as u64));
        if bytes > self.budget {
            executor.release(snapshot);
            return;
        }
        if let Some(at) = self.entries.iter().position(|entry| entry.ids == ids) {
            self.forget(executor, at..at + 1);
        }
        let mut drop = 0;
        let mut freed = 0;
        while self.bytes - freed + bytes > self.budget && drop < self.entries.len() {
            freed += self.entries[drop].bytes;
            drop += 1;
        }
        self.forget(executor, 0..drop);
        self.bytes += bytes;
        self.entries.push(Entry { ids, snapshot, bytes });
    }

    /// Frees a state that could not be restored.
    pub(super) fn remove(&mut self, executor: &mut dyn Executor, snapshot: SnapshotId) {
        if let Some(at) = self.entries.iter().position(|entry| entry.snapshot == snapshot) {
            self.forget(executor, at..at + 1);
        }
    }

    /// Frees everything.
    pub(super) fn clear(&mut self, executor: &mut dyn Executor) {
        self.forget(executor, 0..self.entries.len());
    }

    fn forget(&mut self, executor: &mut dyn Executor, range: Range<usize>) {
        for entry in self.entries.drain(range) {
            self.bytes -= entry.bytes;
            executor.release(entry.snapshot);
        }
    }
}
