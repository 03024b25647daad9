//! The committed state of a sequence in a plain host form, for parity tests, for moving a
//! conversation between backends and for saving it.

use crate::config::{Config, LayerKind};
use crate::error::{Error, Result};

/// Committed state of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceState {
    /// Committed rows.
    pub len: usize,
    /// One entry per layer.
    pub layers: Vec<LayerState>,
}

/// Committed state of one layer.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerState {
    /// Full attention.
    Kv {
        /// Keys after norm and rotation, `[len, kv_heads, head_dim]`.
        k: Vec<f32>,
        /// Values as projected, `[len, kv_heads, head_dim]`.
        v: Vec<f32>,
    },
    /// Gated DeltaNet.
    Gdn {
        /// Last raw rows before the convolution, oldest first, `[conv_kernel - 1, channels]`.
        ring: Vec<f32>,
        /// Associative memory, `[value_heads, key_dim, value_dim]`.
        memory: Vec<f32>,
    },
}

impl LayerState {
    /// The layers of a sequence with nothing committed.
    pub fn empty(config: &Config) -> Vec<LayerState> {
        let empty = |kind: &LayerKind| match kind {
            LayerKind::Full => LayerState::Kv { k: Vec::new(), v: Vec::new() },
            LayerKind::Linear => LayerState::Gdn {
                ring: vec![0.0; config.gdn.ring_rows() * config.gdn.channels()],
                memory: vec![0.0; config.gdn.memory_len()],
            },
        };
        config.layers.iter().map(empty).collect()
    }

    /// Cuts the layers of a sequence back: keys and values to the first `kv_len` numbers each, a
    /// Gated DeltaNet layer to the `(ring, memory)` that `replay` makes of its entry in `undo`.
    pub fn cut_back<U>(
        layers: &mut [LayerState],
        kv_len: usize,
        undo: &[Option<U>],
        replay: impl Fn(&U) -> (Vec<f32>, Vec<f32>),
    ) {
        for (layer, undo) in layers.iter_mut().zip(undo) {
            match layer {
                LayerState::Kv { k, v } => {
                    k.truncate(kv_len);
                    v.truncate(kv_len);
                }
                LayerState::Gdn { ring, memory } => {
                    if let Some(undo) = undo {
                        (*ring, *memory) = replay(undo);
                    }
                }
            }
        }
    }
}

impl SequenceState {
    /// Checks that every part has the size the model calls for.
    ///
    /// # Errors
    /// [`Error::State`] naming the layer.
    pub fn check(&self, config: &Config) -> Result<()> {
        if self.layers.len() != config.layers.len() {
            return Err(Error::State(format!(
                "{} layers, the model has {}",
                self.layers.len(),
                config.layers.len()
            )));
        }
        let kv = self.len.checked_mul(config.attention.kv_width());
        for (i, (layer, kind)) in self.layers.iter().zip(&config.layers).enumerate() {
            let fits = match (layer, kind) {
                (LayerState::Kv { k, v }, LayerKind::Full) => Some(k.len()) == kv && Some(v.len()) == kv,
                (LayerState::Gdn { ring, memory }, LayerKind::Linear) => {
                    ring.len() == config.gdn.ring_rows() * config.gdn.channels()
                        && memory.len() == config.gdn.memory_len()
                }
                _ => return Err(Error::State(format!("layer {i} is of another kind than {kind:?}"))),
            };
            if !fits {
                return Err(Error::State(format!("layer {i} has the wrong size for length {}", self.len)));
            }
        }
        Ok(())
    }
}
