//! What a pass must do, and how long that takes at least.

use shamrock_cmf::Encoding;
use shamrock_cpu::Machine;
use shamrock_model::config::LayerKind;
use shamrock_model::weights::{Matrix, MixerWeights};
use shamrock_model::{ModelFile, PassStats};

use super::Work;

/// Bytes of a stored key or value.
const KV_BYTES: usize = 2;

/// Operations (a multiply-add counts as two) and bytes of a work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// On 8-bit weights.
    byte_ops: f64,
    /// On 4-bit weights.
    nibble_ops: f64,
    /// On weights stored as floats.
    float_ops: f64,
    /// Weights and committed state, each once a pass.
    bytes: f64,
}

/// The least time of a work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    /// In milliseconds.
    pub(super) ms: f64,
    /// What bounds it: `memory` or `integer`.
    pub(super) bound: &'static str,
}

impl Cost {
    /// Of `work` with `scored` rows through the head; `stats` are those of a run in `passes` passes.
    pub(super) fn new(
        model: &ModelFile,
        work: Work,
        scored: usize,
        passes: usize,
        stats: &PassStats,
    ) -> Cost {
        let (config, weights) = (&model.config, &model.weights);
        let mut cost = Cost { bytes: stats.weight_bytes as f64, ..Cost::default() };
        let rows = work.rows * work.sequences;
        for layer in &weights.layers {
            let mut dense = |matrices: &[Matrix]| {
                matrices.iter().for_each(|matrix| cost.add(model, *matrix, rows));
            };
            match &layer.mixer {
                MixerWeights::Full(w) => dense(&[w.q, w.k, w.v, w.o]),
                MixerWeights::Linear(w) => dense(&[w.qkv, w.z, w.a, w.b, w.out]),
            }
            let (moe, shared) = (&layer.moe, &layer.moe.shared);
            dense(&[moe.router, moe.shared_gate, shared.gate, shared.up, shared.down]);
            let chosen = rows * config.moe.top_k.min(config.moe.experts);
            if let Some(expert) = moe.experts.first() {
                [expert.gate, expert.up, expert.down].iter().for_each(|m| cost.add(model, *m, chosen));
            }
        }
        cost.add(model, weights.head, scored);
        let kv_rows = (work.context * passes + work.rows) * work.sequences;
        for kind in &config.layers {
            cost.bytes += match kind {
                LayerKind::Full => (2 * KV_BYTES * config.attention.kv_width() * kv_rows) as f64,
                LayerKind::Linear => {
                    (2 * size_of::<f32>() * config.gdn.memory_len() * passes * work.sequences) as f64
                }
            };
        }
        cost
    }

    /// A product of a matrix with `rows` rows.
    fn add(&mut self, model: &ModelFile, matrix: Matrix, rows: usize) {
        let ops = 2.0 * (matrix.rows * matrix.cols) as f64 * rows as f64;
        *match model.weights.tensor(matrix).encoding {
            Encoding::Q8Row | Encoding::Q8TwoField => &mut self.byte_ops,
            Encoding::Q4tp | Encoding::Q4Tiled => &mut self.nibble_ops,
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => &mut self.float_ops,
        } += ops;
    }

    /// All operations.
    pub(super) fn ops(&self) -> f64 {
        self.byte_ops + self.nibble_ops + self.float_ops
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> f64 {
        self.bytes
    }

    /// The larger of the time the memory takes for the bytes and the integer units for their
    /// operations. Operations on floats, a few in a hundred, are left out: their peak is not measured.
    pub(super) fn floor(&self, machine: &Machine) -> Floor {
        let memory = self.bytes / machine.read;
        let integer = self.byte_ops / machine.bytes + self.nibble_ops / machine.nibbles;
        if memory > integer {
            Floor { ms: memory * 1e3, bound: "memory" }
        } else {
            Floor { ms: integer * 1e3, bound: "integer" }
        }
    }
}
