//! The committed state of a layer as this executor holds it.

use half::f16;
use half::slice::HalfFloatSliceExt;
use shamrock_model::LayerState;
use shamrock_model::config::{Config, LayerKind};

use crate::{KvPrecision, gdn};

/// Committed state of one layer.
#[derive(Clone)]
pub(crate) enum State {
    /// Full attention.
    Kv(Cache),
    /// Gated DeltaNet, as in [`LayerState::Gdn`].
    Gdn {
        /// `[conv_kernel - 1, channels]`.
        ring: Vec<f32>,
        /// `[value_heads, key_dim, value_dim]`.
        memory: Vec<f32>,
    },
}

/// Keys and values, `[len, kv_heads, head_dim]` each.
#[derive(Clone)]
pub(crate) struct Cache {
    pub(crate) k: Numbers,
    pub(crate) v: Numbers,
}

/// Numbers in one precision or the other.
#[derive(Clone)]
pub(crate) enum Numbers {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl State {
    /// The states of a sequence with nothing committed.
    pub(crate) fn empty(config: &Config, kv: KvPrecision) -> Vec<State> {
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Full => State::Kv(Cache::new(kv)),
            LayerKind::Linear => State::Gdn {
                ring: vec![0.0; config.gdn.ring_rows() * config.gdn.channels()],
                memory: vec![0.0; config.gdn.memory_len()],
            },
        };
        config.layers.iter().map(layer).collect()
    }

    /// Takes the plain form over.
    pub(crate) fn import(from: &LayerState, precision: KvPrecision) -> State {
        match from {
            LayerState::Kv { k, v } => {
                let mut cache = Cache::new(precision);
                cache.push(k, v);
                State::Kv(cache)
            }
            LayerState::Gdn { ring, memory } => State::Gdn { ring: ring.clone(), memory: memory.clone() },
        }
    }

    /// The plain form.
    pub(crate) fn export(&self) -> LayerState {
        match self {
            State::Kv(cache) => LayerState::Kv { k: cache.k.to_vec(), v: cache.v.to_vec() },
            State::Gdn { ring, memory } => LayerState::Gdn { ring: ring.clone(), memory: memory.clone() },
        }
    }

    /// Cuts back to a cache of `kv_len` numbers, or to what `replay` makes of `undo`.
    pub(crate) fn cut_back(
        &mut self,
        kv_len: usize,
        undo: Option<&gdn::Undo>,
        replay: impl Fn(&gdn::Undo) -> (Vec<f32>, Vec<f32>),
    ) {
        match (self, undo) {
            (State::Kv(cache), _) => {
                cache.k.truncate(kv_len);
                cache.v.truncate(kv_len);
            }
            (State::Gdn { ring, memory }, Some(undo)) => (*ring, *memory) = replay(undo),
            (State::Gdn { .. }, None) => {}
        }
    }
}

impl Cache {
    /// Nothing yet.
    pub(crate) fn new(precision: KvPrecision) -> Self {
        Cache { k: Numbers::new(precision), v: Numbers::new(precision) }
    }

    /// Appends rows.
    pub(crate) fn push(&mut self, k: &[f32], v: &[f32]) {
        self.k.push(k);
        self.v.push(v);
    }
}

impl Numbers {
    fn new(precision: KvPrecision) -> Self {
        match precision {
            KvPrecision::F16 => Numbers::F16(Vec::new()),
            KvPrecision::F32 => Numbers::F32(Vec::new()),
        }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Numbers::F16(numbers) => numbers.len(),
            Numbers::F32(numbers) => numbers.len(),
        }
    }

    /// None, in the same precision.
    pub(crate) fn none(&self) -> Self {
        match self {
            Numbers::F16(_) => Numbers::F16(Vec::new()),
            Numbers::F32(_) => Numbers::F32(Vec::new()),
        }
    }

    /// Appends `more`, rounded.
    pub(crate) fn push(&mut self, more: &[f32]) {
        match self {
            Numbers::F16(numbers) => {
                let at = numbers.len();
                numbers.resize(at + more.len(), f16::ZERO);
                numbers[at..].convert_from_f32_slice(more);
            }
            Numbers::F32(numbers) => numbers.extend_from_slice(more),
        }
    }

    /// Reads `out.len()` of them, from the `at`-th on.
    pub(crate) fn read(&self, at: usize, out: &mut [f32]) {
        match self {
            Numbers::F16(numbers) => numbers[at..at + out.len()].convert_to_f32_slice(out),
            Numbers::F32(numbers) => out.copy_from_slice(&numbers[at..at + out.len()]),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Numbers::F16(numbers) => numbers.truncate(len),
            Numbers::F32(numbers) => numbers.truncate(len),
        }
    }

    fn to_vec(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.len()];
        self.read(0, &mut all);
        all
    }
}
