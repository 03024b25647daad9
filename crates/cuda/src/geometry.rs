//! What the kernels are compiled for, and which shapes they can take.

use shamrock_cmf::Encoding;
use shamrock_model::{Config, Error, ModelFile, Result};

use crate::{BACKEND, KvPrecision, Precision, abi};

/// Shared memory that every device gives a block without asking (`rms_norm` keeps a row there).
const STATIC_SHARED: usize = 48 << 10;

/// Columns of an activation row: whole steps of 64.
pub(crate) fn padded(n: usize) -> usize {
    n.next_multiple_of(64)
}

/// A model's shape as the kernels see it.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) config: Config,
    /// Encoding of all expert matrices on the device.
    pub(crate) experts: u32,
    pub(crate) precision: Precision,
    pub(crate) kv: KvPrecision,
}

impl Geometry {
    /// The geometry of a model.
    ///
    /// # Errors
    /// [`Error::Device`] naming the field and its limit when the kernels cannot take a shape.
    pub(crate) fn new(model: &ModelFile, precision: Precision, kv: KvPrecision) -> Result<Geometry> {
        let geometry = Geometry { config: model.config.clone(), experts: experts(model), precision, kv };
        geometry.check()?;
        Ok(geometry)
    }

    fn check(&self) -> Result<()> {
        let Config { attention: a, gdn: g, moe: m, hidden_size, .. } = &self.config;
        let refuse = |field: &str, value: usize, limit: &str| {
            Err(Error::Device {
                backend: BACKEND,
                problem: format!(
                    "{field} {value} is beyond these kernels, which take {limit}; use --backend cpu"
                ),
            })
        };
        for (field, value) in [("head_dim", a.head_dim), ("linear_value_head_dim", g.value_dim)] {
            if ![32, 64, 128, 256].contains(&value) {
                return refuse(field, value, "32, 64, 128 or 256");
            }
        }
        if !g.key_dim.is_multiple_of(32) || g.key_dim > 256 {
            return refuse("linear_key_head_dim", g.key_dim, "multiples of 32 up to 256");
        }
        if !(2..=8).contains(&g.conv_kernel) {
            return refuse("linear_conv_kernel_dim", g.conv_kernel, "2 to 8");
        }
        if hidden_size * 4 + 256 > STATIC_SHARED {
            return refuse("hidden_size", *hidden_size, "up to 12224");
        }
        if !hidden_size.is_multiple_of(4) {
            return refuse("hidden_size", *hidden_size, "multiples of 4");
        }
        if m.experts > 1024 {
            return refuse("num_experts", m.experts, "up to 1024");
        }
        if m.top_k > 32 {
            return refuse("num_experts_per_tok", m.top_k, "up to 32");
        }
        Ok(())
    }

    /// Macros of the kernels.
    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let Config { attention: a, gdn: g, moe: m, .. } = &self.config;
        let eps = format!("{:e}f", self.config.norm_eps);
        let numbers = [
            ("HIDDEN", self.config.hidden_size),
            ("VOCAB", self.config.vocab_size),
            ("HEADS", a.heads),
            ("KV_HEADS", a.kv_heads),
            ("HEAD_DIM", a.head_dim),
            ("ROTARY", a.rotary_dim),
            ("KEY_HEADS", g.key_heads),
            ("VALUE_HEADS", g.value_heads),
            ("KEY_DIM", g.key_dim),
            ("VALUE_DIM", g.value_dim),
            ("CONV_KERNEL", g.conv_kernel),
            ("EXPERTS", m.experts),
            ("TOP_K", m.top_k),
            ("NORM_TOPK", m.norm_topk.into()),
            ("EXPERT_ENCODING", self.experts as usize),
            ("SPLIT", self.halves()),
            ("KV_HALF", (self.kv == KvPrecision::Half).into()),
        ];
        let mut all: Vec<_> = numbers.into_iter().map(|(name, n)| (name, n.to_string())).collect();
        all.push(("EPS", eps));
        all
    }

    /// Halves that an activation is stored as.
    pub(crate) fn halves(&self) -> usize {
        match self.precision {
            Precision::Half => 1,
            Precision::Split => 2,
        }
    }

    /// Whether attention runs on tensor cores: only where keys and values are halves and so much rounding
    /// is wanted anyway.
    pub(crate) fn tensor_attention(&self) -> bool {
        self.precision == Precision::Half && self.kv == KvPrecision::Half
    }

    /// Bytes of a stored key or value.
    pub(crate) fn kv_bytes(&self) -> usize {
        match self.kv {
            KvPrecision::Half => 2,
            KvPrecision::Full => 4,
        }
    }

    /// Values in one linear layer's state: ring, then memory.
    pub(crate) fn gdn_state(&self) -> usize {
        let g = &self.config.gdn;
        g.ring_rows() * g.channels() + g.memory_len()
    }

    /// Values that a rewindable row keeps in each linear layer.
    pub(crate) fn undo_row(&self) -> usize {
        2 * self.config.gdn.channels() + 2 * self.config.gdn.value_heads
    }

    /// Layers of each kind: `(linear, full)`.
    pub(crate) fn layer_kinds(&self) -> (usize, usize) {
        let linear =
            self.config.layers.iter().filter(|k| **k == shamrock_model::config::LayerKind::Linear).count();
        (linear, self.config.layers.len() - linear)
    }

    /// Width of the rows between an expert's products, shared by routed and shared experts.
    pub(crate) fn expert_stride(&self) -> usize {
        padded(self.config.moe.expert_width.max(self.config.moe.shared_width))
    }
}

/// The one encoding that all expert matrices can have on the device: the file's, or halves when the
/// file's is mixed or has column factors, which differ from expert to expert.
fn experts(model: &ModelFile) -> u32 {
    let weights = &model.weights;
    let mut encodings = weights.layers.iter().flat_map(|layer| {
        let moe = &layer.moe;
        let all = moe.experts.iter().chain([&moe.shared]);
        all.flat_map(|ffn| [ffn.gate, ffn.up, ffn.down]).map(|m| weights.tensor(m).encoding)
    });
    let first = encodings.next();
    match first {
        Some(Encoding::Q4tp) if encodings.all(|e| e == Encoding::Q4tp) => abi::Q4,
        Some(Encoding::Q8Row) if encodings.all(|e| e == Encoding::Q8Row) => abi::Q8,
        _ => abi::F16,
    }
}

#[cfg(test)]
mod tests {
    use shamrock_testkit::{fixture, root};

    use super::*;

    fn geometry(path: std::path::PathBuf) -> Geometry {
        Geometry::new(&ModelFile::open(path).unwrap(), Precision::Half, KvPrecision::Half).unwrap()
    }

    #[test]
    fn the_tiny_checkpoints_and_clover_nano_are_within_the_kernels_limits() {
        for name in ["small", "awkward", "kernel"] {
            geometry(fixture(&format!("{name}/model.q4tp.cmf")));
        }
        let nano = geometry(root().join("models/clover-nano.cmf"));
        assert_eq!(nano.experts, abi::Q4);
        assert_eq!(nano.halves(), 1);
    }

    #[test]
    fn a_shape_beyond_the_kernels_is_refused_by_name() {
        let mut nano = geometry(root().join("models/clover-nano.cmf"));
        nano.config.attention.head_dim = 80;
        let error = nano.check().unwrap_err().to_string();
        assert!(error.contains("head_dim 80") && error.contains("--backend cpu"), "{error}");
    }
}
